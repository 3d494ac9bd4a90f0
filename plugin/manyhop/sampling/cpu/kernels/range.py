"""First pass of a hop: each frontier node's range of its column, and its number of picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.graph.csc import BUCKETS, WINDOW
from manyhop.sampling.cpu.kernels.picks import count_positive
from manyhop.sampling.cpu.tables import CHUNK, Edges, Found, Ints, Mode, Nodes
from manyhop.system.numba_kernels import AHEAD, count_below, f64, helper, i64, prefetch, u16, u32, u64
from manyhop.system.paging import prefetch_numbers

_ONE, _TWO, _EIGHT = np.uint64(1), np.uint64(2), np.uint64(8)
_BUCKETS, _WINDOW = np.uint64(BUCKETS), np.uint64(WINDOW)
_LANES = 128


@helper
def measure(edges: Edges, nodes: Nodes, found: Found, mode: Mode, fanout: Ints) -> None:
    """Fill ``start``, ``degree``, ``take``, ``total`` and ``most`` of all edge types for the current frontier."""
    for t in range(len(edges)):
        found[t].total = 0
        found[t].most = 0
        dst = edges[t].dst
        if fanout[t] == 0 or edges[t].num_edges == 0 or nodes[dst].begin == nodes[dst].end:
            continue
        measure_columns_of(edges, nodes, found, t)
        if mode.temporal > 0 and edges[t].time != 0:
            restrict(edges, nodes, found, mode, t)
        if mode.weighted > 0 and edges[t].positive != 0:
            if mode.temporal > 0 and edges[t].time != 0:
                _take_positive_of_ranges(edges, nodes, found, mode.replace > 0, fanout[t], t)
            else:
                take_positive(edges, nodes, found, mode.replace > 0, fanout[t], t)
        else:
            replace = mode.replace > 0 and mode.temporal != 2
            _take(u32(found[t].degree, nodes[dst].end - nodes[dst].begin), found, replace, fanout[t], t)


@helper
def measure_columns_of(edges: Edges, nodes: Nodes, found: Found, t: int) -> None:
    """Begin and length of each column."""
    dst = edges[t].dst
    begin, n = nodes[dst].begin, nodes[dst].end - nodes[dst].begin
    node = u64(nodes[dst].node + 8 * begin, n)
    colptr = u64(edges[t].colptr, 1 << 62)
    start, degree = u64(found[t].start, n), u32(found[t].degree, n)
    base = np.uint64(edges[t].colptr)
    c = 0
    while c < n:
        end = min(c + CHUNK, n)
        if edges[t].pages > 0:
            prefetch_numbers(base, 8, node[c:end])
        for i in range(c, end):
            ahead = base + _EIGHT * node[min(i + AHEAD, n - 1)]
            prefetch(ahead)
            prefetch(ahead + _EIGHT)  # may be in the next line
            v = node[i]
            start[i] = colptr[v]
            degree[i] = colptr[v + _ONE] - colptr[v]
        c = end


@helper
def restrict(edges: Edges, nodes: Nodes, found: Found, mode: Mode, t: int) -> None:
    """Narrow each range to the times that its tree allows."""
    dst = edges[t].dst
    begin, n = nodes[dst].begin, nodes[dst].end - nodes[dst].begin
    tree, time_max = u64(nodes[dst].tree + 8 * begin, n), i64(mode.time_max, 1 << 62)
    start, degree = u64(found[t].start, n), u32(found[t].degree, n)
    limit, below, first = np.empty(_LANES, np.int64), np.empty(_LANES, np.uint32), np.empty(_LANES, np.uint32)
    for c in range(0, n, _LANES):
        w = min(_LANES, n - c)
        for i in range(w):
            limit[i] = time_max[tree[c + i]]
        _count_up_to(edges, t, start[c : c + w], degree[c : c + w], limit, below)
        for i in range(w):
            first[i] = 0
        if mode.time_min != 0:
            time_min = i64(mode.time_min, 1 << 62)
            for i in range(w):
                # Times are integers: before t_min means up to t_min - 1, and nothing is before the smallest.
                earliest = time_min[tree[c + i]]
                limit[i] = earliest - 1 if earliest > np.iinfo(np.int64).min else earliest
            _count_up_to(edges, t, start[c : c + w], degree[c : c + w], limit, first)
            for i in range(w):
                if time_min[tree[c + i]] == np.iinfo(np.int64).min:
                    first[i] = 0
        for i in range(w):
            f = min(first[i], below[i])
            start[c + i] += f
            degree[c + i] = below[i] - f


@helper
def _count_up_to(
    edges: Edges,
    t: int,
    start: npt.NDArray[np.uint64],
    degree: npt.NDArray[np.uint32],
    limit: Ints,
    count: npt.NDArray[np.uint32],
) -> None:
    """Count the entries of each column with a time up to its limit; at most ``_LANES`` columns.

    A window of codes is compared at once. It covers a short column; in a longer one, it is at the expected end, as if
    times were distributed like the times of all edges. It has one or two cache lines; a bisection reads more. If the
    end is not in the window, it is probably close.
    """
    code, base = u16(edges[t].code, 1 << 62), np.uint64(edges[t].code)
    time, bound = i64(edges[t].time, 1 << 62), i64(edges[t].bound, BUCKETS)
    bucket, window = np.empty(_LANES, np.uint16), np.empty(_LANES, np.uint64)
    undecided, m = np.empty(_LANES, np.uint64), np.uint64(0)
    for i in range(start.size):
        bucket[i] = bucket[i - 1] if i > 0 and limit[i] == limit[i - 1] else _bounds_up_to(bound, limit[i])
        d = np.uint64(degree[i])
        window[i] = start[i]
        if d > _WINDOW:
            expected = d * np.uint64(bucket[i]) // _BUCKETS
            window[i] += min(max(expected, _WINDOW >> _ONE) - (_WINDOW >> _ONE), d - _WINDOW)
        prefetch(base + _TWO * window[i])
        prefetch(base + _TWO * (window[i] + _WINDOW - _ONE))
    for i in range(start.size):
        b, size, address = bucket[i], start[i] + np.uint64(degree[i]) - window[i], base + _TWO * window[i]
        n = count_below(address, b, min(size, _WINDOW))
        up_to = count_below(address, np.uint16(b + np.uint16(1)), min(size, _WINDOW))
        count[i] = np.uint32(window[i] + n - start[i])
        undecided[m] = i  # without a branch
        m += np.uint64(up_to > n) | np.uint64(n == np.uint64(0)) | np.uint64(n == _WINDOW)
    for j in range(m):  # few: what decides is requested for all of them first
        i = undecided[j]
        at = start[i] + np.uint64(count[i])
        prefetch(base + _TWO * (at - _WINDOW if at == window[i] else at))
        prefetch(np.uint64(edges[t].time) + _EIGHT * at)
    for j in range(m):
        i = undecided[j]
        at, end, b, step = start[i] + np.uint64(count[i]), start[i] + np.uint64(degree[i]), bucket[i], _WINDOW
        while at > start[i] and code[at - _ONE] >= b:  # the end is before the window
            at -= min(step, at - start[i])
            step += step
        if at < end and code[at] < b:
            at = _first_above(code, at, end, _WINDOW, np.int64(b) - 1)
        if at < end and code[at] == b:  # the times decide
            at = _first_above(time, at, end, _ONE, limit[i])
        count[i] = np.uint32(at - start[i])


@helper
def _first_above(
    values: npt.NDArray[Any], at: np.uint64, end: np.uint64, step: np.uint64, limit: np.int64
) -> np.uint64:
    """Return the first position in ``[at, end)`` whose value exceeds the limit, or ``end``; near ones cost least."""
    left = min(step, end - at)
    while left == step and values[at + step - _ONE] <= limit:
        at += step
        step += step
        left = min(step, end - at)
    while left > np.uint64(0):
        half = left >> _ONE
        if values[at + half] <= limit:
            at += half + _ONE
            left -= half + _ONE
        else:
            left = half
    return at


@helper
def _bounds_up_to(bound: Ints, limit: int) -> np.uint16:
    """Return how many bounds are up to the limit; their number is a power of two less one."""
    at, step = np.uint64(0), _BUCKETS >> _ONE
    while step > np.uint64(0):
        at += step if bound[at + step - _ONE] <= limit else np.uint64(0)
        step >>= _ONE
    return np.uint16(at)


@helper
def take_positive(edges: Edges, nodes: Nodes, found: Found, replace: bool, k: int, t: int) -> None:
    """Compute how many entries each node picks if only entries of positive weight count."""
    dst = edges[t].dst
    begin, n = nodes[dst].begin, nodes[dst].end - nodes[dst].begin
    node, take = u64(nodes[dst].node + 8 * begin, n), u32(found[t].take, n)
    positive = i64(edges[t].positive, 1 << 62)
    base = np.uint64(edges[t].positive)
    for i in range(n):
        prefetch(base + _EIGHT * node[min(i + AHEAD, n - 1)])
        take[i] = positive[node[i]]
    _take(take, found, replace, k, t)


@helper
def _take_positive_of_ranges(edges: Edges, nodes: Nodes, found: Found, replace: bool, k: int, t: int) -> None:
    """Count the picks of ranges that are parts of columns, whose positive weights are counted here."""
    n = nodes[edges[t].dst].end - nodes[edges[t].dst].begin
    start, degree, take = u64(found[t].start, n), u32(found[t].degree, n), u32(found[t].take, n)
    for i in range(n):
        take[i] = count_positive(f64(edges[t].weight + 8 * np.int64(start[i]), degree[i]))
    _take(take, found, replace, k, t)


@helper
def _take(count: npt.NDArray[np.uint32], found: Found, replace: bool, k: int, t: int) -> None:
    """Compute how many entries each node picks of the ``count`` that count."""
    take = u32(found[t].take, count.size)
    total = most = 0
    for i in range(count.size):
        m = np.int64(count[i])
        c = m if k < 0 else (k if replace and m > 0 else min(k, m))
        take[i] = c
        total += c
        most = max(most, c)
    found[t].total = total
    found[t].most = most
