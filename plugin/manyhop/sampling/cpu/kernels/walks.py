"""Random walks, compiled: equal to the reference bit for bit.

Walks of a block go step by step, each loop over the block: the memory accesses of different walks do not wait for each
other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.random import below, draw, fold, unit
from manyhop.sampling.cpu.kernels.records import edges_type
from manyhop.sampling.cpu.kernels.weighted import find
from manyhop.sampling.cpu.tables import ATTEMPTS, Edges, Ints
from manyhop.system.numba_kernels import f64, float64, helper, i32, i64, int64, kernel, u64, uint64, void

_BLOCK = 256
_NOBODY = np.int64(-1)
_ONE = np.uint64(1)
_ANY = 1 << 62

F64s = npt.NDArray[np.float64]
U64s = npt.NDArray[np.uint64]


@helper
def _entry(ids: int, wide: int, at: int) -> np.int64:
    return i64(ids, _ANY)[at] if wide > 0 else np.int64(i32(ids, _ANY)[at])


@helper
def _has_edge(lookup: Ints, src: np.int64, dst: np.int64) -> bool:
    """Whether there is an edge; ``lookup``: addresses of begins and destinations, and whether these are int64."""
    begin = i64(lookup[0], _ANY)
    low, end = begin[src], begin[src + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if _entry(lookup[1], lookup[2], middle) < dst:
            low = middle + 1
        else:
            high = middle
    return bool(low < end and _entry(lookup[1], lookup[2], low) == dst)


@helper
def _bias(lookup: Ints, before: np.int64, neighbor: np.int64, back: float, away: float) -> float:
    if neighbor == before:
        return back
    return 1.0 if _has_edge(lookup, before, neighbor) else away


@helper
def _candidate(edges: Edges, t: int, weighted: bool, begin: int, d: int, r: np.uint64) -> int:
    if weighted:
        return begin + int(find(u64(edges[t].alias + 8 * begin, d), r))
    return begin + int(below(r, np.uint64(d)))


@helper
def _biased(
    edges: Edges,
    t: int,
    weighted: bool,
    begin: int,
    d: int,
    key: np.uint64,
    before: np.int64,
    lookup: Ints,
    back: float,
    away: float,
) -> int:
    most = max(max(back, 1.0), away)
    for attempt in range(ATTEMPTS):
        position = _candidate(edges, t, weighted, begin, d, draw(key, np.uint64(1 + 2 * attempt)))
        neighbor = _entry(edges[t].row, edges[t].row_wide, position)
        if unit(draw(key, np.uint64(2 + 2 * attempt))) * most < _bias(lookup, before, neighbor, back, away):
            return position
    weight, total = f64(edges[t].weight, _ANY), 0.0
    for position in range(begin, begin + d):
        neighbor = _entry(edges[t].row, edges[t].row_wide, position)
        total += (weight[position] if weighted else 1.0) * _bias(lookup, before, neighbor, back, away)
    bound, last, running = unit(draw(key, np.uint64(1 + 2 * ATTEMPTS))) * total, begin, 0.0
    for position in range(begin, begin + d):
        neighbor = _entry(edges[t].row, edges[t].row_wide, position)
        share = (weight[position] if weighted else 1.0) * _bias(lookup, before, neighbor, back, away)
        running += share
        if share > 0.0:
            last = position
        if running > bound:
            break
    return last


@kernel(void(edges_type, int64[::1], uint64[::1], float64[::1], int64[::1], float64[::1], int64[:, ::1], int64[:, ::1]))
def walk(
    edges: Edges,
    steps: Ints,
    key: U64s,
    stop: F64s,
    lookup: Ints,
    bias: F64s,
    node: npt.NDArray[np.int64],
    edge_id: npt.NDArray[np.int64],
) -> None:
    """Walk from ``node[:, 0]``.

    Args:
        edges: the graph.
        steps: ``[num_steps]`` the index of the edge type of each step.
        key: ``[1]`` of the batch.
        stop: ``[num_steps]`` the probability that a walk ends before each step; or ``[0]``.
        lookup: see ``_has_edge``.
        bias: ``[3]``: whether walks are weighted, ``1 / p``, ``1 / q``.
        node: ``[num_walks, num_steps + 1]``, the result.
        edge_id: ``[num_walks, num_steps]``; or ``[0, 0]``, where it is not asked for.
    """
    position = np.empty(_BLOCK, np.int64)
    plain = bias[1] == 1.0 and bias[2] == 1.0
    for first in range(0, node.shape[0], _BLOCK):
        w = min(_BLOCK, node.shape[0] - first)
        for s in range(steps.size):
            t = steps[s]
            weighted = bias[0] > 0.0 and edges[t].alias != 0
            colptr, positive = i64(edges[t].colptr, _ANY), i64(edges[t].positive, _ANY)
            for i in range(w):
                position[i] = _NOBODY
                now = node[first + i, s]
                if now == _NOBODY:
                    continue
                step_key = fold(fold(key[0], np.uint64(first + i)), np.uint64(s))
                begin = colptr[now]
                d = colptr[now + 1] - begin
                if weighted and edges[t].positive != 0 and positive[now] == 0:
                    continue
                if d == 0 or (stop.size > 0 and unit(draw(step_key, np.uint64(0))) < stop[s]):
                    continue
                if plain or s == 0:
                    position[i] = _candidate(edges, t, weighted, begin, d, draw(step_key, _ONE))
                else:
                    before = node[first + i, s - 1]
                    position[i] = _biased(edges, t, weighted, begin, d, step_key, before, lookup, bias[1], bias[2])
            for i in range(w):
                taken = position[i]
                node[first + i, s + 1] = _entry(edges[t].row, edges[t].row_wide, taken) if taken != _NOBODY else _NOBODY
            if edge_id.size > 0:
                for i in range(w):
                    taken = position[i]
                    if taken != _NOBODY and edges[t].perm != 0:
                        taken = _entry(edges[t].perm, edges[t].perm_wide, taken)
                    edge_id[first + i, s] = taken


@kernel(void(uint64[::1], int64[::1], int64[:, ::1]))
def negative_walk(key: U64s, num_nodes: Ints, node: npt.NDArray[np.int64]) -> None:
    """Draw nodes after ``node[:, 0]``.

    Args:
        key: ``[1]`` of the batch's negatives of kind 0.
        num_nodes: ``[num_steps]``: of the type that each step leads to.
        node: ``[num_walks, num_steps + 1]``, the result.
    """
    for s in range(num_nodes.size):
        step_key = fold(key[0], np.uint64(s)) if s > 0 else key[0]
        count = np.uint64(num_nodes[s])
        for i in range(node.shape[0]):
            node[i, s + 1] = below(draw(step_key, np.uint64(i)), count)
