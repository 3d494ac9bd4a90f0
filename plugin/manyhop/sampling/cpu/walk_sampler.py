"""Random walks on the CPU: equal to the reference bit for bit, compiled by numba when first used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from manyhop.graph import Graph
from manyhop.sampling.check import UNBIASED, check_walk_request, check_walk_spec
from manyhop.sampling.contract import WalkRequest, Walks, WalkSpec
from manyhop.sampling.cpu.output import describe_edges
from manyhop.sampling.cpu.paging import pages_edges
from manyhop.sampling.lookup import EdgeLookup
from manyhop.sampling.random import Use, make_key


class CPUWalkSampler:
    """Walks on the CPU; safe to call from several threads, which then run in parallel.

    With ``p`` or ``q``, it makes a table of the edges, sorted, of 4 to 8 bytes per edge.

    Args:
        graph: the topology, in CPU memory.
        spec: how to walk; the same for every request.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: the graph lacks the weights that are needed, or is not in CPU memory.
        CapacityError: the table of edges does not fit in memory.
    """

    def __init__(self, graph: Graph, spec: WalkSpec) -> None:
        check_walk_spec(graph, spec)
        self.graph, self.spec = graph, spec
        pages_edges(graph)
        self._steps = np.array([graph.edge_types.index(t) for t in spec.steps], np.int64)
        self._stop = np.array(spec.stop or (), np.float64)
        self._bias = np.array([spec.weighted, 1 / spec.p, 1 / spec.q], np.float64)
        is_biased = (spec.p, spec.q) != (1, 1)
        self._lookup = EdgeLookup(graph.csc[spec.steps[0]], UNBIASED) if is_biased else None

    def sample(self, request: WalkRequest) -> Walks:
        """Walk from ``request.start``."""
        from manyhop.sampling.cpu.kernels.walks import walk

        check_walk_request(self.graph, self.spec, request)
        num_walks, num_steps = request.start.numel(), len(self.spec.steps)
        node = torch.empty((num_walks, num_steps + 1), dtype=torch.int64)
        node[:, 0] = request.start
        edge_id = torch.empty((num_walks, num_steps) if self.spec.edge_ids else (0, 0), dtype=torch.int64)
        lookup = np.zeros(3, np.int64)
        if self._lookup is not None:
            begin, destination = self._lookup.tables()
            lookup[:] = begin.ctypes.data, destination.ctypes.data, destination.dtype == np.int64
        key = np.array([make_key(Use.WALK, *request.key)], np.uint64)
        edges = describe_edges(self.graph)  # tables move where they are shared
        walk(edges, self._steps, key, self._stop, lookup, self._bias, node.numpy(), edge_id.numpy())
        return Walks(node=node, edge_id=edge_id if self.spec.edge_ids else None)


class CPUNegativeWalks:
    """Draws uniform nodes in place of walks on the CPU; safe to call from several threads.

    Args:
        num_nodes: of each step, the number of nodes of the type that it leads to; checked by the caller.
    """

    def __init__(self, num_nodes: Sequence[int]) -> None:
        self._num_nodes = np.array(num_nodes, np.int64)

    def sample(self, request: WalkRequest) -> torch.Tensor:
        """Return ``[num_walks, num_steps + 1] int64``: the starts, and the nodes drawn."""
        from manyhop.sampling.cpu.kernels.walks import negative_walk

        node = torch.empty((request.start.numel(), self._num_nodes.size + 1), dtype=torch.int64)
        node[:, 0] = request.start
        negative_walk(np.array([make_key(Use.NEGATIVE_DST, *request.key)]), self._num_nodes, node.numpy())
        return node
