"""Compiled loops over columns: counting sort, alias tables of weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.system.numba_kernels import helper, i32, i64, kernel

# Compiled passes that group edges by destination. Importing this module imports numba.
#
# A pass works on a range of edges or of destinations; different ranges may be worked on at the same time.

_ANY = 1 << 62  # length of an array if it does not matter
_RUN = 32  # edges of a column that are sorted by insertion, which is faster than merging up to there


@kernel("void(int64, boolean, int64, int64, int64, int64)")
def count_buckets(col: int, wide: bool, begin: int, end: int, shift: int, counts: int) -> None:
    """Add the edges ``begin .. end - 1`` to the counts of their buckets.

    Args:
        col, wide: address of ``[num_edges]`` destinations, int64 (``wide``) or int32.
        begin, end: range of edges.
        shift: the bucket of a destination is ``destination >> shift``.
        counts: address of ``[num_buckets]``, zeros; written.
    """
    wide_col, narrow_col = i64(col, end), i32(col, end)
    count = i64(counts, _ANY)
    if wide:
        for e in range(begin, end):
            count[wide_col[e] >> shift] += 1
    else:
        for e in range(begin, end):
            count[np.int64(narrow_col[e]) >> shift] += 1


@kernel("void(int64, boolean, int64, boolean, int64, int64, int64, int64, int64, int64, int64)")
def deal(
    row: int, row_wide: bool, col: int, col_wide: bool, begin: int, end: int, shift: int, cursor: int,
    row_out: int, col_out: int, position_out: int,
) -> None:  # fmt: skip
    """Deal the edges ``begin .. end - 1`` out to buckets, in their order.

    Args:
        row, row_wide, col, col_wide: sources and destinations; see :func:`count_buckets`, also for ``shift``.
        begin, end: range of edges.
        cursor: address of ``[num_buckets]``: position of each bucket's next edge; changed.
        row_out, col_out, position_out: addresses of ``[num_edges] int32``, written: sources, destinations and
            positions in the input.
    """
    wide_row, narrow_row, wide_col, narrow_col = i64(row, end), i32(row, end), i64(col, end), i32(col, end)
    rooms = i64(cursor, _ANY)
    rows, cols, positions = i32(row_out, _ANY), i32(col_out, _ANY), i32(position_out, _ANY)
    for e in range(begin, end):
        v = wide_col[e] if col_wide else np.int64(narrow_col[e])
        b = v >> shift
        k = rooms[b]
        rooms[b] = k + 1
        rows[k] = np.int32(wide_row[e]) if row_wide else narrow_row[e]
        positions[k] = np.int32(e)
        cols[k] = np.int32(v)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def settle(
    row: int, col: int, position: int, begin: int, end: int, first: int, num_columns: int, colptr: int, scratch: int
) -> None:
    """Group the edges of one bucket by destination, in place and in their order.

    Args:
        row, col, position: addresses of ``[num_edges] int32``: sources and positions, changed; destinations.
        begin, end: range of the edges of the bucket.
        first, num_columns: first destination of the bucket, and their number.
        colptr: address of ``[num_dst + 1] int64``; entries ``first .. first + num_columns - 1`` are written.
        scratch: address of ``[2 * (end - begin)] int32``, then ``[num_columns] int64`` at the next multiple of 8.
    """
    count = end - begin
    rows, cols, positions = i32(row + 4 * begin, count), i32(col + 4 * begin, count), i32(position + 4 * begin, count)
    begins = i64(colptr + 8 * first, num_columns)
    old_rows, old_positions = i32(scratch, count), i32(scratch + 4 * count, count)
    room = i64(scratch + 8 * count, num_columns)
    for v in range(num_columns):
        room[v] = 0
    for i in range(count):
        room[cols[i] - first] += 1
        old_rows[i] = rows[i]
        old_positions[i] = positions[i]
    at = 0
    for v in range(num_columns):
        begins[v] = begin + at
        at, room[v] = at + room[v], at
    for i in range(count):
        v = cols[i] - first
        k = room[v]
        room[v] = k + 1
        rows[k] = old_rows[i]
        positions[k] = old_positions[i]


@helper
def _insert(time: int, row: int, position: int, begin: int, end: int) -> None:
    """Sort the edges ``begin .. end - 1`` by time, stably, by insertion."""
    times, rows, positions = i64(time, end), i32(row, end), i32(position, end)
    for i in range(begin + 1, end):
        t, r, p = times[i], rows[i], positions[i]
        k = i
        while k > begin and times[k - 1] > t:
            times[k], rows[k], positions[k] = times[k - 1], rows[k - 1], positions[k - 1]
            k -= 1
        times[k], rows[k], positions[k] = t, r, p


@helper
def _merge(time: int, row: int, position: int, begin: int, middle: int, end: int, scratch: int) -> None:
    """Merge two neighbouring runs of edges, each in order of time; the first one is moved to ``scratch`` for that."""
    times, rows, positions = i64(time, end), i32(row, end), i32(position, end)
    count = middle - begin
    old_times, old_rows = i64(scratch, count), i32(scratch + 8 * count, count)
    old_positions = i32(scratch + 12 * count, count)
    for i in range(count):
        old_times[i], old_rows[i], old_positions[i] = times[begin + i], rows[begin + i], positions[begin + i]
    i, j, k = 0, middle, begin
    while i < count:
        if j < end and times[j] < old_times[i]:
            times[k], rows[k], positions[k] = times[j], rows[j], positions[j]
            j += 1
        else:
            times[k], rows[k], positions[k] = old_times[i], old_rows[i], old_positions[i]
            i += 1
        k += 1


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def sort_by_time(
    colptr: int, first: int, last: int, of_input: int, time: int, row: int, position: int, scratch: int
) -> None:
    """Fetch the times of the edges of columns ``first .. last - 1``, and sort each column by time, stably.

    Args:
        colptr: address of ``[num_dst + 1] int64``.
        first, last: range of columns.
        of_input: address of ``[num_edges] int64`` times in the order of the input.
        time: address of ``[num_edges] int64``, written: times in stored order.
        row, position: addresses of ``[num_edges] int32`` sources and positions in the input, changed.
        scratch: address of 16 bytes for each edge of the longest of these columns.
    """
    begins = i64(colptr, last + 1)
    most = begins[last]
    given, times, positions = i64(of_input, _ANY), i64(time, most), i32(position, most)
    for v in range(first, last):
        begin, end = begins[v], begins[v + 1]
        for e in range(begin, end):
            times[e] = given[positions[e]]
        run = begin
        while run < end:
            _insert(time, row, position, run, min(run + _RUN, end))
            run += _RUN
        width = _RUN
        while width < end - begin:
            run = begin
            while run + width < end:
                if times[run + width - 1] > times[run + width]:
                    _merge(time, row, position, run, run + width, min(run + 2 * width, end), scratch)
                run += 2 * width
            width *= 2


_ONE, _HALF, _FULL = np.uint64(1), np.uint64(32), np.uint64(1 << 32)


@helper
def _share(weight: float, total: float, size: float) -> np.uint64:
    """Return each entry's share of the column; a full entry has 2^32 units."""
    return np.uint64(weight / total * size + 0.5)


