"""Neighbours by personalised PageRank, compiled: equal to the reference bit for bit.

What there is of a node is in one slot of a hash table that grows with the nodes a seed reaches, so that an edge reads
one cache line. A slot has four words: node (-1: empty); residual; limit, from which on the node is to be pushed,
infinite while it waits for that; rank, negative before its first push. ``value`` is the table as float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.records import edges_type
from manyhop.sampling.cpu.tables import Edges
from manyhop.system.numba_kernels import float64, helper, i32, i64, int64, kernel

_ANY = 1 << 62
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

Ints = npt.NDArray[np.int64]
F64s = npt.NDArray[np.float64]


@helper
def _slot_of(table: Ints, shift: int, node: np.int64) -> np.int64:
    """Where the slot of a node begins, or the one where it is to go."""
    at = np.int64((np.uint64(node) * _SPREAD) >> np.uint64(shift)) << 2
    while table[at] >= 0 and table[at] != node:
        at = (at + np.int64(4)) & np.int64(table.size - 1)
    return at


@helper
def _grown(table: Ints, shift: int, used: Ints) -> Ints:
    """A table of twice the size; ``used`` is where the slots in use begin."""
    larger = np.full(2 * table.size, -1, np.int64)
    for i in range(used.size):
        at = _slot_of(larger, shift - 1, table[used[i]])
        larger[at : at + 4] = table[used[i] : used[i] + 4]
        used[i] = at
    return larger


@helper
def _worse(rank: F64s, ids: Ints, a: int, b: int) -> bool:
    """Whether number ``a`` comes after ``b``: of a lower rank, or of the same and a higher id."""
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
    """Put the ``k`` best of the ``n`` numbers in ``order`` in front, the best first."""
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
        top_k: at most so many neighbours per node; -1: all.
        first: the node to begin with.
        begin: ``[num_nodes + 1]``, a result: where the neighbours of each node begin, from 0 for ``first``.
        node, result: ``[capacity]``: the neighbours, and their ranks.
    """
    colptr, row32, row64 = i64(edges[t].colptr, _ANY), i32(edges[t].row, _ANY), i64(edges[t].row, _ANY)
    wide = edges[t].row_wide > 0
    threshold = alpha * eps
    capacity, shift = 1024, 53  # nodes; 2 ** (64 - shift), twice as many, is the number of slots
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
