"""Numpy reference of neighbours by personalised PageRank. Written for reading, not for speed."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling.check import check_page_rank_nodes, check_page_rank_spec
from manyhop.sampling.contract import PageRankNeighbors, PageRankSpec


class ReferencePageRankSampler:
    """Finds neighbours by the letter of the contract.

    Args:
        graph: the topology.
        spec: how to find them; the same for all nodes.

    Raises:
        InputError: the spec does not fit the graph, or nodes do not.
    """

    def __init__(self, graph: Graph, spec: PageRankSpec) -> None:
        check_page_rank_spec(graph, spec)
        self.graph, self.spec = graph, spec

    def sample(self, nodes: Tensor) -> PageRankNeighbors:
        """Find the neighbours of ``nodes [num_nodes] int64``."""
        check_page_rank_nodes(self.graph, self.spec, nodes)
        csc = self.graph.csc[self.spec.edge_type]
        colptr, row = csc.colptr.tolist(), csc.row.tolist()
        begin, node, value = [0], [], []
        for seed in nodes.tolist():
            rank = self._push(colptr, row, seed)
            found = list(rank.items())
            if self.spec.top_k is not None:
                found = sorted(found, key=lambda one: (-one[1], one[0]))[: self.spec.top_k]
            node += [v for v, _ in found]
            value += [p for _, p in found]
            begin.append(len(node))
        return PageRankNeighbors(
            begin=torch.tensor(begin),
            node=torch.tensor(node, dtype=torch.int64),
            value=torch.tensor(value, dtype=torch.float64),
        )

    def _push(self, colptr: list[int], row: list[int], seed: int) -> dict[int, float]:
        """Return the rank of the nodes that were pushed, in the order of their first push."""
        alpha, threshold = self.spec.alpha, self.spec.alpha * self.spec.eps
        rank: dict[int, float] = {}
        residual = {seed: alpha}
        queue = deque([seed])
        while queue:
            u = queue.popleft()
            mass, residual[u] = residual[u], 0.0
            rank[u] = rank.get(u, 0.0) + mass
            column = row[colptr[u] : colptr[u + 1]]
            for v in column:
                residual[v] = residual.get(v, 0.0) + (1 - alpha) * mass / len(column)
                if residual[v] >= threshold * (colptr[v + 1] - colptr[v]) and v not in queue:
                    queue.append(v)
        return rank
