"""Samplers of random walks and of personalised PageRank on the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling.check import UNBIASED, check_ids, check_spec
from manyhop.sampling.contract import PageRankNeighbors, PageRankSpec, WalkRequest, Walks, WalkSpec
from manyhop.sampling.cpu.tables import pages_edges
from manyhop.sampling.cpu.workspace import describe_edges
from manyhop.sampling.lookup import EdgeLookup
from manyhop.sampling.random import Use, make_key
from manyhop.system.progress import Progress


class CPUWalkSampler:
    """Walks on the CPU; safe to call from multiple threads, which run in parallel.

    With ``p`` or ``q``, a sorted table of the edges takes 4 to 8 bytes per edge.

    Args:
        graph: the topology, in CPU memory.
        spec: how to walk; identical for all requests.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: the graph lacks the weights that are needed, or is not in CPU memory.
        CapacityError: the table of edges does not fit in memory.
    """

    def __init__(self, graph: Graph, spec: WalkSpec) -> None:
        check_spec(graph, spec)
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

        check_ids("start nodes of walks", request.start, self.graph, self.spec.steps[0][2])
        num_walks, num_steps = request.start.numel(), len(self.spec.steps)
        node = torch.empty((num_walks, num_steps + 1), dtype=torch.int64, device="cpu")
        node[:, 0] = request.start
        edge_id = torch.empty((num_walks, num_steps) if self.spec.edge_ids else (0, 0), dtype=torch.int64, device="cpu")
        lookup = np.zeros(3, np.int64)
        if self._lookup is not None:
            begin, destination = self._lookup.tables()
            lookup[:] = begin.ctypes.data, destination.ctypes.data, destination.dtype == np.int64
        key = np.array([make_key(Use.WALK, *request.key)], np.uint64)
        edges = describe_edges(self.graph)  # sharing moves tables
        walk(edges, self._steps, key, self._stop, lookup, self._bias, node.numpy(), edge_id.numpy())
        return Walks(node=node, edge_id=edge_id if self.spec.edge_ids else None)


_PIECE = 64
"""Nodes per piece of work."""
_ROOM = 1 << 14
"""Initial capacity for neighbours."""


class CPUPageRankSampler:
    """Finds neighbours on the CPU; safe to call from multiple threads, which run in parallel.

    Args:
        graph: the topology, in CPU memory.
        spec: how to search; identical for all nodes.

    Raises:
        InputError: the spec does not fit the graph, or nodes do not.
        GraphError: the graph is not in CPU memory.
    """

    def __init__(self, graph: Graph, spec: PageRankSpec) -> None:
        check_spec(graph, spec)
        self.graph, self.spec = graph, spec
        pages_edges(graph)

    def sample(self, nodes: Tensor, *, num_threads: int = 1, bar: Progress | None = None) -> PageRankNeighbors:
        """Find the neighbours of ``nodes [num_nodes] int64``.

        Args:
            nodes: duplicates are allowed.
            num_threads: how many threads share the nodes.
            bar: counts the nodes that are done.
        """
        check_ids("nodes", nodes, self.graph, self.spec.edge_type[2])
        pieces = torch.split(nodes, _PIECE) if nodes.numel() else (nodes,)

        def work(piece: Tensor) -> list[PageRankNeighbors]:
            found = self._find(piece)
            if bar is not None:
                bar.add(piece.numel())
            return found

        if num_threads == 1 or len(pieces) == 1:
            every = [one for piece in pieces for one in work(piece)]
        else:
            with ThreadPoolExecutor(num_threads, "manyhop-page-rank") as pool:
                every = [one for found in pool.map(work, pieces) for one in found]
        sizes = torch.cat([one.begin.diff() for one in every])
        return PageRankNeighbors(
            begin=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
            node=torch.cat([one.node for one in every]),
            value=torch.cat([one.value for one in every]),
        )

    def _find(self, nodes: Tensor) -> list[PageRankNeighbors]:
        """Find the neighbours of a few nodes; each result has as many nodes as fit in memory."""
        from manyhop.sampling.cpu.kernels.walks import page_rank

        spec, seeds = self.spec, nodes.numpy()
        edges, t = describe_edges(self.graph), self.graph.edge_types.index(spec.edge_type)
        top_k = -1 if spec.top_k is None else spec.top_k
        room = _ROOM if spec.top_k is None else max(1, min(_ROOM, seeds.size * spec.top_k))
        begin, first = np.zeros(seeds.size + 1, np.int64), 0
        found: list[PageRankNeighbors] = []
        while first < seeds.size or not found:
            node, value = np.empty(room, np.int64), np.empty(room, np.float64)
            done = page_rank(edges, t, seeds, spec.alpha, spec.eps, top_k, first, begin, node, value)
            if done < seeds.size - first:
                room *= 2
            if done or not seeds.size:
                of_these = begin[first : first + done + 1].copy()
                node, value = node[: of_these[-1]].copy(), value[: of_these[-1]].copy()
                found.append(PageRankNeighbors(*map(torch.from_numpy, (of_these, node, value))))
                first += done
        return found
