"""Moving rows between tables and buffers on a GPU, and how rows for another rank are laid out on their way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import triton.language as tl
from torch import Tensor

from manyhop.features._gpu._launch import Kernel
from manyhop.features._gpu.kernels.move import LINEAR, TILE, move_rows

PART_BYTES = 128 << 20
"""About what a rank sends at a time: while it is on its way, the next part is put together."""

_ALIGNMENT = 16
_WORDS = {16: (tl.int64, 2), 8: (tl.int64, 1), 4: (tl.int32, 1), 2: (tl.int16, 1), 1: (tl.int8, 1)}


@dataclass
class Piece:
    """Rows of one tensor in a part."""

    group: int
    """Which index asks for them."""
    table: int
    """Which of the tensors that are read by that index."""
    begin: int
    """The first of the rows that are asked for by that index, by rank."""
    end: int
    """The one after the last."""
    offset: int
    """Bytes from the beginning of the part."""


def lay_out(
    counts: Sequence[Sequence[int]], widths: Sequence[Sequence[int]], k: int, parts: int
) -> tuple[list[Piece], list[int]]:
    """Where the rows of part ``k`` lie on their way: those of each rank behind each other, tensor by tensor.

    Args:
        counts: ``[num_ranks][groups]``: rows to send to, or to receive from, each rank, for each index.
        widths: ``[groups][tables]``: bytes of a row of each tensor that is read by that index.
        k: which part.
        parts: how many there are.

    Returns:
        Pieces, of which those that follow each other in all respects are one; and ``[num_ranks]`` bytes.
    """
    pieces: list[Piece] = []
    before, end, sizes = [0] * len(widths), 0, []
    for of_rank in counts:
        begin = end
        for g, count in enumerate(of_rank):
            first, last = before[g] + count * k // parts, before[g] + count * (k + 1) // parts
            before[g] += count
            for t, width in enumerate(widths[g] if last > first else ()):
                piece = Piece(g, t, first, last, end)
                if pieces and _follows(piece, pieces[-1], width):
                    pieces[-1].end = last
                else:
                    pieces.append(piece)
                end += -(-(last - first) * width // _ALIGNMENT) * _ALIGNMENT
        sizes.append(end - begin)
    return pieces, sizes


def _follows(piece: Piece, other: Piece, width: int) -> bool:
    same = (piece.group, piece.table, piece.begin) == (other.group, other.table, other.end)
    return same and piece.offset == other.offset + (other.end - other.begin) * width


def move(
    source: int, source_rows: Tensor | None, target: int, target_rows: Tensor | None, count: int, row_bytes: int,
    device: torch.device,
) -> None:  # fmt: skip
    """Copy ``count`` rows of ``row_bytes``, on the current stream.

    Args:
        source: address of row 0.
        source_rows: ``[count] int32 or int64`` row numbers; ``None``: ``0, 1, ...``
        target: address of row 0.
        target_rows: ``[count] int32 or int64`` row numbers; ``None``: ``0, 1, ...``
        count: how many rows.
        row_bytes: bytes of a row.
        device: whose stream it is.
    """
    if count == 0 or row_bytes == 0:
        return
    size = math.gcd(source | target | row_bytes, _ALIGNMENT)
    kernel = mover(size, _kind(source_rows), _kind(target_rows))
    kernel.prepare(device)
    words = row_bytes // size
    kernel(
        device,
        -(-count * words // TILE.value),
        source,
        0 if source_rows is None else source_rows.data_ptr(),
        target,
        0 if target_rows is None else target_rows.data_ptr(),
        count,
        words,
    )


@cache
def mover(size: int, source: int, target: int) -> Kernel:
    """The kernel for words of ``size`` bytes; ``source`` and ``target``: bytes of row numbers, 0 for none."""
    return Kernel(move_rows, (0,) * 6, (*_WORDS[size], source, target), num_warps=4)


def _kind(rows: Tensor | None) -> int:
    return LINEAR.value if rows is None else rows.element_size()
