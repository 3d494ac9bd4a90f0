"""Second pass of a hop with weights: the draws of all nodes of a chunk, looked up in alias tables.

All draws are made before the first is looked up, so that the entries which they need are on their way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling._cpu_compile import f64, helper, i64, prefetch, u32, u64
from manyhop.sampling._cpu_random import below, below_with_fraction, draw, mix
from manyhop.sampling._cpu_successive import all_positive, without_replacement
from manyhop.sampling._cpu_tables import ALIAS, ASKER, DRAW, DRAWS, KEY, POSITION, POSITIVE, VECTOR_FANOUT, WEIGHT
from manyhop.sampling._random import GAMMA

Table = npt.NDArray[np.int64]
U32s = npt.NDArray[np.uint32]
U64s = npt.NDArray[np.uint64]

_EIGHT, _HALF, _LOW = np.uint64(8), np.uint64(32), np.uint64(0xFFFFFFFF)


@helper
def _find(table: U64s, r: np.uint64) -> np.uint64:
    """The entry of a column that a draw finds in its alias table."""
    x = below_with_fraction(r, np.uint64(table.size))
    entry = table[x >> _HALF]
    return x >> _HALF if x & _LOW < entry >> _HALF else entry & _LOW


_pick = without_replacement(_find)


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
    drawn = u64(mode[DRAW], DRAWS)
    n = 0 if k > VECTOR_FANOUT else k if replace else k + 2 + k // 4  # draws of a node that are made at once
    stride = (n + 7) // 8 * 8
    at = 0
    for i in range(w):
        if _chooses(edges, t, node[i], degree[i], take[i], k, replace):
            _draw_ahead(edges, t, key[i], start[i], np.uint64(degree[i]), drawn[at : at + stride], n)
            at += stride
    m = at = 0
    for i in range(w):
        c, d, s = np.int64(take[i]), np.int64(degree[i]), np.int64(start[i])
        if c == 0:
            continue
        mine = position[m : m + c]
        weight, table = f64(edges[t, WEIGHT] + 8 * s, d), u64(edges[t, ALIAS] + 8 * s, d)
        if not _chooses(edges, t, node[i], degree[i], take[i], k, replace):
            if c == d:
                for j in range(c):
                    mine[j] = j
            else:
                all_positive(weight, mine)
        else:
            if replace:
                for j in range(c):
                    mine[j] = _find(table, drawn[at + j] if n > 0 else draw(key[i], np.uint64(j)))
            else:
                _pick(mode, table, weight, key[i], drawn[at : at + n], mine)
            at += stride
        for j in range(c):
            mine[j] += start[i]
            asker[m + j] = first_id + i
        m += c
    return m


@helper
def _chooses(edges: Table, t: int, node: np.uint64, degree: np.uint32, take: np.uint32, k: int, replace: bool) -> bool:
    """Whether a node draws; otherwise it takes all entries of positive weight, perhaps none."""
    if replace or np.int64(take) < k or k < 0:
        return replace and k > 0 and take > 0
    positive = np.int64(degree) if edges[t, POSITIVE] == 0 else i64(edges[t, POSITIVE], 1 << 62)[node]
    return positive > k


@helper
def _draw_ahead(edges: Table, t: int, key: np.uint64, start: np.uint64, d: np.uint64, out: U64s, n: int) -> None:
    """The first draws of a node; asks for the entries that the first n of them need."""
    for j0 in range(0, out.size, 8):
        eight = out[j0 : j0 + 8]
        for j in range(8):
            eight[j] = mix(key + GAMMA * np.uint64(j0 + j + 1))
    column = np.uint64(edges[t, ALIAS]) + _EIGHT * start
    for j in range(n):
        prefetch(column + _EIGHT * below(out[j], d))
