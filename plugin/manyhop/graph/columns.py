"""Edges grouped by destination on the CPU: many of them by several threads, by a counting sort in two passes.

The first pass deals edges out to buckets of neighbouring destinations, the second one groups each bucket in the cache
of a core. Both keep the order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhop.system.progress import Progress

SMALL = 1 << 20
"""Edges that torch sorts as fast as numba is imported."""

_BUCKET_BITS = 11  # 2048 buckets: a core's cache holds this many write positions
_SHORTEST = 1 << 16  # edges of a piece
_PIECES = 4  # of each thread: they need not be equally fast


def roomy(n: int, dtype: type[np.generic]) -> Tensor:
    """Return ``[n]`` in memory of numpy, which requests huge pages: sampling on large graphs is 10 to 20 % faster."""
    return torch.from_numpy(np.empty(n, dtype))


class Columns(NamedTuple):
    """Edges in stored order."""

    colptr: Tensor
    """``[num_dst + 1] int64``."""
    row: Tensor
    """``[num_edges]`` integer."""
    position: Tensor
    """``[num_edges]`` integer: position in the input."""
    time: Tensor | None
    """``[num_edges] int64``."""


def fits(num_src: int, num_dst: int, num_edges: int) -> bool:
    """Return whether edges of these numbers are grouped by several threads: more than a few, ids in int32."""
    return num_edges > SMALL and max(num_src, num_dst, num_edges) < 2**31


def group(row: Tensor, col: Tensor, num_src: int, num_dst: int, time: Tensor | None = None) -> Columns:
    """Group edges by destination and, with times, sort each group by time. Both are stable.

    Needs 4 bytes per edge in addition to the result, and 8 per edge of the largest bucket and thread.

    Args:
        row: ``[num_edges]`` integer: sources, checked.
        col: ``[num_edges]`` integer: destinations, checked.
        num_src: number of source nodes.
        num_dst: number of destination nodes.
        time: ``[num_edges] int64``.
    """
    grouped = _group_many if fits(num_src, num_dst, row.numel()) else _group_few
    return grouped(row, col, num_dst, time)


def _group_few(row: Tensor, col: Tensor, num_dst: int, time: Tensor | None) -> Columns:
    """Group few edges, or very many."""
    key = col.int() if num_dst < 2**31 else col.long()  # torch sorts int32 several times as fast
    if time is None:
        order = torch.sort(key, stable=True).indices
    else:
        by_time = torch.sort(time, stable=True).indices
        order = by_time[torch.sort(key[by_time], stable=True).indices]
    return Columns(_count(col, num_dst), row[order], order, None if time is None else time[order])


def _count(col: Tensor, num_dst: int) -> Tensor:
    """Return the column pointers of destinations in any order."""
    colptr = roomy(num_dst + 1, np.int64)
    colptr[0] = 0
    torch.cumsum(torch.bincount(col.long(), minlength=num_dst), 0, out=colptr[1:])
    return colptr


def _group_many(row: Tensor, col: Tensor, num_dst: int, time: Tensor | None) -> Columns:
    from manyhop.graph.column_kernels import count_buckets, deal, settle, sort_by_time
    from manyhop.system.numba_kernels import prepare

    prepare(count_buckets, deal, settle, *([] if time is None else [sort_by_time]))
    row, col = _plain(row), _plain(col)
    num_edges, threads = row.numel(), torch.get_num_threads()
    shift = max(0, (num_dst - 1).bit_length() - _BUCKET_BITS)
    num_buckets = ((num_dst - 1) >> shift) + 1
    pieces = _cut(num_edges, threads * _PIECES)
    cursor = np.zeros((len(pieces), num_buckets), np.int64)
    colptr, rows, positions = roomy(num_dst + 1, np.int64), roomy(num_edges, np.int32), roomy(num_edges, np.int32)
    cols = roomy(num_edges, np.int32)
    col_out = cols.data_ptr()
    wide_row, wide_col = row.dtype == torch.int64, col.dtype == torch.int64

    def count_piece(k: int) -> int:
        count_buckets(col.data_ptr(), wide_col, *pieces[k], shift, cursor[k].ctypes.data)
        return 0

    def deal_piece(k: int) -> int:
        begin, end = pieces[k]
        tables = rows.data_ptr(), col_out, positions.data_ptr()
        deal(row.data_ptr(), wide_row, col.data_ptr(), wide_col, begin, end, shift, cursor[k].ctypes.data, *tables)
        return end - begin

    def settle_bucket(b: int) -> int:
        begin, end, first = int(bounds[b]), int(bounds[b + 1]), b << shift
        num_columns = min(1 << shift, num_dst - first)
        scratch = np.empty(end - begin + num_columns, np.int64)
        tables = rows.data_ptr(), col_out, positions.data_ptr()
        settle(*tables, begin, end, first, num_columns, colptr.data_ptr(), scratch.ctypes.data)
        return end - begin

    bar = Progress("Sorting edges", (2 + (time is not None)) * num_edges, unit="edges", delay=2.0)
    try:
        in_threads(count_piece, range(len(pieces)), threads)
        counts = cursor.sum(0)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        cursor[:] = bounds[:-1] + np.cumsum(cursor, 0) - cursor  # where each piece begins to write in each bucket
        in_threads(deal_piece, range(len(pieces)), threads, bar)
        in_threads(settle_bucket, np.argsort(-counts, kind="stable").tolist(), threads, bar)
        colptr[-1] = num_edges
        del cols
        times = None if time is None else _sort_by_time(colptr, rows, positions, time, threads, bar)
    finally:
        bar.close()
    return Columns(colptr, rows, positions, times)


def pointers(col: Tensor, num_dst: int) -> Tensor:
    """Return ``[num_dst + 1] int64`` column pointers of destinations ``[num_edges]`` that ascend."""
    col = _plain(col) if num_dst < 2**31 - 1 else col.long()
    nodes = torch.arange(num_dst + 1, dtype=col.dtype, device="cpu")
    return torch.searchsorted(col, nodes, out=roomy(num_dst + 1, np.int64))


def in_threads(work: Callable[[int], int], todo: Sequence[int], threads: int, bar: Progress | None = None) -> None:
    """Call ``work`` with each number, in threads; it returns how much it has done."""

    def run(k: int) -> None:
        done = work(k)
        if bar is not None:
            bar.add(done)

    if threads == 1 or len(todo) == 1:
        for k in todo:
            run(k)
        return
    with ThreadPoolExecutor(threads, "manyhop-build") as pool:
        for _ in pool.map(run, todo):
            pass


def _sort_by_time(colptr: Tensor, row: Tensor, position: Tensor, time: Tensor, threads: int, bar: Progress) -> Tensor:
    """Sort the edges of each column by time, stably and in place. Returns the times in stored order."""
    from manyhop.graph.column_kernels import sort_by_time

    begins, num_edges, time = colptr.numpy(), row.numel(), time.long().contiguous()
    times = roomy(num_edges, np.int64)
    edges = np.array([end for _, end in _cut(num_edges, threads * 16)])
    cuts = np.unique(np.concatenate([[0], np.searchsorted(begins, edges, side="left"), [begins.size - 1]])).tolist()

    def sort_piece(k: int) -> int:
        first, last = cuts[k], cuts[k + 1]
        scratch = np.empty((int(np.diff(begins[first : last + 1]).max()), 2), np.int64)
        tables = times.data_ptr(), row.data_ptr(), position.data_ptr()
        sort_by_time(colptr.data_ptr(), first, last, time.data_ptr(), *tables, scratch.ctypes.data)
        return int(begins[last] - begins[first])

    in_threads(sort_piece, range(len(cuts) - 1), threads, bar)
    return times


def _cut(num_edges: int, pieces: int) -> list[tuple[int, int]]:
    """Return ranges of edges of equal length, none of them very short."""
    pieces = max(1, min(pieces, num_edges // _SHORTEST))
    return [(num_edges * k // pieces, num_edges * (k + 1) // pieces) for k in range(pieces)]


def _plain(ids: Tensor) -> Tensor:
    return (ids if ids.dtype in (torch.int64, torch.int32) else ids.int()).contiguous()
