"""The reference for random walks and personalised PageRank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import CSC, Graph
from manyhop.sampling.check import check_ids, check_spec
from manyhop.sampling.contract import PageRankNeighbors, PageRankSpec, WalkRequest, Walks, WalkSpec
from manyhop.sampling.random import U64, Use, below, draw, fold, make_key, unit
from manyhop.sampling.reference.picks import Find, by_alias

MAX_ATTEMPTS = 64
"""Candidates that a step of a biased walk draws before it scans its column."""

Bias = Callable[[int], float]
"""Neighbour -> weight of a step to it."""


class ReferenceWalkSampler:
    """Walks by the letter of the contract.

    Its arguments and exceptions are those of :class:`manyhop.sampling.CPUWalkSampler`.
    """

    def __init__(self, graph: Graph, spec: WalkSpec) -> None:
        check_spec(graph, spec)
        self.graph, self.spec = graph, spec

    def sample(self, request: WalkRequest) -> Walks:
        """Walk from ``request.start``."""
        graph, spec = self.graph, self.spec
        check_ids("start nodes of walks", request.start, graph, spec.steps[0][2])
        starts, steps = request.start.tolist(), spec.steps
        node = torch.full((len(starts), len(steps) + 1), -1)
        edge_id = torch.full((len(starts), len(steps)), -1)
        for i, start in enumerate(starts):
            walk_key = fold(make_key(Use.WALK, *request.key), i)
            node[i, 0] = now = start
            before = None
            for t, edge_type in enumerate(steps):
                csc, key = graph.csc[edge_type], fold(walk_key, t)
                if spec.stop is not None and unit(draw(key, 0)) < spec.stop[t]:
                    break
                position = self._step(csc, key, now, before)
                if position is None:
                    break
                before, now = now, int(csc.row[position])
                node[i, t + 1] = now
                edge_id[i, t] = position if csc.perm is None else int(csc.perm[position])
        return Walks(node=node, edge_id=edge_id if spec.edge_ids else None)

    def _step(self, csc: CSC, key: U64, now: int, before: int | None) -> int | None:
        """Return the stored position of a walk's edge from ``now``; ``None``: it ends."""
        spec, begin, end = self.spec, int(csc.colptr[now]), int(csc.colptr[now + 1])
        weight = np.ones(end - begin)
        find: Find = lambda r: int(below(r, end - begin))  # noqa: E731
        if spec.weighted and csc.weight is not None and csc.alias is not None:
            weight = csc.weight[begin:end].numpy()
            find = by_alias(csc.alias[begin:end].numpy())
        if not weight.any():
            return None
        if before is None or (spec.p, spec.q) == (1, 1):
            return begin + find(draw(key, 1))

        def bias(neighbor: int) -> float:
            if neighbor == before:
                return 1 / spec.p
            column = csc.row[csc.colptr[neighbor] : csc.colptr[neighbor + 1]]
            return 1.0 if before in column.tolist() else 1 / spec.q

        most = max(1 / spec.p, 1.0, 1 / spec.q)
        for attempt in range(MAX_ATTEMPTS):
            entry = find(draw(key, 1 + 2 * attempt))
            if unit(draw(key, 2 + 2 * attempt)) * most < bias(int(csc.row[begin + entry])):
                return begin + entry
        return begin + _scan(draw(key, 1 + 2 * MAX_ATTEMPTS), weight, csc.row[begin:end].tolist(), bias)


def _scan(r: U64, weight: np.ndarray, neighbors: list[int], bias: Bias) -> int:
    """Return the entry of a column that a draw finds in proportion to weight and bias."""
    share = np.array([w * bias(x) for w, x in zip(weight.tolist(), neighbors, strict=True)])
    last = int(np.flatnonzero(share)[-1])
    sums = np.add.accumulate(share)  # from left to right, one addition at a time
    return min(int(np.searchsorted(sums, unit(r) * sums[-1], side="right")), last)


class ReferencePageRankSampler:
    """Finds neighbours by the letter of the contract.

    Its arguments and exceptions are those of :class:`manyhop.sampling.CPUPageRankSampler`.
    """

    def __init__(self, graph: Graph, spec: PageRankSpec) -> None:
        check_spec(graph, spec)
        self.graph, self.spec = graph, spec

    def sample(self, nodes: Tensor) -> PageRankNeighbors:
        """Find the neighbours of ``nodes [num_nodes] int64``."""
        check_ids("nodes", nodes, self.graph, self.spec.edge_type[2])
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
