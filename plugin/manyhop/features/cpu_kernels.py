"""Copies of rows. Importing this module imports numba and compiles (or loads) the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from manyhop.system.numba_kernels import (
    fence,
    helper,
    i32,
    i64,
    kernel,
    prefetch,
    prefetch8_far,
    prefetch8_near,
)

_LINE = 64  # bytes of a cache line
_BLOCK = 512  # bytes that are copied, and prefetched, at once
_BYTES_AHEAD, _MOST_AHEAD = 48 << 10, 256  # largest distance of prefetches from memory: bytes, rows
_TOGETHER = 8  # rows of a loop whose prefetches are no branches: 0.78 to 0.89 of the time on a Xeon
_ROWS_NEAR = 4  # distance of prefetches from the L2 cache, for rows of more than 8 bytes
_MOST = 4096  # bytes of a row that are prefetched; the hardware has noticed by then
_MOVED_AHEAD = 8
_STREAM_BYTES = 4 << 20  # larger results bypass the caches, which the sampler needs more


def _copy_of(num_bytes: int, *, stream: bool = False) -> Any:
    """Return an intrinsic that copies a fixed number of bytes of any alignment in few instructions.

    With ``stream``, the copy bypasses the caches. The target must be a multiple of 64, and a :func:`fence` must follow.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(typingctx: Any, target: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            width = min(num_bytes, _LINE)
            word = ir.IntType(8) if num_bytes < 8 else ir.IntType(64)
            kind = ir.VectorType(word, width // (word.width // 8)) if num_bytes > 1 else word
            to, from_ = (builder.inttoptr(arg, kind.as_pointer()) for arg in args)
            places = [ir.Constant(ir.IntType(64), i) for i in range(num_bytes // width)]
            # All loads first: a load that waits for memory would hold up the stores before the next one.
            lines = [builder.load(builder.gep(from_, [place]), align=1) for place in places]
            for place, line in zip(places, lines, strict=True):
                store = builder.store(line, builder.gep(to, [place]), align=width if stream else 1)
                if stream:
                    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


copy512, copy64, copy8, copy4, copy1 = (_copy_of(n) for n in (_BLOCK, 64, 8, 4, 1))
_stream512, _stream64 = (_copy_of(n, stream=True) for n in (_BLOCK, _LINE))


@helper
def copy_rest(target: Any, source: Any, done: int, num_bytes: int) -> None:
    """Copy the rest after the first ``done`` bytes, line by line."""
    while done + _LINE <= num_bytes:
        copy64(target + done, source + done)
        done += _LINE
    while done + 8 <= num_bytes:
        copy8(target + done, source + done)
        done += 8
    while done < num_bytes:
        copy1(target + done, source + done)
        done += 1


@helper
def _prefetch_far(row: Any, num_bytes: int) -> None:
    """Prefetch a row from memory: whole blocks into the L2 cache, which :func:`_prefetch_near` prefetches again."""
    end = row + num_bytes
    while row + _BLOCK <= end:
        prefetch8_far(np.uint64(row))
        row += _BLOCK
    while row < end:
        prefetch(np.uint64(row))
        row += _LINE
    prefetch(np.uint64(end - 1))  # rows need not begin with a line


@helper
def _prefetch_near(row: Any, num_bytes: int) -> None:
    """Prefetch the whole blocks of a row from the L2 cache into the L1 cache."""
    end = row + num_bytes
    while row + _BLOCK <= end:
        prefetch8_near(np.uint64(row))
        row += _BLOCK


def _rows_of(num_bytes: int, copy: Any) -> Callable[[Any, int, np.uint64, int], int]:
    """Return a helper that gathers contiguous rows of a fixed number of bytes."""

    @helper
    def gather(rows: Any, source: int, limit: np.uint64, target: int) -> int:
        i = 0
        while i + _MOST_AHEAD + _TOGETHER <= rows.size:
            for k in range(i + _MOST_AHEAD, i + _MOST_AHEAD + _TOGETHER):
                prefetch(np.uint64(source + rows[k] * num_bytes))
            for k in range(i, i + _TOGETHER):
                if np.uint64(rows[k]) >= limit:
                    return k
                copy(target + k * num_bytes, source + rows[k] * num_bytes)
            i += _TOGETHER
        for k in range(i, rows.size):
            if np.uint64(rows[k]) >= limit:
                return k
            copy(target + k * num_bytes, source + rows[k] * num_bytes)
        return -1

    return gather


_gather4, _gather8 = _rows_of(4, copy4), _rows_of(8, copy8)


@helper
def _gather(rows: Any, source: int, stride: int, limit: np.uint64, target: int, row_bytes: int) -> int:
    if row_bytes == 4 and stride == 4:
        return _gather4(rows, source, limit, target)
    if row_bytes == 8 and stride == 8:
        return _gather8(rows, source, limit, target)
    count, most = rows.size, max(1, min(row_bytes, _MOST))
    ahead = min(_MOST_AHEAD, _BYTES_AHEAD // most)
    stream = (row_bytes | target) % _LINE == 0 and count * row_bytes >= _STREAM_BYTES
    for i in range(count):
        if i + ahead < count:
            _prefetch_far(source + rows[i + ahead] * stride, most)
            _prefetch_near(source + rows[i + _ROWS_NEAR] * stride, most)
        if np.uint64(rows[i]) >= limit:
            return i
        a, b, done = target + i * row_bytes, source + rows[i] * stride, 0
        if stream:
            while done + _BLOCK <= row_bytes:
                _stream512(a + done, b + done)
                done += _BLOCK
            while done < row_bytes:
                _stream64(a + done, b + done)
                done += _LINE
        while done + _BLOCK <= row_bytes:
            copy512(a + done, b + done)
            done += _BLOCK
        copy_rest(a, b, done, row_bytes)
    if stream:
        fence()  # stores past the caches are seen by other threads after this
    return -1


@kernel("int64(int64, int64, int64, int64, boolean, int64, int64, int64)")
def gather_rows(
    source: int, stride: int, num_rows: int, index: int, wide: bool, count: int, target: int, row_bytes: int
) -> int:
    """Copy rows to consecutive memory.

    Args:
        source: address of row 0.
        stride: bytes from one row to the next, of any sign.
        num_rows: rows of the source; an index outside is not read.
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        target: address of the first copy.
        row_bytes: bytes of a row.

    Returns:
        Position of the first index that is out of range, otherwise -1.
    """
    if wide:
        return _gather(i64(index, count), source, stride, np.uint64(num_rows), target, row_bytes)
    return _gather(i32(index, count), source, stride, np.uint64(num_rows), target, row_bytes)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def move_rows(source: int, source_rows: int, target: int, target_rows: int, count: int, row_bytes: int) -> None:
    """Copy row ``source_rows[i]`` to row ``target_rows[i]``, for each ``i``.

    Args:
        source: address of row 0.
        source_rows: address of ``[count]`` row numbers; 0: ``0, 1, ...``
        target: address of row 0.
        target_rows: address of ``[count]`` row numbers; 0: ``0, 1, ...``
        count: how many rows.
        row_bytes: bytes of a row.
    """
    from_rows, to_rows = i64(source_rows, count), i64(target_rows, count)
    for i in range(count):
        if i + _MOVED_AHEAD < count:
            if source_rows != 0:
                ahead = source + from_rows[i + _MOVED_AHEAD] * row_bytes
                prefetch(np.uint64(ahead))
                prefetch(np.uint64(ahead + min(64, row_bytes - 1)))
            if target_rows != 0:
                prefetch(np.uint64(target + to_rows[i + _MOVED_AHEAD] * row_bytes))
        a = target + (to_rows[i] if target_rows != 0 else i) * row_bytes
        b = source + (from_rows[i] if source_rows != 0 else i) * row_bytes
        copy_rest(a, b, 0, row_bytes)
