"""LABOR, compiled: picks of the nodes of a hop, which the passes of the hop then read.

All frontier nodes use the same number for a neighbour. Its key has the hop and the neighbours' type.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels import edges_type, found_type, labor_type, mode_type, nodes_type
from manyhop.sampling.cpu.kernels.labor_column import (
    add_to_heap,
    edge_weights,
    equal_limit,
    find_chances,
    scale,
    shares,
    variates,
)
from manyhop.sampling.cpu.kernels.picks import count_positive, is_excluded
from manyhop.sampling.cpu.kernels.random import draw, fold, mix, unit
from manyhop.sampling.cpu.kernels.range import measure_columns_of
from manyhop.sampling.cpu.tables import SUM_BLOCK, Edges, Found, Ints, Labor, Labors, Modes, Nodes
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import bits_of, f32, f64, helper, i64, int64, kernel, prefetch, u32, u64, uint64, void

U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_LABOR = int(Use.LABOR)
_LINE = np.uint64(64)
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)  # larger than the bits of any float that counts
_AHEAD = 8  # columns


@helper
def _keys(key: U64s, labor: Labor, hop: int, node_type: int, out: U64s) -> None:
    """Fold the keys of the current and the next numbers, and of their exchange; ``key``: seed, epoch, group."""
    for i in range(2):
        k = fold(np.uint64(0), np.uint64(_LABOR))
        k = fold(fold(k, key[0]), key[1])
        k = fold(fold(k, key[2] + np.uint64(i)), np.uint64(node_type))
        out[i] = k if labor.same_in_hops > 0 else fold(k, np.uint64(hop))
    out[2] = mix(out[0])  # fold with -1


@helper
def _equal(r: U64s, k: int, picked: U64s) -> int:
    """Pick each entry with probability ``k / d``."""
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
    """Return the key of a weighted entry: the bits of a float that is not negative, which have its order."""
    return bits_of(unit(r) / weight) if weight > 0.0 else _NEVER


@helper
def _pick_again(labor: Labor, k: int, r: U64s, weight: F64s, weighted: bool, picked: U64s) -> int:
    """Pick with replacement: each of an entry's ``k`` keys that is among the smallest counts as a pick."""
    heap, size = u64(labor.scratch, k), 0
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
    edges: Edges, labor: Labor, k: int, t: int, start: np.uint64, weighted: bool, r: U64s, picked: U64s
) -> int:
    """Pick the entries of the ``k`` smallest keys, in stored order. Overwrites ``r``; ``picked`` fits all."""
    d, replace = r.size, labor.replace > 0 and k > 0
    weight = f64(edges[t].weight + 8 * np.int64(start), d) if weighted else f64(labor.share, d)
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
    heap, size = u64(labor.scratch, k), 0
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
    if m > k:  # of equal keys, earlier entries count as smaller
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
def _drop(edges: Edges, found: Found, t: int, picked: U64s, weights: npt.NDArray[np.float32]) -> int:
    """Drop excluded edges from the picks of a node; returns how many are left."""
    slots = i64(found[t].excluded, found[t].excluded_mask + 1)
    perm32, perm64 = u32(edges[t].perm, 1 << 62), i64(edges[t].perm, 1 << 62)
    kept = 0
    for j in range(picked.size):
        edge_id = np.int64(picked[j])
        if edges[t].perm != 0:
            edge_id = perm64[picked[j]] if edges[t].perm_wide > 0 else np.int64(perm32[picked[j]])
        picked[kept], weights[kept] = picked[j], weights[j]
        kept += 0 if is_excluded(slots, edge_id) else 1
    return kept


@helper
def _chances_of(
    edges: Edges, found: Found, labor: Labor, k: int, t: int, i: int, weighted: bool, a: F64s, chance: F64s, block: F64s
) -> None:
    """Compute share and probability of each entry of a column."""
    d = a.size
    start = np.int64(u64(found[t].start, i + 1)[i])
    if labor.importance == 0:
        shares(f64(edges[t].weight + 8 * start, d), block, a)
        n = count_positive(a)
        fanout = n if k < 0 else k
        c = scale(a, 1.0, a, n, fanout, np.float64(fanout), block)
        for q in range(d):
            chance[q] = c * a[q]
    else:
        first = i64(labor.entry_begin, i + 1)[i]
        entry, pi = u32(labor.entry + 4 * first, d), f64(labor.chances, 1 << 62)
        share = f64(labor.entry_share + 8 * first, d)
        for q in range(d):
            a[q] = share[q] if weighted else 1.0
        n = count_positive(a)
        fanout, c = n if k < 0 else k, f64(labor.scale, i + 1)[i]
        for q in range(d):
            chance[q] = c * pi[entry[q]] if a[q] > 0.0 else 0.0
    for q in range(d):
        certain = (fanout >= n or chance[q] >= 1.0) and a[q] > 0.0
        chance[q] = 1.0 if certain else chance[q]


