"""Negative edges: drawn nodes instead of true endpoints. One vectorised numpy code for the reference and the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.sampling.lookup import ALLOW_EDGES, EdgeLookup
from manyhop.sampling.random import U64, Use, below, draw, make_key, unit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_ATTEMPTS = 16
"""Draws of a negative that must not be a true edge, before it is drawn exactly among the other pairs."""


class NegativeTable:
    """The nodes of one type as candidates for one endpoint of negative edges, sorted and summed once for all draws.

    Candidates are ordered by node id; with times by time, ties by node id.

    Args:
        num_nodes: number of nodes of the endpoint's type.
        weight: ``[num_nodes]`` of any real dtype; nodes are drawn in proportion to it. ``None``: uniformly.
        node_time: ``[num_nodes] int64`` time keys; only nodes that are not later than the seed edge are drawn.

    Raises:
        InputError: too many nodes, or weights or times of a wrong length or with wrong values.
    """

    def __init__(self, num_nodes: int, weight: Tensor | None = None, node_time: Tensor | None = None) -> None:
        _check_nodes(num_nodes, node_time)
        self.num_nodes = num_nodes
        self.node: Ints | None = None
        """``[num_nodes] int64``: candidate -> node; ``None`` if they agree."""
        self.time: Ints | None = None
        """``[num_nodes] int64``: time keys of the candidates, ascending; ``None`` without times."""
        self.cumw: Floats | None = None
        """``[num_nodes] float64``: running sum of the candidates' weights; ``None`` if all are equally likely."""
        self.last_positive: Ints | None = None
        """``[num_nodes] int64``: the last candidate of positive weight up to each candidate, -1 if none."""
        self.first_positive = 0
        """The first candidate of positive weight."""
        if node_time is not None:
            self.node = np.argsort(node_time.numpy(), kind="stable")
            self.time = node_time.numpy()[self.node]
        if weight is not None:
            values = _checked_weight(weight, num_nodes)
            self.cumw = np.cumsum(values if self.node is None else values[self.node])
            positive = np.diff(self.cumw, prepend=0.0) > 0
            self.last_positive = np.maximum.accumulate(np.where(positive, np.arange(num_nodes), -1))
            self.first_positive = int(np.argmax(positive))

    @staticmethod
    def check(num_nodes: int, weight: Tensor | None = None, node_time: Tensor | None = None) -> None:
        """Raise InputError where making one would; makes nothing."""
        _check_nodes(num_nodes, node_time)
        if weight is not None:
            _checked_weight(weight, num_nodes)

    def num_eligible(self, time_max: Ints | None, n: int) -> Ints:
        """Return how many candidates, from the first on, each of ``n`` draws chooses from.

        Those of ``time <= time_max``. Where none of them has a positive weight: up to the first that has, so that the
        earliest such node is drawn.
        """
        if time_max is None or self.time is None:
            return np.full(n, self.num_nodes, np.int64)
        in_time = np.searchsorted(self.time, time_max, side="right")
        return np.maximum(np.asarray(in_time, np.int64), self.first_positive + 1)

    def draw(self, key: U64, index: Ints, eligible: Ints) -> Ints:
        """Return ``[n] int64`` nodes, one for each draw ``index [n]``, of the first ``eligible [n]`` candidates."""
        r = draw(key, index)
        if self.cumw is None or self.last_positive is None:
            at = below(r, eligible)
        else:
            found = np.searchsorted(self.cumw, unit(r) * self.cumw[eligible - 1], side="right")
            at = np.minimum(np.asarray(found, np.int64), self.last_positive[eligible - 1])
        return at if self.node is None else self.node[at]

    def weights(self, eligible: int) -> Floats:
        """Return ``[num_nodes] float64`` by node: its weight, or 1 without weights; 0 where it is not eligible."""
        weight = np.ones(self.num_nodes) if self.cumw is None else np.diff(self.cumw, prepend=0.0)
        weight[eligible:] = 0.0
        if self.node is None:
            return weight
        by_node = np.empty_like(weight)
        by_node[self.node] = weight
        return by_node

    def draw_in_proportion(self, u: Floats, mass: Floats) -> Ints:
        """Return ``[n] int64`` nodes for ``u [n]`` in [0, 1), in proportion to ``mass [num_nodes]``, not all 0."""
        running = np.cumsum(mass if self.node is None else mass[self.node])
        positive = np.diff(running, prepend=0.0) > 0
        last = int(np.flatnonzero(positive)[-1])
        at = np.minimum(np.asarray(np.searchsorted(running, u * running[-1], side="right"), np.int64), last)
        return at if self.node is None else self.node[at]


