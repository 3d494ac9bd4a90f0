"""LABOR in one column, compiled: the numbers of its neighbours, the scale of their probabilities, the smallest keys.

The same operations in the same order as in ``reference.labor_picks``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.picks import count_positive
from manyhop.sampling.cpu.kernels.random import below, draw, mix
from manyhop.sampling.cpu.tables import ROUNDS, SUM_BLOCK, Edges, Found, Labor
from manyhop.system.numba_kernels import f64, helper, i64, u32, u64

U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_ONE, _HALF = np.uint64(1), np.uint64(32)
_SMALLEST_SHARE = 2.0**-512


@helper
def variates(edges: Edges, t: int, start: np.uint64, keys: U64s, dependency: int, shift: int, out: U64s) -> None:
    """Compute the numbers of a column's neighbours; ``keys``: current, next, and of their exchange."""
    if edges[t].row_wide > 0:
        row64 = u64(edges[t].row + 8 * np.int64(start), out.size)
        for q in range(out.size):
            out[q] = row64[q]
    else:
        row32 = u32(edges[t].row + 4 * np.int64(start), out.size)
        for q in range(out.size):
            out[q] = row32[q]
    if shift == 0:
        key = keys[0]
        for q in range(out.size):
            out[q] = draw(key, out[q])
    else:
        for q in range(out.size):
            switched = below(draw(keys[2], out[q]), np.uint64(dependency)) < np.uint64(shift)
            out[q] = draw(keys[1] if switched else keys[0], out[q])


@helper
def equal_limit(d: int, k: int) -> np.uint64:
    """Return the limit of draws with ``below(r, d) < k``, for ``0 < k < d``: k / d * 2^64, rounded up."""
    n, high = np.uint64(d), np.uint64(k) << _HALF
    upper, rest = high // n, (high % n) << _HALF
    return (upper << _HALF) + rest // n + (_ONE if rest % n > np.uint64(0) else np.uint64(0))


@helper
def _tree(x: F64s, n: int) -> float:
    """Return the sum of a block's first ``n`` numbers, and overwrite them: add halves until one number is left."""
    half = 1
    while half < n:
        half *= 2
    for i in range(n, half):
        x[i] = 0.0
    while half > 16:
        half >>= 1
        low, high = x[:half], x[half : 2 * half]
        for i in range(half):
            low[i] += high[i]
    while half > 1:
        half >>= 1
        for i in range(half):
            x[i] += x[half + i]
    return float(x[0])


@helper
def shares(weight: F64s, block: F64s, out: F64s) -> None:
    """Compute each entry's share of its column's weight."""
    total = 0.0
    for begin in range(0, weight.size, SUM_BLOCK):
        m = min(SUM_BLOCK, weight.size - begin)
        for q in range(m):
            block[q] = weight[begin + q]
        total += _tree(block, m)
    for q in range(weight.size):
        out[q] = max(weight[q] / total, _SMALLEST_SHARE) if weight[q] > 0.0 else 0.0


@helper
def scale(a: F64s, total: float, pi: F64s, n: int, k: int, before: float, block: F64s) -> float:
    """Return the factor of ``pi`` for the probabilities.

    Args:
        n: entries of positive weight.
        block: scratch memory, ``[2 * SUM_BLOCK]``.
    """
    if n == 0:
        return before
    if k >= n:
        smallest = np.inf
        for q in range(a.size):
            if a[q] > 0.0:
                smallest = min(smallest, pi[q])
        return max(before, 1.0 / smallest)
    spare = total * total * np.float64(n - k) / (np.float64(k) * np.float64(n))
    low, high = block[:SUM_BLOCK], block[SUM_BLOCK : 2 * SUM_BLOCK]
    c, count, uncertain = 0.0, 0, n
    for _ in range(ROUNDS):
        linear = square = 0.0
        for begin in range(0, a.size, SUM_BLOCK):
            m = min(SUM_BLOCK, a.size - begin)
            mine, chance = a[begin : begin + m], pi[begin : begin + m]
            for q in range(m):
                counts = (mine[q] > 0.0) & (c * chance[q] < 1.0)
                squared = mine[q] * mine[q]
                low[q] = squared / chance[q] if counts else 0.0
                high[q] = squared if counts else 0.0
            linear += _tree(low, m)
            square += _tree(high, m)
        c, count, uncertain = linear / (spare + square), uncertain, 0
        for q in range(a.size):
            uncertain += (a[q] > 0.0) & (c * pi[q] < 1.0)
        if uncertain in (0, count):
            break
    return c