@helper
def _pick_columns(
    edges: Edges, found: Found, labor: Labor, k: int, t: int, n: int, weighted: bool, keys: U64s, block: F64s
) -> bool:
    """Pick for the frontier of an edge type; false if there is no memory for the next column."""
    start, degree, take = u64(found[t].start, n), u32(found[t].degree, n), u32(found[t].take, n)
    row, width = np.uint64(edges[t].row), np.uint64(8 if edges[t].row_wide > 0 else 4)
    by_chance = labor.exact == 0 and (weighted or labor.importance != 0)
    weigh = labor.exact == 0 and (labor.weighted > 0 or labor.importance != 0)
    for i in range(labor.at_node, n):
        at, d = found[t].num_done + found[t].total, int(degree[i])
        most = max(d, k) if labor.replace > 0 else d
        if at + most > found[t].picked_capacity:
            labor.at_node = i
            return False
        ahead = row + width * start[min(i + _AHEAD, n - 1)]
        prefetch(ahead)
        prefetch(ahead + _LINE)
        picked, weights = u64(found[t].picked + 8 * at, most), f32(found[t].picked_weight + 4 * at, most)
        r = u64(labor.variate, d)
        variates(edges, t, start[i], keys, labor.dependency, labor.shift, r)
        if by_chance:
            a, chance = f64(labor.share, d), f64(labor.chance, d)
            _chances_of(edges, found, labor, k, t, i, weighted, a, chance, block)
            m = 0
            for q in range(d):
                picked[m] = q
                m += unit(r[q]) < chance[q]
            edge_weights(a, chance, picked[:m], block, weights[:m])
        else:
            if labor.exact > 0:
                m = _pick_exact(edges, labor, k, t, start[i], weighted, r, picked)
            else:
                m = _equal(r, k, picked)
            if weigh:
                for j in range(m):
                    weights[j] = 1.0
        for j in range(m):
            picked[j] += start[i]
        if found[t].num_excluded > 0:
            m = _drop(edges, found, t, picked[:m], weights)
        take[i] = m
        found[t].total += m
        found[t].most = max(found[t].most, m)
    return True


@kernel(void(edges_type, nodes_type, found_type, int64[::1]))
def measure_labor(edges: Edges, nodes: Nodes, found: Found, fanout: Ints) -> None:
    """Find the columns of the frontier; ``total`` and ``most`` are the sum and the maximum of their lengths."""
    for t in range(len(edges)):
        found[t].total = 0
        found[t].most = 0
        dst = edges[t].dst
        n = nodes[dst].end - nodes[dst].begin
        if fanout[t] == 0 or edges[t].num_edges == 0 or n == 0:
            continue
        measure_columns_of(edges, nodes, found, t)
        degree = u32(found[t].degree, n)
        total = most = np.int64(0)
        for i in range(n):
            total += np.int64(degree[i])
            most = max(most, np.int64(degree[i]))
        found[t].total, found[t].most = int(total), int(most)


@kernel(int64(edges_type, nodes_type, found_type, mode_type, labor_type, int64[::1], uint64[::1]))
def pick_labor(edges: Edges, nodes: Nodes, found: Found, modes: Modes, labors: Labors, fanout: Ints, key: U64s) -> int:
    """Pick for all edge types, beginning at ``at_type`` and ``at_node``, after ``measure_labor`` and with its memory.

    Fills ``take``, ``total``, ``most``, ``picked`` and, for probabilities that differ, ``picked_weight``.

    Returns:
        -1, or an edge type whose ``picked`` needs more memory: for the column of ``at_node`` at least.
    """
    mode, labor = modes[0], labors[0]
    keys, block = np.empty(3, np.uint64), np.empty(2 * SUM_BLOCK, np.float64)
    while labor.at_type < len(edges):
        t = labor.at_type
        n = nodes[edges[t].dst].end - nodes[edges[t].dst].begin
        if found[t].most > 0 or labor.at_node >= 0:
            _keys(key, labor, mode.hop, edges[t].src, keys)
            weighted = labor.weighted > 0 and edges[t].weight != 0
            if labor.at_node < 0:
                labor.at_node, found[t].total, found[t].most = 0, 0, 0
                if labor.importance != 0:
                    find_chances(edges, found, labor, fanout[t], t, n, weighted, block)
            if not _pick_columns(edges, found, labor, fanout[t], t, n, weighted, keys, block):
                return int(t)
        labor.at_type, labor.at_node = t + 1, -1
    return -1
