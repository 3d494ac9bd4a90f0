"""Neighbours by personalised PageRank, compiled: equal to the reference bit for bit.

The nodes that a seed reaches are numbered in the order in which they are met, by a hash table that grows with them;
their rank and residual are in arrays by that number.
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
def _slot_of(slots: Ints, shift: int, ids: Ints, node: int) -> int:
    """The slot of a node: of its number, or empty (-1)."""
    at = np.int64((np.uint64(node) * _SPREAD) >> np.uint64(shift))
    while slots[at] >= 0 and ids[slots[at]] != node:
        at = (at + 1) & (slots.size - 1)
    return at


@helper
def _grown(slots: Ints, shift: int, ids: Ints, slot: Ints) -> Ints:
    """A table of twice the size; ``slot`` becomes that of each number."""
    larger = np.full(2 * slots.size, -1, np.int64)
    for number in range(ids.size):
        at = _slot_of(larger, shift - 1, ids, ids[number])
        larger[at] = number
        slot[number] = at
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
    """Put the ``k`` best of the first ``n`` of ``order`` in front, the best first."""
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
    value: F64s,
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
        node, value: ``[capacity]``, the results.
    """
    colptr, row32, row64 = i64(edges[t].colptr, _ANY), i32(edges[t].row, _ANY), i64(edges[t].row, _ANY)
    wide = edges[t].row_wide > 0
    threshold = alpha * eps
    capacity, shift = 1024, 53  # half of the slots, of which there are 2 ** (64 - shift)
    slots = np.full(2 * capacity, -1, np.int64)
    ids, slot = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    order = np.empty(capacity, np.int64)
    queue, later = np.empty(capacity, np.int64), np.empty(capacity, np.int64)  # the round, and the one after it
    rank, residual = np.empty(capacity, np.float64), np.empty(capacity, np.float64)
    waits, ranked = np.empty(capacity, np.bool_), np.empty(capacity, np.bool_)
    begin[first] = 0
    for i in range(first, nodes.size):
        at = _slot_of(slots, shift, ids, nodes[i])
        slots[at] = 0
        ids[0], slot[0], rank[0], residual[0], waits[0], ranked[0] = nodes[i], at, 0.0, alpha, True, False
        count, length, found = 1, 1, 0
        queue[0] = 0
        while length > 0:
            num_later = 0
            for j in range(length):
                u = queue[j]
                mass = residual[u]
                residual[u], waits[u] = 0.0, False
                if not ranked[u]:
                    ranked[u] = True
                    order[found] = u
                    found += 1
                rank[u] += mass
                column = colptr[ids[u]]
                degree = colptr[ids[u] + 1] - column
                for position in range(column, column + degree):
                    neighbor = row64[position] if wide else np.int64(row32[position])
                    at = _slot_of(slots, shift, ids, neighbor)
                    v = slots[at]
                    if v < 0:
                        if count == capacity:
                            slots = _grown(slots, shift, ids, slot)
                            capacity, shift = 2 * capacity, shift - 1
                            ids, slot, order = np.append(ids, ids), np.append(slot, slot), np.append(order, order)
                            queue, later = np.append(queue, queue), np.append(later, later)
                            rank, residual = np.append(rank, rank), np.append(residual, residual)
                            waits, ranked = np.append(waits, waits), np.append(ranked, ranked)
                            at = _slot_of(slots, shift, ids, neighbor)
                        v = count
                        slots[at] = v
                        ids[v], slot[v], rank[v], residual[v] = neighbor, at, 0.0, 0.0
                        waits[v], ranked[v] = False, False
                        count += 1
                    residual[v] += (1 - alpha) * mass / degree
                    if not waits[v] and residual[v] >= threshold * (colptr[neighbor + 1] - colptr[neighbor]):
                        waits[v] = True
                        later[num_later] = v
                        num_later += 1
            queue, later, length = later, queue, num_later
        for number in range(count):
            slots[slot[number]] = -1
        taken = found if top_k < 0 else min(found, top_k)
        if begin[i] + taken > node.size:
            return i - first
        if top_k >= 0:
            _select(order, found, taken, rank, ids)
        for j in range(taken):
            node[begin[i] + j], value[begin[i] + j] = ids[order[j]], rank[order[j]]
        begin[i + 1] = begin[i] + taken
    return nodes.size - first
