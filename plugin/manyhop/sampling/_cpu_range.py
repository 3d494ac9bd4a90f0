"""First pass of a hop: which range of its column each frontier node draws from, and how many entries it takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling._cpu_compile import helper, i64, prefetch, u32, u64
from manyhop.sampling._cpu_tables import (
    AHEAD,
    BEGIN,
    BLOCK,
    COLPTR,
    DEGREE,
    DST,
    END,
    MOST,
    NODE,
    NUM_EDGES,
    POSITIVE,
    REPLACE,
    START,
    TAKE,
    TEMPORAL,
    TIME,
    TIME_MAX,
    TIME_MIN,
    TOTAL,
    TREE,
    WEIGHTED,
)

Table = npt.NDArray[np.int64]

_ONE, _EIGHT = np.uint64(1), np.uint64(8)
_LANES = 32


@helper
def measure(edges: Table, nodes: Table, found: Table, mode: Table, fanout: Table) -> None:
    """Fill ``START``, ``DEGREE``, ``TAKE``, ``TOTAL`` and ``MOST`` of all edge types for the present frontier."""
    for t in range(edges.shape[0]):
        found[t, TOTAL] = 0
        found[t, MOST] = 0
        dst = edges[t, DST]
        if fanout[t] == 0 or edges[t, NUM_EDGES] == 0 or nodes[dst, BEGIN] == nodes[dst, END]:
            continue
        _columns(edges, nodes, found, t)
        if mode[TEMPORAL] > 0 and edges[t, TIME] != 0:
            _restrict(edges, nodes, found, mode, t)
        if mode[WEIGHTED] > 0 and edges[t, POSITIVE] != 0:
            _take_positive(edges, nodes, found, mode[REPLACE] > 0, fanout[t], t)
        else:
            replace = mode[REPLACE] > 0 and mode[TEMPORAL] != 2
            _take(nodes[dst, END] - nodes[dst, BEGIN], found, replace, fanout[t], t)


@helper
def _columns(edges: Table, nodes: Table, found: Table, t: int) -> None:
    """Begin and length of each column."""
    dst = edges[t, DST]
    begin, n = nodes[dst, BEGIN], nodes[dst, END] - nodes[dst, BEGIN]
    node = u64(nodes[dst, NODE] + 8 * begin, n)
    colptr = u64(edges[t, COLPTR], 1 << 62)
    start, degree = u64(found[t, START], n), u32(found[t, DEGREE], n)
    base = np.uint64(edges[t, COLPTR])
    for i in range(n):
        prefetch(base + _EIGHT * node[min(i + AHEAD, n - 1)])
        v = node[i]
        start[i] = colptr[v]
        degree[i] = colptr[v + _ONE] - colptr[v]


@helper
def _restrict(edges: Table, nodes: Table, found: Table, mode: Table, t: int) -> None:
    """Narrow each range to the times that its tree allows."""
    dst = edges[t, DST]
    begin, n = nodes[dst, BEGIN], nodes[dst, END] - nodes[dst, BEGIN]
    tree = u64(nodes[dst, TREE] + 8 * begin, n)
    time_max, time = i64(mode[TIME_MAX], 1 << 62), i64(edges[t, TIME], 1 << 62)
    start, degree = u64(found[t, START], n), u32(found[t, DEGREE], n)
    limit, below, first = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    for c in range(0, n, BLOCK):
        w = min(BLOCK, n - c)
        for i in range(w):
            limit[i] = time_max[tree[c + i]]
        _count_up_to(time, start[c : c + w], degree[c : c + w], limit, below)
        for i in range(w):
            first[i] = 0
        if mode[TIME_MIN] != 0:
            time_min = i64(mode[TIME_MIN], 1 << 62)
            for i in range(w):
                # Times are integers: before t_min means up to t_min - 1, and nothing is before the smallest.
                earliest = time_min[tree[c + i]]
                limit[i] = earliest - 1 if earliest > np.iinfo(np.int64).min else earliest
            _count_up_to(time, start[c : c + w], degree[c : c + w], limit, first)
            for i in range(w):
                if time_min[tree[c + i]] == np.iinfo(np.int64).min:
                    first[i] = 0
        for i in range(w):
            f = min(first[i], below[i])
            start[c + i] += f
            degree[c + i] = below[i] - f


@helper
def _count_up_to(
    time: Table,
    start: npt.NDArray[np.uint64],
    degree: npt.NDArray[np.uint32],
    limit: Table,
    count: npt.NDArray[np.uint32],
) -> None:
    """Entries of each column with a time up to its limit.

    Bisections in lockstep, a few dozen at once: vectorised, and their cache misses overlap.
    """
    at, left = np.empty(_LANES, np.uint64), np.empty(_LANES, np.uint64)
    for c in range(0, start.size, _LANES):
        w = min(_LANES, start.size - c)
        begin, length, limits = start[c : c + w], degree[c : c + w], limit[c : c + w]
        longest = np.uint64(1)
        for i in range(w):
            # An empty column looks at an entry that is there, and counts for nothing in the end.
            left[i] = max(np.uint64(length[i]), _ONE)
            at[i] = begin[i] if length[i] > 0 else np.uint64(0)
            longest = max(longest, left[i])
        while longest > _ONE:
            for i in range(w):
                half = left[i] >> _ONE
                probe = at[i] + max(half, _ONE) - _ONE
                at[i] += half if time[probe] <= limits[i] else np.uint64(0)
                left[i] -= half
            longest -= longest >> _ONE
        for i in range(w):
            n = np.uint32(at[i] - begin[i]) + np.uint32(time[at[i]] <= limits[i])
            count[c + i] = n if length[i] > 0 else np.uint32(0)


@helper
def _take(n: int, found: Table, replace: bool, k: int, t: int) -> None:
    """How many entries each node takes, where all entries of the range count."""
    degree, take = u32(found[t, DEGREE], n), u32(found[t, TAKE], n)
    total = most = 0
    for i in range(n):
        d = np.int64(degree[i])
        c = d if k < 0 else (k if replace and d > 0 else min(k, d))
        take[i] = c
        total += c
        most = max(most, c)
    found[t, TOTAL] = total
    found[t, MOST] = most


@helper
def _take_positive(edges: Table, nodes: Table, found: Table, replace: bool, k: int, t: int) -> None:
    """The same where only entries of positive weight count."""
    dst = edges[t, DST]
    begin, n = nodes[dst, BEGIN], nodes[dst, END] - nodes[dst, BEGIN]
    node, take = u64(nodes[dst, NODE] + 8 * begin, n), u32(found[t, TAKE], n)
    positive = i64(edges[t, POSITIVE], 1 << 62)
    base = np.uint64(edges[t, POSITIVE])
    total = most = 0
    for i in range(n):
        prefetch(base + _EIGHT * node[min(i + AHEAD, n - 1)])
        m = positive[node[i]]
        c = m if k < 0 else (k if replace and m > 0 else min(k, m))
        take[i] = c
        total += c
        most = max(most, c)
    found[t, TOTAL] = total
    found[t, MOST] = most
