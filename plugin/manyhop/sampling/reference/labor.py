"""Numpy reference of layer-neighbour sampling: it defines samples. Written for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
import torch

from manyhop.graph import CSC, EdgeType, Graph, NodeType
from manyhop.sampling.check import check_spec
from manyhop.sampling.contract import BatchKey, LaborSpec, NeighborSpec, SampledSubgraph
from manyhop.sampling.random import U64, Use, below, draw, fold, make_key, unit
from manyhop.sampling.reference.sampler import Edges, Frontier, Picked, ReferenceSampler, Times

# Numpy reference of LABOR: the numbers of neighbours, and how a column is sampled with them (arXiv 2210.13339).
#
# Written for reading; the CPU and GPU kernels are compared with it bit for bit.

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SUM_BLOCK = 1024
"""Numbers of a part of a column's sum."""

MAX_ROUNDS = 32
"""Steps in which the scale of a column's probabilities is found; part of the contract."""

SMALLEST_SHARE = 2.0**-512
"""Smallest share of a column's weight that an edge of positive weight has."""


Variates = Callable[[Ints], U64]
"""Neighbours ``[n]`` -> their random numbers ``[n] uint64``, for all frontier nodes."""


def variates_of(spec: LaborSpec, key: BatchKey, hop: int, node_type: int) -> Variates:
    """Return the numbers of a type's nodes in one hop. A neighbour's number lasts ``batch_dependency`` batches."""
    every = spec.batch_dependency
    epoch, group, step = (key.epoch, *divmod(key.batch, every)) if every else (0, 0, 0)
    hops = () if spec.layer_dependency else (hop,)
    now, later = (make_key(Use.LABOR, key.seed, epoch, g, node_type, *hops) for g in (group, group + 1))

    def variates(node: Ints) -> U64:
        if step == 0:
            return draw(now, node)
        switched = below(draw(fold(now, -1), node), every) < step
        return np.where(switched, draw(later, node), draw(now, node))

    return variates


