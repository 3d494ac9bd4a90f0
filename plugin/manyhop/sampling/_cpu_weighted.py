"""Second pass of a hop with weights: draws by bisection of the running sums, those of one node in lockstep."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling._cpu_compile import f64, helper, i64, prefetch, u32, u64
from manyhop.sampling._cpu_picks import add_to_set, is_in_set, new_set
from manyhop.sampling._cpu_random import draw, unit
from manyhop.sampling._cpu_tables import (
    ASKER,
    CANDIDATE,
    CUMW,
    KEY,
    POSITION,
    POSITIVE,
    REPEATS,
    TARGET,
    VECTOR_FANOUT,
)

Table = npt.NDArray[np.int64]
U32s = npt.NDArray[np.uint32]
U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_ONE, _EIGHT = np.uint64(1), np.uint64(8)
_NODES_AHEAD = 6


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
    w, n = start.size, np.int64(take.sum())
    key, position, asker = u64(mode[KEY], w), u64(mode[POSITION], n), u32(mode[ASKER], n)
    positive, base = i64(edges[t, POSITIVE], 1 << 62), np.uint64(edges[t, CUMW])
    m = 0
    for i in range(w):
        soon = min(i + _NODES_AHEAD, w - 1)
        for part in range(3):  # begin, middle and end of the column
            prefetch(base + _EIGHT * (start[soon] + np.uint64(part * np.int64(degree[soon]) // 2)))
        c = np.int64(take[i])
        if c == 0:
            continue
        cumw = f64(edges[t, CUMW] + 8 * np.int64(start[i]), np.int64(degree[i]))
        mine = position[m : m + c]
        num_positive = positive[node[i]] if edges[t, POSITIVE] != 0 else np.int64(degree[i])
        if k < 0 or (not replace and num_positive <= k):
            _all_positive(cumw, mine)
        elif replace:
            _draw_first(mode, cumw, key[i], mine)
        else:
            _without_replacement(mode, cumw, key[i], mine)
        for j in range(c):
            mine[j] += start[i]
            asker[m + j] = first_id + i
        m += c
    return m


@helper
def _weight(cumw: F64s, q: int) -> float:
    return cumw[q] - cumw[q - 1] if q > 0 else cumw[0]


@helper
def _all_positive(cumw: F64s, out: U64s) -> None:
    n = 0
    for q in range(cumw.size):
        if _weight(cumw, q) > 0 and n < out.size:
            out[n] = q
            n += 1


@helper
def _draw_first(mode: Table, cumw: F64s, key: np.uint64, out: U64s) -> None:
    """The first draws of a node, as many as ``out`` holds: one step of all bisections after the other."""
    k, total = out.size, cumw[cumw.size - 1]
    target = f64(mode[TARGET], k)
    for j in range(k):
        target[j] = unit(draw(key, np.uint64(j))) * total
        out[j] = 0
    left = cumw.size
    while left > 1:
        half = np.uint64(left >> 1)
        for j in range(k):
            out[j] += half if cumw[out[j] + half - _ONE] <= target[j] else np.uint64(0)
        left -= left >> 1
    for j in range(k):
        out[j] = _settle(cumw, out[j], target[j])


@helper
def _draw_one(cumw: F64s, key: np.uint64, t: int) -> np.uint64:
    """Draw t of a node."""
    target = unit(draw(key, np.uint64(t))) * cumw[cumw.size - 1]
    q, left = np.uint64(0), cumw.size
    while left > 1:
        half = np.uint64(left >> 1)
        q += half if cumw[q + half - _ONE] <= target else np.uint64(0)
        left -= left >> 1
    return _settle(cumw, q, target)


@helper
def _settle(cumw: F64s, q: np.uint64, target: float) -> np.uint64:
    """Where rounding lets the target reach the total: back to the last entry of positive weight."""
    if cumw[q] <= target:
        while q > np.uint64(0) and cumw[q] == cumw[q - _ONE]:
            q -= _ONE
    return q


@helper
def _without_replacement(mode: Table, cumw: F64s, key: np.uint64, out: U64s) -> None:
    """Successive sampling: repeats draws that hit a picked entry, and scans what is left after too many."""
    k = out.size
    candidate = u64(mode[CANDIDATE], k)
    _draw_first(mode, cumw, key, candidate)
    if k > VECTOR_FANOUT:
        new_set(mode)
    t = 0
    for s in range(k):
        q, found = np.uint64(0), False
        for _ in range(REPEATS):
            q = candidate[t] if t < k else _draw_one(cumw, key, t)
            t += 1
            if not _is_picked(mode, out, s, q):
                found = True
                break
        if not found:
            q = _scan(mode, cumw, unit(draw(key, np.uint64(t))), out, s)
            t += 1
        out[s] = q
        if k > VECTOR_FANOUT:
            add_to_set(mode, q)


@helper
def _is_picked(mode: Table, out: U64s, s: int, q: np.uint64) -> bool:
    """Whether one of the first s slots holds q."""
    if out.size > VECTOR_FANOUT:
        return is_in_set(mode, q)
    hit = False
    for x in range(s):
        hit |= out[x] == q
    return hit


@helper
def _scan(mode: Table, cumw: F64s, u: float, out: U64s, s: int) -> np.uint64:
    """One of the entries that are left, in proportion to its weight; sums run one addition at a time."""
    total = 0.0
    for q in range(cumw.size):
        weight = _weight(cumw, q)
        if weight > 0 and not _is_picked(mode, out, s, np.uint64(q)):
            total += weight
    target, running, last = u * total, 0.0, np.uint64(0)
    for q in range(cumw.size):
        weight = _weight(cumw, q)
        if weight > 0 and not _is_picked(mode, out, s, np.uint64(q)):
            last = np.uint64(q)
            running += weight
            if running > target:
                break
    return last