def key_of_kind(key: tuple[int, ...], kind: int) -> tuple[int, ...]:
    """Return the key of negatives: that of the batch and, with multiple edge types, the number of their type."""
    return (*key, kind) if kind > 0 else key


Sources = NegativeTable | Ints
"""Candidates of the sources; or ``[num_neg] int64``, the given source of each negative."""


def draw_negatives(
    key: tuple[int, ...],
    src: Sources,
    dst: NegativeTable,
    num_neg: int,
    time_max: Ints | None = None,
    avoid: EdgeLookup | None = None,
) -> tuple[Ints, Ints]:
    """Draw negative pairs, both endpoints independently of each other, or destinations for given sources.

    Negative ``j`` takes draw ``j`` of the keys of its endpoints. If ``avoid`` holds that edge, attempt ``a`` takes draw
    ``j + a * num_neg``; after ``MAX_ATTEMPTS`` the next draw chooses exactly among the pairs that are not edges. The
    distribution is that of pairs, given that they are not edges.

    Args:
        key: names the batch, and with multiple edge types the type of the seed edges.
        src: candidates of the sources, or the sources.
        dst: candidates of the destinations.
        num_neg: number of negatives.
        time_max: ``[num_neg] int64`` time key that the endpoints of each negative must not exceed.
        avoid: edges that are never returned.

    Returns:
        Sources and destinations, ``[num_neg] int64`` each.

    Raises:
        InputError: all pairs of nodes (of positive weight), or those of a given source, are edges.
    """
    src_key, dst_key = make_key(Use.NEGATIVE_SRC, *key), make_key(Use.NEGATIVE_DST, *key)
    n_dst = dst.num_eligible(time_max, num_neg)
    n_src = src.num_eligible(time_max, num_neg) if isinstance(src, NegativeTable) else n_dst

    def attempt(index: Ints, at: Ints | slice) -> tuple[Ints, Ints]:
        s = src.draw(src_key, index, n_src[at]) if isinstance(src, NegativeTable) else src[at].copy()
        return s, dst.draw(dst_key, index, n_dst[at])

    s, d = attempt(np.arange(num_neg, dtype=np.int64), slice(None))
    if avoid is None:
        return s, d
    todo = np.flatnonzero(avoid.contains(s, d))
    for number in range(1, MAX_ATTEMPTS):
        s[todo], d[todo] = attempt(todo + number * num_neg, todo)
        todo = todo[avoid.contains(s[todo], d[todo])]
    if todo.size:
        left, limit = src if isinstance(src, NegativeTable) else s[todo], None if time_max is None else time_max[todo]
        s[todo], d[todo] = choose_negatives(key, left, dst, num_neg, todo, limit, avoid)
    return s, d


def choose_negatives(
    key: tuple[int, ...],
    src: Sources,
    dst: NegativeTable,
    num_neg: int,
    todo: Ints,
    time_max: Ints | None,
    avoid: EdgeLookup,
) -> tuple[Ints, Ints]:
    """Return the negatives ``todo [n]`` of a batch, chosen exactly among pairs that are not edges.

    Args:
        key, dst, num_neg, avoid: see :func:`draw_negatives`.
        src: candidates of the sources, or the sources ``[n] int64``.
        todo: ``[n] int64``: which negatives.
        time_max: ``[n] int64`` time key of each.

    Returns:
        Sources and destinations, ``[n] int64`` each.
    """
    n_dst, draws = dst.num_eligible(time_max, todo.size), todo + MAX_ATTEMPTS * num_neg
    u_dst = unit(draw(make_key(Use.NEGATIVE_DST, *key), draws))
    d = np.empty_like(todo)
    if not isinstance(src, NegativeTable):
        for i, source in enumerate(src.tolist()):
            free = _free_destinations(source, dst, int(n_dst[i]), avoid)
            d[i] = dst.draw_in_proportion(u_dst[i : i + 1], free)[0]
        return src, d
    s, n_src = np.empty_like(todo), src.num_eligible(time_max, todo.size)
    u_src = unit(draw(make_key(Use.NEGATIVE_SRC, *key), draws))
    for a, b in sorted(set(zip(n_src.tolist(), n_dst.tolist(), strict=True))):
        group = (n_src == a) & (n_dst == b)
        q, mass = _pair_masses(src, dst, a, b, avoid)
        s[group] = src.draw_in_proportion(u_src[group], mass)
        for i in np.flatnonzero(group).tolist():
            free = q.copy()
            free[avoid.destinations(int(s[i]))] = 0.0
            d[i] = dst.draw_in_proportion(u_dst[i : i + 1], free)[0]
    return s, d


