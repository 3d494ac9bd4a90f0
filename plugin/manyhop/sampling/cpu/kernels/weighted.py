"""Second pass of a hop with weights: the draws of the nodes of a chunk, looked up in alias tables.

The draws of a node precede its look-ups by some nodes, so that its entries can be prefetched.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.picks import all_positive, count_positive, without_replacement
from manyhop.sampling.cpu.kernels.random import below_with_fraction, draw, mix
from manyhop.sampling.cpu.tables import BLOCK, DRAWS, REPEATS, VECTOR_FANOUT, Edges, Mode
from manyhop.sampling.random import GAMMA
from manyhop.system.numba_kernels import f64, helper, i64, prefetch, u32, u64

U32s = npt.NDArray[np.uint32]
U64s = npt.NDArray[np.uint64]

_ZERO, _ONE, _EIGHT, _HALF, _LOW = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(32), np.uint64(0xFFFFFFFF)
_NODES_AHEAD = 8
_SMALL = 64  # columns up to this length: which entries are picked fits the bits of one number


@helper
def _look_up(table: U64s, x: np.uint64) -> np.uint64:
    """Return the entry of a column: that in the upper half of ``x``, or its alias."""
    entry = table[x >> _HALF]
    return x >> _HALF if x & _LOW < entry >> _HALF else entry & _LOW


@helper
def find(table: U64s, r: np.uint64) -> np.uint64:
    """Return the entry of a column that a draw finds in its alias table."""
    return _look_up(table, below_with_fraction(r, np.uint64(table.size)))


_pick_one_by_one = without_replacement(find)


@helper
def pick_weighted(
    edges: Edges, t: int, mode: Mode, node: U64s, start: U64s, degree: U32s, take: U32s, k: int, replace: bool,
    first_id: int,
) -> int:  # fmt: skip
    """Pick a chunk by weight; return the number of picks."""
    w, at_once = start.size, 0 < k <= VECTOR_FANOUT
    in_time = mode.temporal > 0 and edges[t].time != 0  # ranges are parts of columns
    dst_node, positive = u32(mode.dst_node, 1 << 62), i64(edges[t].positive, 1 << 62)
    # List the nodes that draw, and the nodes that pick all entries of positive weight, without a branch per node.
    chooser, taker, at = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    m = num_choosers = num_takers = 0
    for i in range(w):
        chooser[num_choosers], taker[num_takers], at[i] = i, i, m
        p = np.int64(degree[i])
        if edges[t].positive != 0:
            p = positive[node[i]]
            if in_time:
                p = np.int64(count_positive(f64(edges[t].weight + 8 * np.int64(start[i]), degree[i])))
        chooses = np.int64(k > 0) & np.int64(p > (0 if replace else k))
        num_choosers += chooses
        num_takers += 1 - chooses
        for j in range(k if at_once else np.int64(take[i])):
            dst_node[m + j] = first_id + i  # beyond its picks: the next node overwrites it
        m += np.int64(take[i])
    _take_all(edges, t, mode, taker[:num_takers], at, start, degree, take, k if at_once else 0)
    if at_once and not in_time:
        _choose_at_once(edges, t, mode, chooser[:num_choosers], at, start, degree, k, replace)
    else:
        _choose(edges, t, mode, chooser[:num_choosers], at, node, start, degree, k, replace)
    return m


@helper
def _take_all(
    edges: Edges, t: int, mode: Mode, who: U32s, at: U32s, start: U64s, degree: U32s, take: U32s, width: int
) -> None:
    """Pick all entries of positive weight. Writes ``width`` positions or more; the next node overwrites the rest."""
    position = u64(mode.position, 1 << 62)
    for i in who:
        mine, s = position[at[i] :], start[i]
        if take[i] == degree[i]:
            for j in range(width if width > 0 else np.int64(take[i])):
                mine[j] = s + np.uint64(j)
        else:
            all_positive(f64(edges[t].weight + 8 * np.int64(s), degree[i]), mine[: take[i]])
            for j in range(take[i]):
                mine[j] += s


@helper
def _choose(
    edges: Edges, t: int, mode: Mode, who: U32s, at: U32s, node: U64s, start: U64s, degree: U32s, k: int, replace: bool
) -> None:
    """Pick large fanouts, and from ranges, by the alias tables of whole columns; draws outside a range are repeated."""
    position, key, colptr = u64(mode.position, 1 << 62), u64(mode.key, BLOCK), u64(edges[t].colptr, 1 << 62)
    for i in who:
        begin, mine = colptr[node[i]], position[at[i] : np.int64(at[i]) + k]
        table = u64(edges[t].alias + 8 * np.int64(begin), np.int64(colptr[node[i] + _ONE] - begin))
        weight = f64(edges[t].weight + 8 * np.int64(start[i]), degree[i])
        _pick_one_by_one(mode, table, start[i] - begin, weight, key[i], mine, replace)
        for j in range(k):
            mine[j] += start[i]


@helper
def _choose_at_once(
    edges: Edges, t: int, mode: Mode, who: U32s, at: U32s, start: U64s, degree: U32s, k: int, replace: bool
) -> None:
    """Pick small fanouts. Without replacement, a few more draws than needed are prepared."""
    position, key = u64(mode.position, 1 << 62), u64(mode.key, BLOCK)
    n = (k + (7 if replace else 9)) // 8 * 8
    drawn, found = u64(mode.draw, DRAWS), u64(mode.found, 2 * VECTOR_FANOUT)
    for ahead in range(who.size + _NODES_AHEAD):
        if ahead < who.size:
            i = who[ahead]
            column = np.uint64(edges[t].alias) + _EIGHT * start[i]
            _draw_ahead(column, key[i], np.uint64(degree[i]), drawn[ahead * n : (ahead + 1) * n], k if replace else n)
        x = ahead - _NODES_AHEAD
        if x < 0:
            continue
        i, draws = who[x], drawn[x * n : (x + 1) * n]
        s, d, mine = np.int64(start[i]), np.int64(degree[i]), position[at[i] : np.int64(at[i]) + k]
        table = u64(edges[t].alias + 8 * s, d)
        if replace:
            for j in range(k):
                found[j] = _look_up(table, draws[j])
        elif not _first_distinct(table, draws, key[i], found, k):
            _pick_one_by_one(mode, table, _ZERO, f64(edges[t].weight + 8 * s, d), key[i], found[:k], False)
        for j in range(k):
            mine[j] = start[i] + found[j]


@helper
def _draw_ahead(column: np.uint64, key: np.uint64, d: np.uint64, out: U64s, n: int) -> None:
    """Write the first draws of a node, as entries and fractions; prefetch the n entries that are needed first."""
    for first in range(0, out.size, 8):
        eight = out[first : first + 8]
        for j in range(8):
            eight[j] = below_with_fraction(mix(key + GAMMA * np.uint64(first + j + 1)), d)
    for j in range(n):
        prefetch(column + _EIGHT * (out[j] >> _HALF))


@helper
def _first_distinct(table: U64s, draws: U64s, key: np.uint64, out: U64s, k: int) -> bool:
    """Pick the first k distinct entries among fewer than ``k + REPEATS`` draws; return whether there are enough."""
    if table.size > _SMALL:
        same = 0
        for j in range(k):
            out[j] = _look_up(table, draws[j])
        for j in range(k):
            for x in range(j):
                same += out[x] == out[j]
        return same == 0
    slot, picked = 0, np.uint64(0)
    for j in range(draws.size):  # without a branch
        q = _look_up(table, draws[j])
        out[slot] = q
        slot += np.int64(~(picked >> q) & _ONE)
        picked |= _ONE << q
    t = draws.size
    while slot < k and t < k + REPEATS - 1:
        q = find(table, draw(key, np.uint64(t)))
        out[slot] = q
        slot += np.int64(~(picked >> q) & _ONE)
        picked |= _ONE << q
        t += 1
    return slot >= k
