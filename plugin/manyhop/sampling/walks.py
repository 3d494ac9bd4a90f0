"""Random walks where their starts are: on the CPU or on GPUs."""

from __future__ import annotations

from typing import Any

import torch

from manyhop import sampling
from manyhop.graph import Graph, PlacedGraph
from manyhop.sampling.check import check_walk_spec
from manyhop.sampling.contract import WalkRequest, Walks, WalkSampler, WalkSpec
from manyhop.sampling.cpu.walk_sampler import CPUWalkSampler


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
