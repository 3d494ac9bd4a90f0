"""Random walks and personalised PageRank, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels import edges_type
from manyhop.sampling.cpu.kernels.random import below, draw, fold, unit
from manyhop.sampling.cpu.kernels.weighted import find
from manyhop.sampling.cpu.tables import ATTEMPTS, Edges, Ints
from manyhop.system.numba_kernels import f64, float64, helper, i32, i64, int64, kernel, u64, uint64, void

# All walks of a block make one step at a time, so that memory accesses of different walks do not wait for each other.

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
    """Return whether an edge exists; ``lookup``: addresses of begins and destinations, whether these are int64."""
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
    edges: Edges, t: int, weighted: bool, begin: int, d: int, key: np.uint64, before: np.int64, lookup: Ints,
    back: float, away: float,
) -> int:  # fmt: skip
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
    edges: Edges, steps: Ints, key: U64s, stop: F64s, lookup: Ints, bias: F64s, node: npt.NDArray[np.int64],
    edge_id: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    """Walk from ``node[:, 0]``.

    Args:
        edges: the graph.
        steps: ``[num_steps]`` the index of the edge type of each step.
        key: ``[1]`` of the batch.
        stop: ``[num_steps]`` the probability that a walk ends before each step; or ``[0]``.
        lookup: see ``_has_edge``.
        bias: ``[3]``: whether walks are weighted, ``1 / p``, ``1 / q``.
        node: ``[num_walks, num_steps + 1]``, the result.
        edge_id: ``[num_walks, num_steps]``; or ``[0, 0]`` if not requested.
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


# Neighbours by personalised PageRank, compiled: equal to the reference bit for bit.
#
# A node's state is one slot of a hash table that grows with the number of nodes, so that an edge reads one cache line.
# The four words of a slot: node (-1: empty), residual, limit, rank (negative before the first push). A node with a
# residual of at least its limit must be pushed; the limit of a waiting node is infinite. ``value`` is the table as
# float64.

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@helper
def _slot_of(table: Ints, shift: int, node: np.int64) -> np.int64:
    """Return where a node's slot begins, or the empty slot for it."""
    at = np.int64((np.uint64(node) * _SPREAD) >> np.uint64(shift)) << 2
    while table[at] >= 0 and table[at] != node:
        at = (at + np.int64(4)) & np.int64(table.size - 1)
    return at


@helper
def _grown(table: Ints, shift: int, used: Ints) -> Ints:
    """Return a table of twice the size; ``used`` is where the slots in use begin."""
    larger = np.full(2 * table.size, -1, np.int64)
    for i in range(used.size):
        at = _slot_of(larger, shift - 1, table[used[i]])
        larger[at : at + 4] = table[used[i] : used[i] + 4]
        used[i] = at
    return larger


@helper
def _worse(rank: F64s, ids: Ints, a: int, b: int) -> bool:
    """Return whether number ``a`` follows ``b``: of a lower rank, or of the same and a higher id."""
    return bool(rank[a] < rank[b] or (rank[a] == rank[b] and ids[a] > ids[b]))


