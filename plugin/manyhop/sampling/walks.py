"""Random walks, and negatives in place of them, where their starts are: on the CPU or on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from manyhop import sampling
from manyhop.graph import Graph, PlacedGraph
from manyhop.sampling.check import check_walk_spec
from manyhop.sampling.contract import WalkRequest, Walks, WalkSampler, WalkSpec
from manyhop.sampling.cpu.walk_sampler import CPUNegativeWalks, CPUWalkSampler
from manyhop.sampling.negatives import check_walk_nodes
from manyhop.system import triton_compiler


class Walker:
    """Walks on the device of each request's starts; a GPU gets a copy of the topology, shared with loaders.

    Args:
        graph: the topology, in CPU memory.
        spec: how to walk.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: weights are asked for that the graph does not have.
        CapacityError: what a device needs does not fit in its memory.
    """

    def __init__(self, graph: Graph, spec: WalkSpec) -> None:
        check_walk_spec(graph, spec)
        self.graph, self.spec = graph, spec
        self._samplers: dict[torch.device, tuple[WalkSampler, object]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Walker, (self.graph, self.spec)

    def sample(self, request: WalkRequest) -> Walks:
        """Walk from ``request.start``."""
        device = request.start.device
        found = self._samplers.get(device)
        if found is None:
            found = self._samplers[device] = self._make(device)
        return found[0].sample(request)

    def _make(self, device: torch.device) -> tuple[WalkSampler, object]:
        """Return a sampler, and what is to be kept with it."""
        if device.type == "cpu":
            return CPUWalkSampler(self.graph, self.spec), None
        placed = PlacedGraph.of(self.graph, device, "device")
        return sampling.GPUWalkSampler(placed.graph, self.spec, device=device), placed


class NegativeWalker:
    """Draws uniform nodes in place of walks, on the device of each request's starts.

    Args:
        num_nodes: of each step, the number of nodes of the type that it leads to.

    Raises:
        InputError: a type has too many nodes, or none.
    """

    def __init__(self, num_nodes: Sequence[int]) -> None:
        check_walk_nodes(num_nodes)
        self.num_nodes = tuple(num_nodes)
        self._samplers: dict[torch.device, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return NegativeWalker, (self.num_nodes,)

    def sample(self, request: WalkRequest) -> Tensor:
        """Return ``[num_walks, num_steps + 1] int64``: ``request.start``, and the nodes drawn."""
        device = request.start.device
        found = self._samplers.get(device)
        if found is None:
            found = self._samplers[device] = self._make(device)
        return found.sample(request)  # type: ignore[no-any-return]

    def _make(self, device: torch.device) -> Any:
        if device.type == "cpu":
            return CPUNegativeWalks(self.num_nodes)
        triton_compiler.require("Sampling on a GPU")
        from manyhop.sampling.gpu.walk_sampler import GPUNegativeWalks

        return GPUNegativeWalks(self.num_nodes, device=device)