def tree_sum(x: Floats) -> float:
    """Return the sum of ``x [d]``: in each block, halves are added until one number is left; blocks from left to right.

    Vector instructions and the threads of a GPU can add in this order.
    """
    total = 0.0
    for begin in range(0, x.size, SUM_BLOCK):
        block = np.zeros(SUM_BLOCK)
        block[: x.size - begin] = x[begin : begin + SUM_BLOCK]
        while block.size > 1:
            block = block[: block.size // 2] + block[block.size // 2 :]
        total += float(block[0])
    return total


def shares(weight: Floats) -> Floats:
    """Return each entry's share of its column's weight ``[d]``."""
    total = tree_sum(weight)
    if total == 0:
        return np.zeros(weight.size)
    return np.where(weight > 0, np.maximum(weight / total, SMALLEST_SHARE), 0.0)


def scale(a: Floats, total: float, pi: Floats, k: int, before: float) -> float:
    """Return the number ``c`` for which a column's probabilities ``min(1, c * pi)`` give the variance of ``k`` equal
    picks.

    It solves ``sum(a^2 / min(1, c * pi)) = total^2 / k - total^2 / n + sum(a^2)`` (equation 22 of the paper; n entries
    of positive weight), whose left side is made of straight lines in ``1 / c``, by Newton's method from the line for a
    small ``c`` on; each step takes more entries for certain. If all are certain (``k >= n``): the smallest number that
    is not below ``before`` and makes them so.

    Args:
        a: weight of each entry ``[d]``; entries of weight 0 do not count.
        total: the sum of the weights.
        pi: numbers ``[d]`` that the probabilities are proportional to.
        k: the fanout, not -1.
        before: the former value.
    """
    positive = a > 0
    n = int(positive.sum())
    if n == 0:
        return before
    if k >= n:
        return max(before, 1.0 / float(pi[positive].min()))
    spare = total * total * float(n - k) / (float(k) * float(n))
    uncertain, c = positive, 0.0
    for _ in range(MAX_ROUNDS):
        with np.errstate(divide="ignore", invalid="ignore"):
            term = np.where(uncertain, a * a / pi, 0.0)
        c = tree_sum(term) / (spare + tree_sum(np.where(uncertain, a * a, 0.0)))
        count = int(uncertain.sum())
        uncertain = positive & (c * pi < 1.0)
        if uncertain.sum() in (0, count):
            break
    return c


def smallest(keys: npt.NDArray[np.uint64] | Floats, positive: Bools, k: int) -> Ints:
    """Return the ``k`` entries of the smallest keys ``[d]`` (``[d, k]``: k keys per entry), in stored order."""
    entry = np.flatnonzero(positive)
    chosen = keys[entry].reshape(-1)
    order = np.argsort(chosen, kind="stable")[:k]
    return np.sort(np.repeat(entry, chosen.size // max(entry.size, 1))[order])


def exact(r: U64, weight: Floats | None, k: int, *, replace: bool) -> Ints:
    """Return which entries of a column are picked, in stored order: those of the ``k`` smallest keys.

    Args:
        r: the numbers of the neighbours ``[d]``.
        weight: weights ``[d]``; ``None``: equal ones.
        k: the fanout; -1 is all.
        replace: each neighbour has ``k`` keys.
    """
    numbers = np.asarray(r)
    positive = np.ones(numbers.size, np.bool_) if weight is None else weight > 0
    if k == -1 or (not replace and k >= positive.sum()):
        return np.flatnonzero(positive)
    if replace:
        numbers = np.asarray(draw(numbers[:, None], np.arange(k)))
    if weight is None:
        return smallest(numbers, positive, k)
    with np.errstate(divide="ignore", invalid="ignore"):
        return smallest(unit(numbers) / (weight[:, None] if replace else weight), positive, k)


def poisson(r: U64, probability: Floats) -> Bools:
    """Return which entries of a column are picked, each with its probability ``[d]``."""
    return np.asarray(unit(r) < probability)


def poisson_equal(r: U64, d: int, k: int) -> Bools:
    """Return the picks if all entries have the probability ``k / d``, in integers."""
    return np.asarray(below(r, d) < k)


def edge_weights(a: Floats, probability: Floats, picked: Bools) -> npt.NDArray[np.float32]:
    """Return the weight of each picked edge in a mean ``[num_picked]``."""
    x = a[picked] / probability[picked]
    return (x * float(x.size) / tree_sum(x)).astype(np.float32)


CONVERGED = 10_000
"""Rounds end when the expected number of nodes falls by at most this share."""

UNIT = 2.0**30
"""Weight of a node in the expected number: sums of integers do not depend on their order."""


class ReferenceLaborSampler(ReferenceSampler):
    """Samples by LABOR (Balin and Catalyurek, "Layer-Neighbor Sampling", arXiv 2210.13339), by the sampling contract.

    Its arguments and exceptions are those of :class:`manyhop.sampling.CPULaborSampler`.
    """

    def __init__(self, graph: Graph, spec: LaborSpec) -> None:
        check_spec(graph, spec)
        super().__init__(graph, NeighborSpec(fanouts=spec.fanouts, expand=spec.expand))
        self.labor = spec

    def _picks(
        self, key: BatchKey, hop: int, index: int, dst: Frontier, frontier: Iterable[int], tree_time: list[Times]
    ) -> Iterable[Picked]:
        edge_type = self.graph.edge_types[index]
        variates = variates_of(self.labor, key, hop, self.graph.node_types.index(edge_type[0]))
        nodes = [dst.node[i] for i in frontier]
        return self._pick_all(edge_type, nodes, self.spec.fanouts[edge_type][hop], variates)

    def _result(
        self,
        nodes: Mapping[NodeType, Frontier],
        edges: Mapping[EdgeType, Edges],
        excluded: Mapping[EdgeType, set[int]],
    ) -> SampledSubgraph:
        sample = super()._result(nodes, edges, excluded)
        if self.labor.method == "poisson" and (self.labor.weighted or self.labor.importance != 0):
            sample.edge_weight = {t: torch.tensor(e.weight, dtype=torch.float32) for t, e in edges.items()}
        return sample

    def _pick_all(self, edge_type: EdgeType, frontier: Sequence[int], k: int, variates: Variates) -> list[Picked]:
        """Return the stored positions of the edges picked for each frontier node, and their weights."""
        csc = self.graph.csc[edge_type]
        columns = [_Column(csc, node, weighted=self.labor.weighted) for node in frontier]
        if k == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(columns)
        if self.labor.method == "exact":
            picks = [exact(variates(c.source), c.weight, k, replace=self.labor.replace) for c in columns]
            return [(c.begin + q, np.ones(q.size, np.float32)) for c, q in zip(columns, picks, strict=True)]
        if columns and columns[0].weight is None and self.labor.importance == 0:
            picks = []
            for c in columns:
                d = c.source.size
                taken = poisson_equal(variates(c.source), d, k) if 0 <= k < d else np.ones(d, np.bool_)
                picks.append(np.flatnonzero(taken))
            return [(c.begin + q, np.ones(q.size, np.float32)) for c, q in zip(columns, picks, strict=True)]
        result = []
        for c, probability in zip(columns, self._probabilities(csc, columns, k), strict=True):
            taken = poisson(variates(c.source), probability)
            result.append((c.begin + np.flatnonzero(taken), edge_weights(c.a, probability, taken)))
        return result

    def _probabilities(self, csc: CSC, columns: Sequence[_Column], k: int) -> list[Floats]:
        for c in columns:
            c.k = c.n if k == -1 else k
            if c.weight is None:
                c.pi, c.c = np.ones(c.a.size), c.k / max(c.n, 1)
            else:
                c.pi = c.a
                c.c = scale(c.a, c.total, c.pi, c.k, float(c.k))
        pi, before = np.ones(csc.num_src), 0
        for turn in range(self.labor.importance) if self.labor.importance >= 0 else count():
            factor = np.zeros(csc.num_src)
            for c in columns:
                counts = c.a > 0
                np.maximum.at(factor, c.source[counts], c.c * (c.pi if turn == 0 else np.ones(c.a.size))[counts])
            pi = pi * factor
            for c in columns:
                c.pi = pi[c.source]
                c.c = scale(c.a, c.total, c.pi, c.k, c.c)
            expected = int(np.floor(np.minimum(pi, 1.0) * UNIT).astype(np.int64).sum())
            if turn > 0 and expected >= before - before // CONVERGED:
                break
            before = expected
        return [np.where(c.a > 0, 1.0 if c.k >= c.n else np.minimum(1.0, c.c * c.pi), 0.0) for c in columns]


class _Column:
    """The neighbours of a frontier node, and their probabilities."""

    def __init__(self, csc: CSC, node: int, *, weighted: bool) -> None:
        self.begin, end = int(csc.colptr[node]), int(csc.colptr[node + 1])
        self.source: Ints = csc.row[self.begin : end].long().numpy()
        self.weight: Floats | None = None
        self.a, self.total = np.ones(self.source.size), float(self.source.size)
        if weighted and csc.weight is not None:
            self.weight = csc.weight[self.begin : end].numpy()
            self.a, self.total = shares(self.weight), 1.0
        self.n = int((self.a > 0).sum())
        self.k = 0
        self.pi, self.c = self.a, 0.0