@helper
def _sift(heap: Ints, size: int, at: int, rank: F64s, ids: Ints) -> None:
    """Restore a heap, the worst first, below a position."""
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _worse(rank, ids, heap[child + 1], heap[child]):
            child += 1
        if not _worse(rank, ids, heap[child], heap[at]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@helper
def _select(order: Ints, n: int, k: int, rank: F64s, ids: Ints) -> None:
    """Move the ``k`` best of the ``n`` numbers in ``order`` to the front, the best first."""
    for at in range(k // 2 - 1, -1, -1):
        _sift(order, k, at, rank, ids)
    for i in range(k, n):
        if _worse(rank, ids, order[0], order[i]):
            order[0], order[i] = order[i], order[0]
            _sift(order, k, 0, rank, ids)
    for last in range(k - 1, 0, -1):
        order[0], order[last] = order[last], order[0]
        _sift(order, last, 0, rank, ids)


@kernel(int64(edges_type, int64, int64[::1], float64, float64, int64, int64, int64[::1], int64[::1], float64[::1]))
def page_rank(
    edges: Edges, t: int, nodes: Ints, alpha: float, eps: float, top_k: int, first: int, begin: Ints, node: Ints,
    result: F64s,
) -> int:  # fmt: skip
    """Find the neighbours of nodes, until memory for them is full; returns how many nodes are done.

    Args:
        edges: the graph.
        t: index of the edge type.
        nodes: ``[num_nodes]`` seeds.
        alpha, eps: of the spec.
        top_k: limit of neighbours per node; -1: all.
        first: the node to begin with.
        begin: ``[num_nodes + 1]``, a result: where the neighbours of each node begin, from 0 for ``first``.
        node, result: ``[capacity]``: the neighbours, and their ranks.
    """
    colptr, row32, row64 = i64(edges[t].colptr, _ANY), i32(edges[t].row, _ANY), i64(edges[t].row, _ANY)
    wide = edges[t].row_wide > 0
    threshold = alpha * eps
    capacity, shift = 1024, 53  # nodes; there are 2 ** (64 - shift) slots, twice the capacity
    table = np.full(8 * capacity, -1, np.int64)
    value = table.view(np.float64)
    used, order = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    queue, later = np.empty(capacity, np.int64), np.empty(capacity, np.int64)  # the round, and the one after it
    begin[first] = 0
    for i in range(first, nodes.size):
        at = _slot_of(table, shift, nodes[i])
        table[at], value[at + 1], value[at + 2], value[at + 3] = nodes[i], alpha, np.inf, -1.0
        used[0], queue[0] = at, nodes[i]
        count, length, found = 1, 1, 0
        while length > 0:
            num_later = 0
            for j in range(length):
                u = queue[j]
                column = colptr[u]
                degree = colptr[u + 1] - column
                at = _slot_of(table, shift, u)
                mass = value[at + 1]
                value[at + 1], value[at + 2] = 0.0, threshold * degree
                if value[at + 3] < 0.0:
                    value[at + 3] = 0.0
                    order[found] = u
                    found += 1
                value[at + 3] += mass
                share = (1 - alpha) * mass / degree
                for position in range(column, column + degree):
                    v = row64[position] if wide else np.int64(row32[position])
                    at = _slot_of(table, shift, v)
                    if table[at] < 0:
                        if count == capacity:
                            table = _grown(table, shift, used)
                            value = table.view(np.float64)
                            capacity, shift = 2 * capacity, shift - 1
                            used, order = np.append(used, used), np.append(order, order)
                            queue, later = np.append(queue, queue), np.append(later, later)
                            at = _slot_of(table, shift, v)
                        table[at], value[at + 1], value[at + 3] = v, 0.0, -1.0
                        value[at + 2] = threshold * (colptr[v + 1] - colptr[v])
                        used[count] = at
                        count += 1
                    value[at + 1] += share
                    if value[at + 1] >= value[at + 2]:
                        value[at + 2] = np.inf
                        later[num_later] = v
                        num_later += 1
            queue, later, length = later, queue, num_later
        taken = found if top_k < 0 else min(found, top_k)
        fits = begin[i] + taken <= node.size
        if fits:
            rank, place = np.empty(found, np.float64), np.arange(found)
            for j in range(found):
                rank[j] = value[_slot_of(table, shift, order[j]) + 3]
            if top_k >= 0:
                _select(place, found, taken, rank, order)
            for j in range(taken):
                node[begin[i] + j], result[begin[i] + j] = order[place[j]], rank[place[j]]
            begin[i + 1] = begin[i] + taken
        for number in range(count):
            table[used[number]] = -1
        if not fits:
            return i - first
    return nodes.size - first