def check_walk_nodes(num_nodes: Sequence[int]) -> None:
    """Raise InputError unless nodes of the steps' types can be drawn instead of walks."""
    for count in set(num_nodes):
        _check_nodes(count, None)
        if count < 1:
            raise InputError("Expected nodes to draw negatives from, got a node type without. Leave its edge type out.")


def _free_destinations(source: int, dst: NegativeTable, eligible: int, avoid: EdgeLookup) -> Floats:
    """Return the weight of each destination without an edge from a source; if none is eligible, times are ignored."""
    for n in (eligible, dst.num_nodes):
        free = dst.weights(n)
        free[avoid.destinations(source)] = 0.0
        if free.any():
            return free
    raise InputError(
        f"Expected a source with a destination that it has no edge to, but source node {source} has edges to all "
        f"destinations (of positive weight). {ALLOW_EDGES} Or leave this node out."
    )


def _pair_masses(
    src: NegativeTable, dst: NegativeTable, n_src: int, n_dst: int, avoid: EdgeLookup
) -> tuple[Floats, Floats]:
    """Return the weights of destinations, and of each source its probability times that of one without an edge.

    If all eligible pairs are edges, times are ignored.
    """
    edge_src, edge_dst = avoid.edges()
    for a, b in ((n_src, n_dst), (src.num_nodes, dst.num_nodes)):
        p, q = src.weights(a), dst.weights(b)
        total = float(np.cumsum(q)[-1])
        taken = np.bincount(edge_src, weights=q[edge_dst], minlength=src.num_nodes)
        num_taken = np.bincount(edge_src[q[edge_dst] > 0], minlength=src.num_nodes)
        # If rounding loses the difference, a source with a free destination must keep a chance.
        free = np.where(num_taken < np.count_nonzero(q), np.maximum(total - taken, total * 2.0**-53), 0.0)
        mass = (p / np.cumsum(p)[-1]) * (free / total)
        if mass.any():
            return q, mass
    raise InputError(
        "Expected a pair of nodes without an edge, but all pairs (of positive weight) are edges of the graph. "
        + ALLOW_EDGES
    )


def _check_nodes(num_nodes: int, node_time: Tensor | None) -> None:
    if num_nodes >= 2**32:
        raise InputError(f"Expected fewer than 2^32 nodes to draw negatives from, got {num_nodes}.")
    if node_time is not None and (node_time.shape != (num_nodes,) or node_time.dtype != torch.int64):
        raise InputError(
            f"Expected node times as int64 of shape [{num_nodes}], got {node_time.dtype} of shape "
            f"{list(node_time.shape)}. Pass one time per node."
        )


def _checked_weight(weight: Tensor, num_nodes: int) -> Floats:
    if weight.shape != (num_nodes,) or weight.is_complex():
        raise InputError(
            f"Expected one real weight per node, of shape [{num_nodes}], got {weight.dtype} of shape "
            f"{list(weight.shape)}."
        )
    values = weight.detach().to(device="cpu", dtype=torch.float64).numpy()
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        raise InputError(
            f"Expected finite weights of 0 or more for negatives, got {values[wrong[0]]} for node {int(wrong[0])}."
        )
    total = float(values.sum())
    if num_nodes > 0 and not 0 < total < np.inf:
        raise InputError(f"Expected weights for negatives with a positive, finite sum, got {total}.")
    return values