@helper
def _next(heavy: bool, weight: npt.NDArray[np.float64], total: float, size: float, q: np.uint64) -> np.uint64:
    """Return the first heavy, or light, entry from ``q`` on."""
    while q < np.uint64(weight.size) and (_share(weight[q], total, size) >= _FULL) != heavy:
        q += _ONE
    return q


@helper
def _sweep(weight: npt.NDArray[np.float64], total: float, alias: npt.NDArray[np.uint64]) -> None:
    """Fill up the light entries of a column, in stored order, from the heavy ones, in stored order."""
    d = np.uint64(weight.size)
    size = np.float64(d) * 2.0**32
    light, heavy = _next(False, weight, total, size, np.uint64(0)), _next(True, weight, total, size, np.uint64(0))
    left = _share(weight[heavy], total, size) if heavy < d else _FULL
    while heavy < d:
        if left >= _FULL:
            if light == d:
                return
            share = _share(weight[light], total, size)
            alias[light] = share << _HALF | heavy
            left -= _FULL - share
            light = _next(False, weight, total, size, light + _ONE)
        else:  # it has become light: the next heavy one fills it up
            giver, heavy = heavy, _next(True, weight, total, size, heavy + _ONE)
            if heavy < d:
                alias[giver] = left << _HALF | heavy
                left = _share(weight[heavy], total, size) - (_FULL - left)


@kernel("boolean(int64[::1], float64[::1], uint64[::1], int64[::1])")
def fill_aliases(
    colptr: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    alias: npt.NDArray[np.uint64],
    num_positive: npt.NDArray[np.int64],
) -> bool:
    """Fill ``alias [num_edges]`` and the number of positive weights ``[num_dst]`` of each column.

    Returns:
        Whether the weights of every column have a finite sum; if not, the tables are of no use.
    """
    for v in range(colptr.size - 1):
        begin, end = colptr[v], colptr[v + 1]
        total, positive, first = 0.0, 0, np.uint64(0)
        for e in range(begin, end):
            if weight[e] > 0.0 and positive == 0:
                first = np.uint64(e - begin)
            total += weight[e]
            positive += weight[e] > 0.0
        if total == np.inf:
            return False
        num_positive[v] = positive
        for e in range(begin, end):  # all full; the alias of an entry of weight zero is one that has weight
            alias[e] = np.uint64(e - begin) if weight[e] > 0.0 else first
        if positive > 0:
            _sweep(weight[begin:end], total, alias[begin:end])
    return True
