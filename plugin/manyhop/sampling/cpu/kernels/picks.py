"""Second pass of a hop: the stored positions that the nodes of one chunk pick, without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.random import below, draw, mix, unit
from manyhop.sampling.cpu.tables import PICK_STRIDE, REPEATS, Edges, Found, Ints, Mode
from manyhop.sampling.random import GAMMA
from manyhop.system.numba_kernels import AHEAD, helper, i64, prefetch, u32, u64

U32s = npt.NDArray[np.uint32]
U64s = npt.NDArray[np.uint64]

_ONE, _HALF = np.uint64(1), np.uint64(32)


@helper
def pick_range(mode: Mode, start: U64s, degree: U32s, take: U32s, first_id: int) -> int:
    """Pick the last ``take`` entries of each range, which may be all of it; return the number of picks."""
    position, dst_node = u64(mode.position, 1 << 62), u32(mode.dst_node, 1 << 62)
    m = 0
    for i in range(start.size):
        s = start[i] + np.uint64(degree[i]) - np.uint64(take[i])
        for j in range(take[i]):
            position[m + j] = s + np.uint64(j)
            dst_node[m + j] = first_id + i
        m += take[i]
    return m


@helper
def pick_block(mode: Mode, start: U64s, degree: U32s, take: U32s, k: int, replace: bool, first_id: int) -> int:
    """Pick uniformly, ``k <= VECTOR_FANOUT``: slot by slot for all nodes, without branches, so vectorised.

    Without replacement, nodes with at most k entries take them all, and do not draw.
    """
    w, kk, least = start.size, np.uint32(k), np.uint32(0 if replace else k)
    key, pick = u64(mode.key, w), u32(mode.pick, PICK_STRIDE * k)
    size, column = u32(mode.hash, w), u32(mode.neighbor, w)  # memory of later passes
    n = 0
    for i in range(w):
        d = degree[i]
        key[n], size[n] = key[i], d
        column[i] = n if d > least else w  # column w of the picks: 0, 1, 2, ...
        n += d > least
    for j in range(k):
        pick[j * PICK_STRIDE + w] = j
        mine = pick[j * PICK_STRIDE : j * PICK_STRIDE + n]
        add, missing = GAMMA * np.uint64(j + 1), np.uint32(0 if replace else k - j - 1)
        for i in range(n):
            bound = np.uint32(size[i] - missing)  # products of 32 bits take a third of the time on Intel
            mine[i] = below(mix(key[i] + add), np.uint64(bound))
        if not replace:
            for x in range(j):
                earlier = pick[x * PICK_STRIDE : x * PICK_STRIDE + n]
                for i in range(n):
                    new = np.uint32(size[i] - kk + np.uint32(j))
                    mine[i] = new if mine[i] == earlier[i] else mine[i]
    # Each node writes k entries and advances by its picks, without a branch; the next node overwrites the rest.
    position, dst_node = u64(mode.position, 1 << 62), u32(mode.dst_node, 1 << 62)
    m = 0
    for i in range(w):
        s, c = start[i], column[i]
        for j in range(k):
            position[m + j] = s + np.uint64(pick[j * PICK_STRIDE + c])
            dst_node[m + j] = first_id + i
        m += take[i]
    return m


@helper
def pick_one_by_one(mode: Mode, start: U64s, degree: U32s, take: U32s, k: int, replace: bool, first_id: int) -> int:
    """Pick uniformly for large k, node by node, with a hash set of the picked entries."""
    key, position, dst_node = u64(mode.key, start.size), u64(mode.position, 1 << 62), u32(mode.dst_node, 1 << 62)
    m = 0
    for i in range(start.size):
        d, s = np.int64(degree[i]), start[i]
        if not replace and d > k:
            choose(mode, key[i], s, d, k, position[m : m + k])
        for j in range(take[i]):
            if replace:
                position[m + j] = s + below(draw(key[i], np.uint64(j)), np.uint64(d))
            elif d <= k:
                position[m + j] = s + np.uint64(j)
            dst_node[m + j] = first_id + i
        m += take[i]
    return m


@helper
def choose(mode: Mode, key: np.uint64, start: np.uint64, d: int, k: int, position: U64s) -> None:
    """Choose ``k < d`` entries of a column by Floyd's algorithm, into ``position [k]``."""
    new_set(mode)
    for j in range(k):
        q = below(draw(key, np.uint64(j)), np.uint64(d - k + j + 1))
        if not add_to_set(mode, q):
            q = np.uint64(d - k + j)
            add_to_set(mode, q)
        position[j] = start + q


@helper
def new_set(mode: Mode) -> None:
    """Empty the set by changing the stamp of its entries."""
    mode.set_stamp += 1
    if mode.set_stamp >> 32 > 0:
        entries = u64(mode.set, mode.set_mask + 1)
        for at in range(mode.set_mask + 1):
            entries[at] = 0
        mode.set_stamp = 1


@helper
def add_to_set(mode: Mode, q: np.uint64) -> bool:
    """Add a number below 2^32 to the set; return whether it is new."""
    mask = np.uint64(mode.set_mask)
    entries, stamp = u64(mode.set, mode.set_mask + 1), np.uint64(mode.set_stamp)
    entry = stamp << _HALF | q
    at = (q * GAMMA >> _HALF) & mask
    while entries[at] >> _HALF == stamp:
        if entries[at] == entry:
            return False
        at = (at + _ONE) & mask
    entries[at] = entry
    return True


