"""Neighbours by personalised PageRank on the CPU: equal to the reference bit for bit, compiled when first used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling.check import check_page_rank_nodes, check_page_rank_spec
from manyhop.sampling.contract import PageRankNeighbors, PageRankSpec
from manyhop.sampling.cpu.output import describe_edges
from manyhop.sampling.cpu.paging import pages_edges
from manyhop.system.progress import Progress

_PIECE = 64
"""Nodes that a thread takes at once."""
_ROOM = 1 << 14
"""Neighbours for which there is memory, at first."""


class CPUPageRankSampler:
    """Finds neighbours on the CPU; safe to call from several threads, which then run in parallel.

    Args:
        graph: the topology, in CPU memory.
        spec: how to find them; the same for all nodes.

    Raises:
        InputError: the spec does not fit the graph, or nodes do not.
        GraphError: the graph is not in CPU memory.
    """

    def __init__(self, graph: Graph, spec: PageRankSpec) -> None:
        check_page_rank_spec(graph, spec)
        self.graph, self.spec = graph, spec
        pages_edges(graph)

    def sample(self, nodes: Tensor, *, num_threads: int = 1, bar: Progress | None = None) -> PageRankNeighbors:
        """Find the neighbours of ``nodes [num_nodes] int64``.

        Args:
            nodes: duplicates are allowed.
            num_threads: how many threads share the nodes.
            bar: counts the nodes that are done.
        """
        check_page_rank_nodes(self.graph, self.spec, nodes)
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
        """Find the neighbours of a few nodes; of several in each result, as many as memory was there for."""
        from manyhop.sampling.cpu.kernels.page_rank import page_rank

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
