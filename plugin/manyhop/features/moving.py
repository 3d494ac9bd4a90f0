"""Copies of rows between tables and buffers by the GPU. Importing this module imports triton."""

from __future__ import annotations

import math
from functools import cache

import torch
import triton.language as tl

from manyhop.features.kernels.move import LINEAR, NARROW, TILE, move_rows
from manyhop.system.triton_launch import Kernel

ALIGNMENT = 16
"""Bytes that a thread copies at once, at most."""

WORDS = {16: (tl.int64, 2), 8: (tl.int64, 1), 4: (tl.int32, 1), 2: (tl.int16, 1), 1: (tl.int8, 1)}
"""Bytes of a word -> its type, and how many make it up."""


def move(
    source: int, target: int, count: int, row_bytes: int, device: torch.device, *,
    source_rows: int = 0, id_bytes: int = LINEAR.value, target_rows: int = 0,
) -> None:  # fmt: skip
    """Copy ``count`` rows of ``row_bytes``, on the current stream.

    Args:
        source: address of row 0 of the source.
        target: address of row 0 of the target.
        count: number of rows.
        row_bytes: bytes of a row.
        device: device of the stream.
        source_rows: address of ``[count]`` row numbers.
        id_bytes: bytes of a row number, 4 or 8; 0: rows ``0, 1, ...``
        target_rows: address of ``[count] int32`` row numbers; 0: rows ``0, 1, ...``
    """
    if count == 0 or row_bytes == 0:
        return
    size = math.gcd(source | target | row_bytes, ALIGNMENT)
    words = row_bytes // size
    kernel = mover(size, id_bytes, NARROW.value if target_rows else LINEAR.value)
    kernel(device, tiles(count * words), source, source_rows, target, target_rows, count, words)


@cache
def mover(size: int, source: int, target: int) -> Kernel:
    """Return the copy kernel for words of ``size`` bytes; ``source``, ``target``: bytes of row numbers, 0: none."""
    return Kernel(move_rows, (*WORDS[size], source, target))


def tiles(words: int) -> int:
    """Return the number of programs that copy so many words."""
    return -(-words // int(TILE.value))
