"""Second pass of a hop with weights: the draws of a block of nodes at once, searched in the running sums.

Small columns are searched by six steps without a branch; large ones inside a window around the entry where even weights
would put the draw. Memory is asked for before it is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling._cpu_compile import f64, helper, i64, prefetch, u32, u64
from manyhop.sampling._cpu_picks import add_to_set, is_in_set, new_set
from manyhop.sampling._cpu_random import draw, mix, unit
from manyhop.sampling._cpu_tables import (
    ASKER,
    BLOCK,
    CUMW,
    FOUND,
    KEY,
    NUM_POSITIVE,
    PICK_STRIDE,
    POSITION,
    POSITIVE,
    REPEATS,
    TARGET,
    UNIT,
    VECTOR_FANOUT,
)
from manyhop.sampling._random import GAMMA

Table = npt.NDArray[np.int64]
U32s = npt.NDArray[np.uint32]
U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_ONE, _EIGHT, _HALF_LINE = np.uint64(1), np.uint64(8), np.uint64(32)
_NODES_AHEAD = 12
_SMALL = 64  # columns up to this length: which entries are picked fits the bits of one number


@helper
def pick_weighted(
    edges: Table,
    t: int,
    mode: Table,
    node: U64s,
    start: U64s,
    degree: U32s,
    take: U32s,
    k: int,
    replace: bool,
    first_id: int,
) -> int:
    """Weighted picks of a chunk; returns their number."""
    w = start.size
    key, position, asker = u64(mode[KEY], w), u64(mode[POSITION], 1 << 62), u32(mode[ASKER], 1 << 62)
    units, at_once = f64(mode[UNIT], PICK_STRIDE * 2 * VECTOR_FANOUT), 0 <= k <= VECTOR_FANOUT
    spare = 0 if replace else 2 + k // 4  # draws for those that hit a picked entry
    num_positive, found = u32(mode[NUM_POSITIVE], BLOCK), u64(mode[FOUND], 2 * VECTOR_FANOUT)
    target = f64(mode[TARGET], 2 * VECTOR_FANOUT)
    _count_positive(edges, t, node, degree, num_positive)
    if at_once:
        _draw_block(mode, w, k + spare)
    m = 0
    for i in range(w):
        soon = min(i + _NODES_AHEAD, w - 1)
        if at_once and (num_positive[soon] > k or (replace and num_positive[soon] > 0)):
            _ask(np.uint64(edges[t, CUMW]) + _EIGHT * start[soon], np.int64(degree[soon]), units[soon:], k)
        c = np.int64(take[i])
        if c == 0:
            continue
        d = np.int64(degree[i])
        cumw, mine = f64(edges[t, CUMW] + 8 * np.int64(start[i]), d), position[m : m + c]
        if k < 0 or (not replace and num_positive[i] <= k):
            if num_positive[i] == d:
                for j in range(c):
                    mine[j] = j
            else:
                all_positive(cumw, mine)
        elif replace and not at_once:
            for j in range(c):
                mine[j] = _draw_again(cumw, key[i], j)
        else:
            n = 0
            if at_once:
                n = k if replace or d > _SMALL else k + spare
                for j in range(n):
                    target[j] = units[j * PICK_STRIDE + i]
                if d <= _SMALL:
                    for j in range(n):
                        found[j] = _search_small(cumw, target[j] * cumw[d - 1])
                else:
                    _search_large(cumw, target[:n], found[:n])
            if replace:
                for j in range(k):
                    mine[j] = found[j]
            elif d > _SMALL or n == 0 or n > REPEATS or not _first_distinct(found[:n], mine):
                without_replacement(mode, cumw, key[i], n, found, mine)
        for j in range(c):
            mine[j] += start[i]
            asker[m + j] = first_id + i
        m += c
    return m


@helper
def _count_positive(edges: Table, t: int, node: U64s, degree: U32s, out: U32s) -> None:
    """Entries of positive weight in each column of a chunk."""
    if edges[t, POSITIVE] == 0:
        for i in range(node.size):
            out[i] = degree[i]
    else:
        positive = i64(edges[t, POSITIVE], 1 << 62)
        for i in range(node.size):
            out[i] = positive[node[i]]


@helper
def _draw_block(mode: Table, w: int, k: int) -> None:
    """The first k draws of all nodes of a chunk, in [0, 1), slot by slot."""
    key, units = u64(mode[KEY], w), f64(mode[UNIT], PICK_STRIDE * 2 * VECTOR_FANOUT)
    for j in range(k):
        mine, add = units[j * PICK_STRIDE : j * PICK_STRIDE + w], GAMMA * np.uint64(j + 1)
        for i in range(w):
            mine[i] = unit(mix(key[i] + add))


@helper
def _ask(column: np.uint64, d: int, units: F64s, k: int) -> None:
    """Ask for the memory that the search in a column will need."""
    prefetch(column + _EIGHT * np.uint64(d - 1))
    if d <= _SMALL:
        for line in range(0, d, 8):
            prefetch(column + _EIGHT * np.uint64(line))
    else:
        for j in range(k):
            guess = column + _EIGHT * np.uint64(np.int64(units[j * PICK_STRIDE] * d))
            prefetch(guess - _HALF_LINE)
            prefetch(guess + _HALF_LINE)


@helper
def _weight(cumw: F64s, q: int) -> float:
    return cumw[q] - cumw[q - 1] if q > 0 else cumw[0]


@helper
def all_positive(cumw: F64s, out: U64s) -> None:
    n = 0
    for q in range(cumw.size):
        if _weight(cumw, q) > 0 and n < out.size:
            out[n] = q
            n += 1


@helper
def _search_small(cumw: F64s, target: float) -> np.uint64:
    """First entry above the target in a column of at most ``_SMALL``; the last sum, the total, is above it."""
    last = np.uint64(cumw.size - 1)
    q = np.uint64(0)
    for step in range(6):
        half = np.uint64(32 >> step)
        q += half if cumw[min(q + half - _ONE, last)] <= target else np.uint64(0)
    q = min(q, last)
    return q if cumw[q] > target else _search(cumw, target)


@helper
def _search_large(cumw: F64s, target: F64s, out: U64s) -> None:
    """First entry above each target; the targets come in [0, 1), to be multiplied by the total.

    Where weights are not too uneven, u * total lies near entry u * d: bisections go on in windows around these entries,
    in lockstep, so that their cache misses overlap. A window that does not hold its target is dropped.
    """
    d = cumw.size
    total = cumw[d - 1]
    width = min(d, 2 * np.int64(np.sqrt(d)) + 8)
    for j in range(out.size):
        out[j] = max(0, min(np.int64(target[j] * d) - width // 2, d - width))
        target[j] *= total
    left = width
    while left > 1:
        half = np.uint64(left >> 1)
        for j in range(out.size):
            out[j] += half if cumw[out[j] + half - _ONE] <= target[j] else np.uint64(0)
        left -= left >> 1
    for j in range(out.size):
        q = out[j]
        if not (cumw[q] > target[j] and (q == np.uint64(0) or cumw[q - _ONE] <= target[j])):
            out[j] = _search(cumw, target[j])


@helper
def _search(cumw: F64s, target: float) -> np.uint64:
    """First entry above the target in any column; for a target that rounding let reach the total, the last positive."""
    q, left = np.uint64(0), cumw.size
    while left > 1:
        half = np.uint64(left >> 1)
        q += half if cumw[q + half - _ONE] <= target else np.uint64(0)
        left -= left >> 1
    if cumw[q] <= target:
        while q > np.uint64(0) and cumw[q] == cumw[q - _ONE]:
            q -= _ONE
    return q


@helper
def _draw_again(cumw: F64s, key: np.uint64, t: int) -> np.uint64:
    """Draw t of a node."""
    target = unit(draw(key, np.uint64(t))) * cumw[cumw.size - 1]
    return _search_small(cumw, target) if cumw.size <= _SMALL else _search(cumw, target)


@helper
def _first_distinct(found: U64s, out: U64s) -> bool:
    """The first distinct ones of at most ``REPEATS`` draws from a small column; false if they do not fill the slots."""
    slot, picked = 0, np.uint64(0)
    for j in range(found.size):
        q = found[j]
        out[slot] = q  # beyond the last slot: the next node overwrites it
        is_new = np.int64(~(picked >> q) & _ONE)
        picked |= _ONE << q
        slot += is_new & np.int64(slot < out.size)
    return slot == out.size


@helper
def without_replacement(mode: Table, cumw: F64s, key: np.uint64, n: int, found: U64s, out: U64s) -> None:
    """Successive sampling: repeats draws that hit a picked entry, and scans what is left after too many.

    ``found`` holds the first n draws. Draws that turn out too many are dropped: hardly a branch depends on a draw.
    """
    k, d = out.size, cumw.size
    slot, t, repeats, picked = 0, 0, 0, np.uint64(0)
    if d > _SMALL:
        new_set(mode)
    while slot < k:
        for j in range(n):
            q = found[j]
            out[slot] = q  # beyond the last slot: the next node overwrites it
            if d <= _SMALL:
                is_new = np.int64(~(picked >> q) & _ONE)
                picked |= _ONE << q
            else:
                is_new = np.int64(add_to_set(mode, q))
            slot += is_new & np.int64(slot < k)
            t += 1
            repeats = (repeats + 1) * (1 - is_new)
            if repeats == REPEATS and slot < k:
                q = _scan(mode, cumw, unit(draw(key, np.uint64(t))), picked)
                out[slot] = q
                if d <= _SMALL:
                    picked |= _ONE << q
                else:
                    add_to_set(mode, q)
                slot, t, repeats = slot + 1, t + 1, 0
                break
        n = min(k - slot + 2, VECTOR_FANOUT)
        if slot < k:
            for j in range(n):
                found[j] = _draw_again(cumw, key, t + j)


@helper
def _is_picked(mode: Table, d: int, picked: np.uint64, q: np.uint64) -> bool:
    return (picked >> q) & _ONE > 0 if d <= _SMALL else is_in_set(mode, q)


@helper
def _scan(mode: Table, cumw: F64s, u: float, picked: np.uint64) -> np.uint64:
    """One of the entries that are left, in proportion to its weight; sums run one addition at a time."""
    total = 0.0
    for q in range(cumw.size):
        weight = _weight(cumw, q)
        if weight > 0 and not _is_picked(mode, cumw.size, picked, np.uint64(q)):
            total += weight
    target, running, last = u * total, 0.0, np.uint64(0)
    for q in range(cumw.size):
        weight = _weight(cumw, q)
        if weight > 0 and not _is_picked(mode, cumw.size, picked, np.uint64(q)):
            last = np.uint64(q)
            running += weight
            if running > target:
                break
    return last
