"""Expected sizes of sampled batches: from two numbers of a graph, or from batches sampled in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manyhop.arguments import at_least_one
from manyhop.errors import InputError

Array = npt.NDArray[np.float64]

SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
"""Shares of all rows for which :class:`BatchSizes` has the share of requests that they serve."""

_ONES = 0.24  # of R-MAT with 0.57, 0.19, 0.19, 0.05: the chance of a 1 in a digit of either end of an edge


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """What an average batch has."""

    fanouts: tuple[int, ...]
    """Neighbours per node, hop by hop."""
    nodes: tuple[float, ...]
    """Distinct nodes: the seeds, then those that each hop adds."""
    edges: tuple[float, ...]
    """Edges that each hop adds."""
    hits: tuple[float, ...]
    """Share of the nodes that are among the most requested :data:`SHARES` of all nodes."""
    source: str
    """Where the figures are from, in a sentence."""

    @property
    def num_nodes(self) -> float:
        """Distinct nodes of a batch: rows that are gathered."""
        return sum(self.nodes)

    @property
    def num_edges(self) -> float:
        """Edges of a batch."""
        return sum(self.edges)

    def hit_rate(self, share: float) -> float:
        """Return the share of requested rows that a cache of this share of all rows serves."""
        return float(np.interp(share, SHARES, self.hits))


def expected_sizes(num_nodes: int, num_edges: int, fanouts: Sequence[int], batch_size: int) -> BatchSizes:
    """Return the sizes of batches in an R-MAT graph with so many nodes and edges, and seeds drawn from all its nodes.

    R-MAT (Chakrabarti, Zhan and Faloutsos, SDM 2004; probabilities of Graph500) makes 2^s nodes. One whose id has ``k``
    ones is an end of an edge with probability ``0.24^k 0.76^(s-k)``, at either side. Its in-degree is taken to be
    Poisson, and the ends of an edge to be independent given their weights (Chung and Lu, PNAS 2002). A hop of ``m``
    edges then reaches a node of weight ``p`` with probability ``1 - exp(-m p)`` (occupancy: Feller, volume 1), and
    nodes that earlier hops had are not added again.

    Args:
        num_nodes: nodes of the graph.
        num_edges: directed edges of the graph.
        fanouts: neighbours per node, hop by hop; without replacement.
        batch_size: seeds.

    Raises:
        InputError: numbers below 1, or more seeds than nodes.
    """
    at_least_one(num_nodes=num_nodes, num_edges=num_edges, batch_size=batch_size)
    if not fanouts or min(fanouts) < 1:
        raise InputError(f"Expected fanouts of at least 1, one per hop, got {list(fanouts)}.")
    if batch_size > num_nodes:
        raise InputError(f"Expected at most {num_nodes} seeds per batch, got {batch_size}. Lower the batch size.")
    digits = max(1, (num_nodes - 1).bit_length())
    ones = np.arange(digits + 1)
    count = np.array([math.comb(digits, int(k)) for k in ones], np.float64) * (num_nodes / 2**digits)
    weight = _ONES**ones * (1 - _ONES) ** (digits - ones) * (2**digits / num_nodes)
    seen = np.full(digits + 1, batch_size / num_nodes)
    frontier, nodes, edges = seen, [float(batch_size)], []
    for fanout in fanouts:
        edges.append(float((count * frontier * _picks(fanout, num_edges * weight)).sum()))
        frontier = (1 - seen) * -np.expm1(-edges[-1] * weight)
        seen = seen + frontier
        nodes.append(float((count * frontier).sum()))
    requested = np.cumsum(count * seen) / (count * seen).sum()  # the weights fall, so the most requested come first
    hits = np.interp(SHARES, np.concatenate(([0.0], np.cumsum(count) / num_nodes)), np.concatenate(([0.0], requested)))
    return BatchSizes(
        fanouts=tuple(fanouts),
        nodes=tuple(nodes),
        edges=tuple(edges),
        hits=tuple(hits.tolist()),
        source=f"an R-MAT graph of {num_nodes:,} nodes and {num_edges:,} edges is assumed, with seeds from all nodes",
    )


def _picks(fanout: int, mean: Array) -> Array:
    """Return ``E[min(fanout, X)]`` for a Poisson X of these means: the sum of ``P(X >= j)`` for j up to the fanout."""
    term = np.exp(-mean)
    below, picks = term.copy(), np.zeros_like(mean)
    for j in range(1, fanout + 1):
        picks += 1 - below
        term = term * mean / j
        below += term
    return picks
