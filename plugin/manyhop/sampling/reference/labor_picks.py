"""Numpy reference of LABOR: the numbers of neighbours, and how a column is sampled with them (arXiv 2210.13339).

Written for reading; the CPU and GPU kernels are compared with it bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manyhop.sampling.contract import BatchKey, LaborSpec
from manyhop.sampling.random import U64, Use, below, draw, fold, make_key, unit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SUM_BLOCK = 1024
"""Sums over a column are made in parts of so many numbers."""

MAX_ROUNDS = 32
"""Steps in which the scale of a column's probabilities is found; part of the contract."""

SMALLEST_SHARE = 2.0**-512
"""What an edge of positive weight has of its column's weight, at least."""


@dataclass(frozen=True)
class Variates:
    """The random numbers of all neighbours of a type in one hop, whatever the frontier node."""

    key: np.uint64
    next_key: np.uint64
    switch_key: np.uint64
    dependency: int
    step: int

    @classmethod
    def of(cls, spec: LaborSpec, key: BatchKey, hop: int, node_type: int) -> Variates:
        """Those of a batch: numbers live for ``batch_dependency`` batches, each neighbour's from a batch of its own."""
        dependency = spec.batch_dependency
        epoch, group, step = key.epoch, key.batch // max(dependency, 1), key.batch % max(dependency, 1)
        if dependency == 0:
            epoch, group, step = 0, 0, 0
        hops = () if spec.layer_dependency else (hop,)
        now, later = (make_key(Use.LABOR, key.seed, epoch, g, node_type, *hops) for g in (group, group + 1))
        return cls(now, later, np.uint64(fold(now, -1)), dependency, step)

    def __call__(self, node: Ints) -> U64:
        """``[n] uint64``: the number of each neighbour ``[n]``."""
        now = draw(self.key, node)
        if self.step == 0:
            return now
        switched = below(draw(self.switch_key, node), self.dependency) < self.step
        return np.where(switched, draw(self.next_key, node), now)


def tree_sum(x: Floats) -> float:
    """The sum of ``x [d]``: in each block, halves are added until one number is left; blocks from left to right.

    An order that vector instructions and the threads of a GPU can keep, too.
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
    """What each entry has of the weight of its column ``[d]``; 0 where the weight is 0."""
    total = tree_sum(weight)
    if total == 0:
        return np.zeros(weight.size)
    return np.where(weight > 0, np.maximum(weight / total, SMALLEST_SHARE), 0.0)


def scale(a: Floats, total: float, pi: Floats, k: int, before: float) -> float:
    """The number ``c`` for which a column's probabilities ``min(1, c * pi)`` give the variance of ``k`` equal picks.

    It solves ``sum(a^2 / min(1, c * pi)) = total^2 / k - total^2 / n + sum(a^2)`` (equation 22 of the paper; n entries
    of positive weight), whose left side is made of straight lines in ``1 / c``, by Newton's method from the line for a
    small ``c`` on; each step takes more entries for certain. If all are certain (``k >= n``): the smallest number that
    is not below ``before`` and makes them so.

    Args:
        a: weight of each entry ``[d]``; those of weight 0 do not count.
        total: the sum of the weights.
        pi: what the probabilities are in proportion to ``[d]``.
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
    """The ``k`` entries of the smallest keys ``[d]`` (or ``[d, k]``: so many keys per entry), in stored order."""
    entry = np.flatnonzero(positive)
    chosen = keys[entry].reshape(-1)
    order = np.argsort(chosen, kind="stable")[:k]
    return np.sort(np.repeat(entry, chosen.size // max(entry.size, 1))[order])


def exact(r: U64, weight: Floats | None, k: int, *, replace: bool) -> Ints:
    """Which entries of a column are picked, in stored order: those of the ``k`` smallest keys.

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
    """Which entries of a column are picked, each with its probability ``[d]``."""
    return np.asarray(unit(r) < probability)


def poisson_equal(r: U64, d: int, k: int) -> Bools:
    """The same where all have the probability ``k / d``, in integers."""
    return np.asarray(below(r, d) < k)


def edge_weights(a: Floats, probability: Floats, picked: Bools) -> npt.NDArray[np.float32]:
    """What each picked edge counts in a mean over the picked edges ``[num_picked]``."""
    x = a[picked] / probability[picked]
    return (x * float(x.size) / tree_sum(x)).astype(np.float32)
