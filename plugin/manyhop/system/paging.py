"""Compiled calls of ``madvise`` for pages of mapped files. Importing this module imports numba."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types

from manyhop.system.numba_kernels import helper, i64, kernel

_PAGE = mmap.PAGESIZE
_RANDOM, _WILL_NEED = getattr(mmap, "MADV_RANDOM", 1), getattr(mmap, "MADV_WILLNEED", 3)

_advise: Any = types.ExternalFunction("madvise", types.int32(types.uint64, types.uint64, types.int32))


@kernel("void(int64, int64)")
def advise_random(source: int, num_bytes: int) -> None:
    """Disable read-ahead of mapped memory.

    With it, a fault reads megabytes around a page, which may evict requested pages before they are copied.
    """
    begin = source // _PAGE * _PAGE
    _advise(np.uint64(begin), np.uint64(source + num_bytes - begin), np.int32(_RANDOM))


@kernel("void(int64, int64, int64, int64)")
def prefetch_rows(source: int, row_bytes: int, rows: int, count: int) -> None:
    """Request rows of a mapped file from the system, without waiting for them.

    Args:
        source: address of row 0.
        row_bytes: bytes of a row.
        rows: address of ``[count]`` row numbers.
        count: number of rows.
    """
    row = i64(rows, count)
    for i in range(count):
        begin = (source + row[i] * row_bytes) // _PAGE * _PAGE
        end = source + (row[i] + 1) * row_bytes
        _advise(np.uint64(begin), np.uint64(end - begin), np.int32(_WILL_NEED))


@helper
def prefetch_numbers(source: np.uint64, num_bytes: int, positions: npt.NDArray[np.uint64]) -> None:
    """Request numbers of a mapped file from the system. Consecutive numbers of one page cause one request.

    Args:
        source: address of number 0, a multiple of ``num_bytes``.
        num_bytes: bytes of each.
        positions: ``[count]``, of the numbers.
    """
    page = np.uint64(_PAGE)
    before = np.uint64(0)
    for x in range(positions.size):
        begin = (source + np.uint64(num_bytes) * positions[x]) // page * page
        if begin != before:
            _advise(begin, page, np.int32(_WILL_NEED))
            before = begin