@helper
def is_in_set(mode: Mode, q: np.uint64) -> bool:
    """Return whether the set has a number."""
    mask = np.uint64(mode.set_mask)
    entries, stamp = u64(mode.set, mode.set_mask + 1), np.uint64(mode.set_stamp)
    entry = stamp << _HALF | q
    at = (q * GAMMA >> _HALF) & mask
    while entries[at] >> _HALF == stamp:
        if entries[at] == entry:
            return True
        at = (at + _ONE) & mask
    return False


F64s = npt.NDArray[np.float64]


@helper
def count_positive(weight: F64s) -> int:
    """Return how many entries may be picked."""
    n = 0
    for q in range(weight.size):
        n += weight[q] > 0.0
    return n


@helper
def all_positive(weight: F64s, out: U64s) -> None:
    """Pick the entries of positive weight, in stored order."""
    n = 0
    for q in range(weight.size):
        if weight[q] > 0.0 and n < out.size:
            out[n] = q
            n += 1


def without_replacement(find: Callable[[Any, np.uint64], np.uint64]) -> Callable[..., None]:
    """Return a helper ``pick(mode, table, first, weight, key, out, replace)``.

    It fills ``out``, which is shorter than the number of entries of positive weight. Draws that hit a picked entry
    are repeated; after too many, the remaining entries are scanned.

    The entries are a range of a column that begins at ``first`` and has the weights ``weight``. Draws that
    hit another entry of the column are also repeated. With ``replace``, picked entries may be picked again.

    Args:
        find: a helper: the entry ``find(table, r)`` of a column for a random number. It is no argument of ``pick``,
            because numba does not cache kernels that pass functions.
    """

    @helper
    def pick(mode: Mode, table: Any, first: np.uint64, weight: F64s, key: np.uint64, out: U64s, replace: bool) -> None:
        slot, t, repeats = 0, 0, 0
        new_set(mode)
        while slot < out.size:
            if repeats < REPEATS:
                q = find(table, draw(key, np.uint64(t))) - first  # entries before the range become large
            else:
                q = _scan(mode, weight, unit(draw(key, np.uint64(t))))
            t += 1
            repeats += 1
            if q < np.uint64(weight.size) and (replace or add_to_set(mode, q)):
                out[slot] = q
                slot, repeats = slot + 1, 0

    return pick


@helper
def _scan(mode: Mode, weight: F64s, u: float) -> np.uint64:
    """Return one of the entries that are left, in proportion to its weight; sums run one addition at a time."""
    total = 0.0
    for q in range(weight.size):
        if weight[q] > 0.0 and not is_in_set(mode, np.uint64(q)):
            total += weight[q]
    target, running, last = u * total, 0.0, np.uint64(0)
    for q in range(weight.size):
        if weight[q] > 0.0 and not is_in_set(mode, np.uint64(q)):
            last = np.uint64(q)
            running += weight[q]
            if running > target:
                break
    return last


# Between the passes of a hop, where edges are excluded: picked edges with such ids are dropped.
#
# The ids of an edge type form a hash set with at least four slots per id, so that most questions end at the first one.

_FOUR, _EIGHT, _HALF = np.uint64(4), np.uint64(8), np.uint64(32)
_EMPTY = np.int64(-1)  # no edge has this id


@helper
def _home(edge_id: np.int64, mask: int) -> np.int64:
    return np.int64((np.uint64(edge_id) * GAMMA) >> _HALF) & mask


@helper
def build_sets(found: Found) -> None:
    """Build the sets of all edge types from a request's ids."""
    for t in range(len(found)):
        if found[t].num_excluded > 0:
            mask = found[t].excluded_mask
            slots = i64(found[t].excluded, mask + 1)
            slots[:] = _EMPTY
            for edge_id in i64(found[t].exclude, found[t].num_excluded):
                at = _home(edge_id, mask)
                while slots[at] != _EMPTY and slots[at] != edge_id:
                    at = (at + 1) & mask
                slots[at] = edge_id


@helper
def is_excluded(slots: Ints, edge_id: np.int64) -> bool:
    """Return whether an id is in a set."""
    mask = slots.size - 1
    at = _home(edge_id, mask)
    while slots[at] != _EMPTY:
        if slots[at] == edge_id:
            return True
        at = (at + 1) & mask
    return False


@helper
def drop_picked(edges: Edges, found: Found, mode: Mode, t: int, n: int) -> int:
    """Drop excluded edges from the ``n > 0`` picks of a chunk; returns how many are left, in their order."""
    position, dst_node = u64(mode.position, n + AHEAD), u32(mode.dst_node, n)
    slots = i64(found[t].excluded, found[t].excluded_mask + 1)
    perm, wide = np.uint64(edges[t].perm), edges[t].perm_wide > 0
    perm32, perm64 = u32(edges[t].perm, 1 << 62), i64(edges[t].perm, 1 << 62)
    for x in range(AHEAD):  # for the prefetches
        position[n + x] = position[n - 1]
    kept = 0
    for x in range(n):
        p = position[x]
        edge_id = np.int64(p)
        if edges[t].perm != 0:
            prefetch(perm + (_EIGHT if wide else _FOUR) * position[x + AHEAD])
            edge_id = perm64[p] if wide else np.int64(perm32[p])
        position[kept], dst_node[kept] = p, dst_node[x]
        kept += 0 if is_excluded(slots, edge_id) else 1
    return kept
