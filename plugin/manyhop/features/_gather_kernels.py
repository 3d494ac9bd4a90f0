"""The copy loop of the gather. Importing this module imports numba and compiles (or loads) the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from manyhop.sampling._cpu_compile import i32, i64, kernel, prefetch

_ROWS_AHEAD = 8  # of rows longer than 16 bytes; measured 4, 8: no difference beyond noise
_SMALL_AHEAD = 24
_SMALL = 16


def _copy_of(num_bytes: int) -> Any:
    """An intrinsic that copies a fixed number of bytes, of any alignment, in as few instructions as the CPU has."""

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(typingctx: Any, target: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(8) if num_bytes < 8 else ir.IntType(64)
            kind = ir.VectorType(word, num_bytes // (word.width // 8)) if num_bytes > 1 else word
            loaded = builder.load(builder.inttoptr(args[1], kind.as_pointer()), align=1)
            builder.store(loaded, builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


_copy64, _copy16, _copy8, _copy4, _copy1 = (_copy_of(n) for n in (64, 16, 8, 4, 1))


@kernel("int64(int64, int64, int64, int64, boolean, int64, int64, int64)")
def gather_rows(
    source: int, stride: int, num_rows: int, index: int, wide: bool, count: int, target: int, row_bytes: int
) -> int:
    """Copy rows to consecutive places.

    Args:
        source: address of row 0.
        stride: bytes from one row to the next, of any sign.
        num_rows: rows of the source; an index outside is not read.
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        target: address of the first place.
        row_bytes: bytes of a row.

    Returns:
        Position of the first index that is out of range, -1 if there is none.
    """
    rows64, rows32 = i64(index, count), i32(index, count)
    limit = np.uint64(num_rows)
    if row_bytes <= _SMALL:
        for i in range(count):
            if i + _SMALL_AHEAD < count:
                ahead = rows64[i + _SMALL_AHEAD] if wide else np.int64(rows32[i + _SMALL_AHEAD])
                prefetch(np.uint64(source + ahead * stride))
            row = rows64[i] if wide else np.int64(rows32[i])
            if np.uint64(row) >= limit:
                return i
            a, b = target + i * row_bytes, source + row * stride
            if row_bytes == 4:
                _copy4(a, b)
            elif row_bytes == 8:
                _copy8(a, b)
            elif row_bytes == 16:
                _copy16(a, b)
            else:
                for j in range(row_bytes):
                    _copy1(a + j, b + j)
        return -1
    for i in range(count):
        if i + _ROWS_AHEAD < count:
            ahead = rows64[i + _ROWS_AHEAD] if wide else np.int64(rows32[i + _ROWS_AHEAD])
            # The hardware fetches the rest of a row once it has seen two cache lines of it.
            prefetch(np.uint64(source + ahead * stride))
            prefetch(np.uint64(source + ahead * stride + min(64, row_bytes - 1)))
        row = rows64[i] if wide else np.int64(rows32[i])
        if np.uint64(row) >= limit:
            return i
        a, b = target + i * row_bytes, source + row * stride
        done = 0
        while done + 64 <= row_bytes:
            _copy64(a + done, b + done)
            done += 64
        while done + 8 <= row_bytes:
            _copy8(a + done, b + done)
            done += 8
        while done < row_bytes:
            _copy1(a + done, b + done)
            done += 1
    return -1