@helper
def edge_weights(a: F64s, chance: F64s, entries: U64s, block: F64s, out: npt.NDArray[np.float32]) -> None:
    """Compute the weight of each of the picked ``entries`` in a mean."""
    total = 0.0
    for begin in range(0, entries.size, SUM_BLOCK):
        m = min(SUM_BLOCK, entries.size - begin)
        for j in range(m):
            q = entries[begin + j]
            block[j] = a[q] / chance[q]
        total += _tree(block, m)
    for j in range(entries.size):
        q = entries[j]
        out[j] = a[q] / chance[q] * np.float64(entries.size) / total


@helper
def add_to_heap(heap: U64s, size: int, key: np.uint64) -> int:
    """Keep the smallest keys, as many as the heap holds, the largest of them first; returns their number."""
    if size < heap.size:
        at = size
        while at > 0 and heap[(at - 1) >> 1] < key:
            heap[at] = heap[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap[at] = key
        return size + 1
    if key < heap[0]:
        at, child = 0, 1
        while child < size:
            if child + 1 < size and heap[child + 1] > heap[child]:
                child += 1
            if heap[child] <= key:
                break
            heap[at] = heap[child]
            at, child = child, 2 * child + 1
        heap[at] = key
    return size


# LABOR-i, compiled: the probabilities that depend on all nodes that ask.
#
# The columns of an edge type are gathered first: distinct neighbours are numbered, so that rounds work in arrays of
# their size.

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_CONVERGED = 10_000
_UNIT = 2.0**30


@helper
def _number_neighbors(edges: Edges, found: Found, labor: Labor, t: int, n: int) -> int:
    """Number the distinct neighbours of all columns, and write that of each entry; returns how many they are."""
    start, degree = u64(found[t].start, n), u32(found[t].degree, n)
    first, entry = i64(labor.entry_begin, n), u32(labor.entry, 1 << 62)
    row32, row64, wide = u32(edges[t].row, 1 << 62), u64(edges[t].row, 1 << 62), edges[t].row_wide > 0
    mask = np.uint64(labor.numbers_mask)
    slots = u64(labor.numbers, 2 * (labor.numbers_mask + 1))
    slots[:] = 0
    x, distinct = 0, 0
    for i in range(n):
        first[i] = x
        for p in range(start[i], start[i] + np.uint64(degree[i])):
            node = (row64[p] if wide else np.uint64(row32[p])) + _ONE
            at = mix(node) & mask
            while slots[at << _ONE] != _ZERO and slots[at << _ONE] != node:
                at = (at + _ONE) & mask
            if slots[at << _ONE] == _ZERO:
                slots[at << _ONE], slots[at << _ONE | _ONE] = node, distinct
                distinct += 1
            entry[x] = slots[at << _ONE | _ONE]
            x += 1
    return distinct


@helper
def find_chances(edges: Edges, found: Found, labor: Labor, k: int, t: int, n: int, weighted: bool, block: F64s) -> None:
    """Compute LABOR-i's factor ``pi`` of each neighbour, and the scale of each column."""
    degree, c = u32(found[t].degree, n), f64(labor.scale, n)
    first, entry, share = i64(labor.entry_begin, n), u32(labor.entry, 1 << 62), f64(labor.entry_share, 1 << 62)
    of_column = f64(labor.chance, 1 << 62)
    num_distinct = _number_neighbors(edges, found, labor, t, n)
    pi, factor = f64(labor.chances, num_distinct), f64(labor.factor, num_distinct)
    for i in range(n):
        d = int(degree[i])
        a = share[first[i] : first[i] + d]
        if weighted:
            start = np.int64(u64(found[t].start, n)[i])
            shares(f64(edges[t].weight + 8 * start, d), block, a)
            m = count_positive(a)
            fanout = m if k < 0 else k
            c[i] = scale(a, 1.0, a, m, fanout, np.float64(fanout), block)
        else:
            a[:] = 1.0
            c[i] = np.float64(d if k < 0 else k) / np.float64(max(d, 1))
    before, turn = 0, 0
    pi[:] = 1.0
    while labor.importance < 0 or turn < labor.importance:
        factor[:] = 0.0
        for i in range(n):
            for x in range(first[i], first[i] + np.int64(degree[i])):
                if share[x] > 0.0:
                    grown = c[i] * share[x] if weighted and turn == 0 else c[i]
                    factor[entry[x]] = max(factor[entry[x]], grown)
        expected = 0
        for u in range(num_distinct):
            pi[u] *= factor[u]
            expected += int(min(pi[u], 1.0) * _UNIT)
        for i in range(n):
            d = int(degree[i])
            a, mine = share[first[i] : first[i] + d], of_column[:d]
            for q in range(d):
                mine[q] = pi[entry[first[i] + q]]
            m = count_positive(a)
            c[i] = scale(a, 1.0 if weighted else np.float64(d), mine, m, m if k < 0 else k, c[i], block)
        if turn > 0 and expected >= before - before // _CONVERGED:
            break
        before = expected
        turn += 1
