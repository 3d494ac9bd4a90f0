"""LABOR, compiled: what the nodes of a hop pick, before the passes of the hop, which then take it as it is.

Nodes that ask share a number per neighbour, whose key is that of the hop and of the neighbours' type.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.exclude import is_excluded
from manyhop.sampling.cpu.kernels.labor_column import (
    add_to_heap,
    count_positive,
    edge_weights,
    equal_limit,
    scale,
    shares,
    variates,
)
from manyhop.sampling.cpu.kernels.labor_importance import find_chances
from manyhop.sampling.cpu.kernels.random import draw, fold, mix, unit
from manyhop.sampling.cpu.kernels.range import measure_columns_of
from manyhop.sampling.cpu.tables import (
    AT_NODE,
    AT_TYPE,
    BEGIN,
    CHANCE,
    CHANCES,
    DEGREE,
    DEPENDENCY,
    DST,
    END,
    ENTRY,
    ENTRY_BEGIN,
    ENTRY_SHARE,
    EXACT,
    EXCLUDED,
    EXCLUDED_MASK,
    HOP,
    IMPORTANCE,
    LABOR_REPLACE,
    LABOR_WEIGHTED,
    MOST,
    NUM_DONE,
    NUM_EDGES,
    NUM_EXCLUDED,
    PERM,
    PERM_WIDE,
    PICKED,
    PICKED_ROOM,
    PICKED_WEIGHT,
    ROW,
    ROW_WIDE,
    SAME_IN_HOPS,
    SCALE,
    SCRATCH,
    SHARE,
    SHIFT,
    SRC,
    START,
    SUM_BLOCK,
    TAKE,
    TOTAL,
    VARIATE,
    WEIGHT,
)
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import bits_of, f32, f64, helper, i64, kernel, prefetch, u32, u64

Table = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_LABOR = int(Use.LABOR)
_LINE = np.uint64(64)
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)  # larger than the bits of any float that counts
_AHEAD = 8  # columns
_TABLE = "int64[:,::1]"


@helper
def _keys(key: U64s, labor: Table, hop: int, node_type: int, out: U64s) -> None:
    """Of the numbers of now, of the next batches, of when they take over; ``key``: seed, epoch, group of batches."""
    for i in range(2):
        k = fold(np.uint64(0), np.uint64(_LABOR))
        k = fold(fold(k, key[0]), key[1])
        k = fold(fold(k, key[2] + np.uint64(i)), np.uint64(node_type))
        out[i] = k if labor[SAME_IN_HOPS] > 0 else fold(k, np.uint64(hop))
    out[2] = mix(out[0])  # fold with -1


@helper
def _equal(r: U64s, k: int, picked: U64s) -> int:
    """Each entry with the probability ``k / d``."""
    m = 0
    if k < 0 or k >= r.size:
        for q in range(r.size):
            picked[q] = q
        return r.size
    limit = equal_limit(r.size, k)
    for q in range(r.size):
        picked[m] = q
        m += r[q] < limit
    return m


@helper
def _weighted_key(r: np.uint64, weight: float) -> np.uint64:
    """The key of a weighted entry: the bits of a float that is not negative, which have its order."""
    return bits_of(unit(r) / weight) if weight > 0.0 else _NEVER


@helper
def _pick_again(labor: Table, k: int, r: U64s, weight: F64s, weighted: bool, picked: U64s) -> int:
    """With replacement: each entry has ``k`` keys, and is picked as often as they are among the smallest."""
    heap, size = u64(labor[SCRATCH], k), 0
    for q in range(r.size):
        for j in range(k):
            key = draw(r[q], np.uint64(j))
            size = add_to_heap(heap, size, _weighted_key(key, weight[q]) if weighted else key)
    largest, ties, m = heap[0], k, 0
    for j in range(k):
        ties -= heap[j] < largest
    for q in range(r.size):
        for j in range(k):
            key = draw(r[q], np.uint64(j))
            key = _weighted_key(key, weight[q]) if weighted else key
            if key < largest or (key == largest and ties > 0):
                picked[m] = q
                m += 1
                ties -= key == largest
    return m


@helper
def _pick_exact(
    edges: Table, labor: Table, k: int, t: int, start: np.uint64, weighted: bool, r: U64s, picked: U64s
) -> int:
    """The entries of the ``k`` smallest keys, in stored order. ``picked`` has room for all; ``r`` is lost."""
    d, replace = r.size, labor[LABOR_REPLACE] > 0 and k > 0
    weight = f64(edges[t, WEIGHT] + 8 * np.int64(start), d) if weighted else f64(labor[SHARE], d)
    n = count_positive(weight) if weighted else d
    if k < 0 or n == 0 or (not replace and k >= n):
        m = 0
        for q in range(d):
            picked[m] = q
            m += 1 if not weighted or weight[q] > 0.0 else 0
        return m
    if replace:
        return _pick_again(labor, k, r, weight, weighted, picked)
    if weighted:
        for q in range(d):
            r[q] = _weighted_key(r[q], weight[q])
    heap, size = u64(labor[SCRATCH], k), 0
    for q in range(k):
        size = add_to_heap(heap, size, r[q])
    largest = heap[0]
    for q in range(k, d):
        if r[q] < largest:
            add_to_heap(heap, k, r[q])
            largest = heap[0]
    m = 0
    for q in range(d):
        picked[m] = q
        m += r[q] <= largest
    if m > k:  # equal keys, of which the earlier entries have smaller ones
        ties = k
        for j in range(k):
            ties -= heap[j] < largest
        m = 0
        for q in range(d):
            if r[q] < largest or (r[q] == largest and ties > 0):
                picked[m] = q
                m += 1
                ties -= r[q] == largest
    return m


@helper
def _drop(edges: Table, found: Table, t: int, picked: U64s, weights: npt.NDArray[np.float32]) -> int:
    """Drop excluded edges from the picks of a node; returns how many are left."""
    slots = i64(found[t, EXCLUDED], found[t, EXCLUDED_MASK] + 1)
    perm32, perm64 = u32(edges[t, PERM], 1 << 62), i64(edges[t, PERM], 1 << 62)
    kept = 0
    for j in range(picked.size):
        edge_id = np.int64(picked[j])
        if edges[t, PERM] != 0:
            edge_id = perm64[picked[j]] if edges[t, PERM_WIDE] > 0 else np.int64(perm32[picked[j]])
        picked[kept], weights[kept] = picked[j], weights[j]
        kept += 0 if is_excluded(slots, edge_id) else 1
    return kept


@helper
def _chances_of(
    edges: Table,
    found: Table,
    labor: Table,
    k: int,
    t: int,
    i: int,
    weighted: bool,
    a: F64s,
    chance: F64s,
    block: F64s,
) -> None:
    """The shares of the entries of a column, and the probability of each."""
    d = a.size
    start = np.int64(u64(found[t, START], i + 1)[i])
    if labor[IMPORTANCE] == 0:
        shares(f64(edges[t, WEIGHT] + 8 * start, d), block, a)
        n = count_positive(a)
        fanout = n if k < 0 else k
        c = scale(a, 1.0, a, n, fanout, np.float64(fanout), block)
        for q in range(d):
            chance[q] = c * a[q]
    else:
        first = i64(labor[ENTRY_BEGIN], i + 1)[i]
        entry, pi = u32(labor[ENTRY] + 4 * first, d), f64(labor[CHANCES], 1 << 62)
        share = f64(labor[ENTRY_SHARE] + 8 * first, d)
        for q in range(d):
            a[q] = share[q] if weighted else 1.0
        n = count_positive(a)
        fanout, c = n if k < 0 else k, f64(labor[SCALE], i + 1)[i]
        for q in range(d):
            chance[q] = c * pi[entry[q]] if a[q] > 0.0 else 0.0
    for q in range(d):
        certain = (fanout >= n or chance[q] >= 1.0) and a[q] > 0.0
        chance[q] = 1.0 if certain else chance[q]


@helper
def _pick_columns(
    edges: Table,
    found: Table,
    labor: Table,
    k: int,
    t: int,
    n: int,
    weighted: bool,
    keys: U64s,
    block: F64s,
) -> bool:
    """Pick for the frontier of an edge type; false if there is no room for the next column."""
    start, degree, take = u64(found[t, START], n), u32(found[t, DEGREE], n), u32(found[t, TAKE], n)
    row, width = np.uint64(edges[t, ROW]), np.uint64(8 if edges[t, ROW_WIDE] > 0 else 4)
    by_chance = labor[EXACT] == 0 and (weighted or labor[IMPORTANCE] != 0)
    weigh = labor[EXACT] == 0 and (labor[LABOR_WEIGHTED] > 0 or labor[IMPORTANCE] != 0)
    for i in range(labor[AT_NODE], n):
        at, d = found[t, NUM_DONE] + found[t, TOTAL], int(degree[i])
        most = max(d, k) if labor[LABOR_REPLACE] > 0 else d
        if at + most > found[t, PICKED_ROOM]:
            labor[AT_NODE] = i
            return False
        ahead = row + width * start[min(i + _AHEAD, n - 1)]
        prefetch(ahead)
        prefetch(ahead + _LINE)
        picked, weights = u64(found[t, PICKED] + 8 * at, most), f32(found[t, PICKED_WEIGHT] + 4 * at, most)
        r = u64(labor[VARIATE], d)
        variates(edges, t, start[i], keys, labor[DEPENDENCY], labor[SHIFT], r)
        if by_chance:
            a, chance = f64(labor[SHARE], d), f64(labor[CHANCE], d)
            _chances_of(edges, found, labor, k, t, i, weighted, a, chance, block)
            m = 0
            for q in range(d):
                picked[m] = q
                m += unit(r[q]) < chance[q]
            edge_weights(a, chance, picked[:m], block, weights[:m])
        else:
            if labor[EXACT] > 0:
                m = _pick_exact(edges, labor, k, t, start[i], weighted, r, picked)
            else:
                m = _equal(r, k, picked)
            if weigh:
                for j in range(m):
                    weights[j] = 1.0
        for j in range(m):
            picked[j] += start[i]
        if found[t, NUM_EXCLUDED] > 0:
            m = _drop(edges, found, t, picked[:m], weights)
        take[i] = m
        found[t, TOTAL] += m
        found[t, MOST] = max(found[t, MOST], m)
    return True


@kernel(f"void({_TABLE}, {_TABLE}, {_TABLE}, int64[::1])")
def measure_labor(edges: Table, nodes: Table, found: Table, fanout: Table) -> None:
    """Find the columns of the frontier; ``TOTAL`` and ``MOST`` are the sum and the maximum of their lengths."""
    for t in range(edges.shape[0]):
        found[t, TOTAL] = 0
        found[t, MOST] = 0
        dst = edges[t, DST]
        n = nodes[dst, END] - nodes[dst, BEGIN]
        if fanout[t] == 0 or edges[t, NUM_EDGES] == 0 or n == 0:
            continue
        measure_columns_of(edges, nodes, found, t)
        degree = u32(found[t, DEGREE], n)
        total = most = np.int64(0)
        for i in range(n):
            total += np.int64(degree[i])
            most = max(most, np.int64(degree[i]))
        found[t, TOTAL], found[t, MOST] = total, most


@kernel(f"int64({_TABLE}, {_TABLE}, {_TABLE}, int64[::1], int64[::1], int64[::1], uint64[::1])")
def pick_labor(edges: Table, nodes: Table, found: Table, mode: Table, labor: Table, fanout: Table, key: U64s) -> int:
    """Pick for all edge types, from ``AT_TYPE`` and ``AT_NODE`` on; first, ``measure_labor`` and room for its results.

    Fills ``TAKE``, ``TOTAL``, ``MOST``, ``PICKED`` and, for probabilities that differ, ``PICKED_WEIGHT``.

    Returns:
        -1, or an edge type whose ``PICKED`` needs more room: for the column of ``AT_NODE`` at least.
    """
    keys, block = np.empty(3, np.uint64), np.empty(2 * SUM_BLOCK, np.float64)
    while labor[AT_TYPE] < edges.shape[0]:
        t = labor[AT_TYPE]
        n = nodes[edges[t, DST], END] - nodes[edges[t, DST], BEGIN]
        if found[t, MOST] > 0 or labor[AT_NODE] >= 0:
            _keys(key, labor, mode[HOP], edges[t, SRC], keys)
            weighted = labor[LABOR_WEIGHTED] > 0 and edges[t, WEIGHT] != 0
            if labor[AT_NODE] < 0:
                labor[AT_NODE], found[t, TOTAL], found[t, MOST] = 0, 0, 0
                if labor[IMPORTANCE] != 0:
                    find_chances(edges, found, labor, fanout[t], t, n, weighted, block)
            if not _pick_columns(edges, found, labor, fanout[t], t, n, weighted, keys, block):
                return int(t)
        labor[AT_TYPE], labor[AT_NODE] = t + 1, -1
    return -1
