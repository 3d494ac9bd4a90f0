"""Random walks, and GraphSAINT's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop import sampling
from manyhop.errors import InputError
from manyhop.graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Graph, PlacedGraph
from manyhop.sampling.check import check_spec
from manyhop.sampling.contract import BatchKey, WalkRequest, Walks, WalkSampler, WalkSpec
from manyhop.sampling.cpu.walk_sampler import CPUWalkSampler
from manyhop.sampling.negatives import check_walk_nodes
from manyhop.sampling.random import Use, draw, make_key, unit
from manyhop.system import triton_compiler


class Walker:
    """Walks on the device of each request's starts; a GPU gets a copy of the topology, shared with loaders.

    Args:
        graph: the topology, in CPU memory.
        spec: how to walk.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: the graph lacks requested weights.
        CapacityError: the tables do not fit in the memory of the device.
    """

    def __init__(self, graph: Graph, spec: WalkSpec) -> None:
        check_spec(graph, spec)
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
        if device.type == "cpu":
            return CPUWalkSampler(self.graph, self.spec), None
        placed = PlacedGraph.of(self.graph, device, "device")
        return sampling.GPUWalkSampler(placed.graph, self.spec, device=device), placed


class NegativeWalker:
    """Draws uniform nodes instead of walks, on the device of each request's starts.

    Step ``s`` of walk ``i`` takes draw ``i`` of the destinations of negatives of kind ``s``.

    Args:
        num_nodes: of each step, the number of nodes of the type that it leads to.

    Raises:
        InputError: a type has too many nodes, or none.
    """

    def __init__(self, num_nodes: Sequence[int]) -> None:
        check_walk_nodes(num_nodes)
        self.num_nodes = tuple(num_nodes)
        self._counts: dict[torch.device, Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return NegativeWalker, (self.num_nodes,)

    def sample(self, request: WalkRequest) -> Tensor:
        """Return ``[num_walks, num_steps + 1] int64``: ``request.start``, and the nodes drawn."""
        start, key = request.start, make_key(Use.NEGATIVE_DST, *request.key)
        counts = self._counts.get(start.device)
        if counts is None:
            counts = self._counts[start.device] = torch.tensor(self.num_nodes, dtype=torch.int64, device=start.device)
        node = torch.empty((start.numel(), counts.numel() + 1), dtype=torch.int64, device=start.device)
        node[:, 0] = start
        if start.device.type == "cpu":
            from manyhop.sampling.cpu.kernels.walks import negative_walk

            negative_walk(np.array([key]), counts.numpy(), node.numpy())
        else:
            triton_compiler.require("Sampling on a GPU")
            from manyhop.sampling.gpu.walk_sampler import draw_negative_walks

            draw_negative_walks(int(key), counts, node)
        return node


SaintMethod: TypeAlias = Literal["nodes", "edges", "walks"]
Ints = npt.NDArray[np.int64]


class SaintDraws:
    """Draws the nodes of one subgraph after the other; safe to call from multiple threads.

    Args:
        graph: without types, its edges reversed: the column of a node holds the nodes that its edges lead to.
        method: ``"nodes"``: the sources of uniform edges; ``"edges"``: both ends of edges, in proportion to the number
            of edges into the source and out of the destination; ``"walks"``: what uniform walks visit.
        num_draws: how many nodes, edges or walks, with replacement.
        walk_length: steps of each walk.

    Raises:
        InputError: a graph without nodes or edges.
    """

    def __init__(self, graph: Graph, method: SaintMethod, num_draws: int, walk_length: int = 1) -> None:
        csc, num_nodes = graph.csc[HOMOGENEOUS_EDGE], graph.num_nodes[HOMOGENEOUS_NODE]
        if num_nodes == 0 or csc.num_edges == 0:
            raise InputError(
                f"Expected a graph with nodes and edges to draw from, got {num_nodes} nodes and {csc.num_edges} edges."
            )
        self._method, self._num_draws, self._num_nodes, self._csc = method, num_draws, num_nodes, csc.made()
        self._sums = _running_sums(self._csc) if method == "edges" else None
        self._walks = CPUWalkSampler(graph, WalkSpec(steps=(HOMOGENEOUS_EDGE,) * walk_length))

    def draw(self, key: BatchKey) -> Tensor:
        """Return the distinct nodes of a batch, ``[num_nodes] int64``, in ascending order."""
        share = unit(draw(make_key(Use.SAINT, *key), np.arange(self._num_draws)))
        if self._method == "walks":
            start = torch.from_numpy((share * self._num_nodes).astype(np.int64))
            node = self._walks.sample(WalkRequest(key=key, start=start)).node.numpy()
            found = np.unique(node)
            return torch.from_numpy(found[found >= 0])
        if self._sums is None:
            return torch.from_numpy(np.unique(self._source((share * self._csc.num_edges).astype(np.int64))))
        position = np.searchsorted(self._sums, (share * self._sums[-1]).astype(np.int64), side="right")
        ends = np.concatenate([self._source(position), self._csc.row.numpy()[position]])
        return torch.from_numpy(np.unique(ends))

    def _source(self, position: Ints) -> Ints:
        return np.searchsorted(self._csc.colptr.numpy(), position, side="right") - 1


def _running_sums(csc: CSC) -> Ints:
    """Return running sums ``[num_edges]`` of the number of edges into the source and out of the destination."""
    out_degree, row = np.diff(csc.colptr.numpy()), csc.row.numpy()
    in_degree = np.bincount(row, minlength=out_degree.size)
    weight = np.repeat(in_degree, out_degree) + out_degree[row]
    return np.cumsum(weight if weight.any() else np.ones_like(weight))
