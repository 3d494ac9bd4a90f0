"""Move rows between tables and buffers on a GPU; layout of the rows in messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl

from manyhop.features.exchange.gpu.flight import IDS, LENGTHS, Flight
from manyhop.features.exchange.gpu.quota import Shares
from manyhop.features.exchange.gpu.routes import Group
from manyhop.features.kernels.move import LINEAR, NARROW, TILE, move_rows, serve, settle
from manyhop.system.triton_launch import Kernel

PART_BYTES = 128 << 20
"""Approximate size of a part: while one is in flight, the next one is gathered."""

_ALIGNMENT = 16
_WORDS = {16: (tl.int64, 2), 8: (tl.int64, 1), 4: (tl.int32, 1), 2: (tl.int16, 1), 1: (tl.int8, 1)}


@dataclass
class Piece:
    """Rows of one tensor, for or from one rank, in a part."""

    rank: int
    group: int
    """Number of their index."""
    table: int
    """Number of the tensor among those of the index."""
    begin: int
    """First row, among those of the rank and the index."""
    end: int
    """End of the rows, exclusive."""
    offset: int
    """Offset in the part, in bytes."""


def lay_out(
    counts: Sequence[Sequence[int]], done: Sequence[int], widths: Sequence[Sequence[int]], k: int, parts: int
) -> tuple[list[Piece], list[int]]:
    """Lay out the rows of part ``k``: contiguous for each rank, tensor by tensor.

    Args:
        counts: ``[num_ranks][groups]``: rows to send to, or to receive from, each rank, for each index.
        done: ``[groups]``: rows that were sent before.
        widths: ``[groups][tables]``: bytes of a row of each tensor that is read by that index.
        k: number of the part.
        parts: number of parts.

    Returns:
        The pieces, and the bytes of each rank, ``[num_ranks]``.
    """
    pieces: list[Piece] = []
    end, sizes = 0, []
    for rank, of_rank in enumerate(counts):
        begin = end
        for g, (count, before) in enumerate(zip(of_rank, done, strict=True)):
            left = max(0, count - before)
            first, last = before + left * k // parts, before + left * (k + 1) // parts
            for t, width in enumerate(widths[g] if last > first else ()):
                pieces.append(Piece(rank, g, t, first, last, end))
                end += -(-(last - first) * width // _ALIGNMENT) * _ALIGNMENT
        sizes.append(end - begin)
    return pieces, sizes


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
    size = math.gcd(source | target | row_bytes, _ALIGNMENT)
    words = row_bytes // size
    kernel = mover(size, id_bytes, NARROW.value if target_rows else LINEAR.value)
    kernel(device, _tiles(count * words), source, source_rows, target, target_rows, count, words)


def enqueue_serve(groups: Sequence[Group], flight: Flight, shares: Shares, sent: int, stride: int, stream: Any) -> None:
    """Report the received headers to the host, and gather the first rows that other ranks request.

    Args:
        groups: groups of requests.
        flight: the received headers and ids.
        shares: layout of the message, with the largest numbers of rows.
        sent: address of the message to the first other rank.
        stride: bytes from a message to the next one.
        stream: the current stream.
    """
    others, header, device = flight.ranks - 1, flight.received_at, flight.sent.device
    arguments, reports = flight.report_arguments(), flight.ranks + 1
    for g, group in enumerate(groups):
        cap = shares.row_caps[g]
        for source, width, begin in zip(group.sources, group.widths, shares.row_begins[g], strict=True):
            if cap and width:
                rows = source.rows
                at = rows.data_ptr()
                size = math.gcd(at | width, _ALIGNMENT)
                blocks = _tiles(cap * width // size)
                server(size, group.id_bytes)(
                    device, reports + others * blocks, *arguments, reports, at, rows.shape[0],
                    header + 8 * (IDS + shares.id_begins[g]), header + 8 * (LENGTHS + g), sent + begin, stride, cap,
                    width // size, blocks,
                )  # fmt: skip
                reports = 0
    if reports:
        server(16, NARROW.value)(device, reports, *arguments, reports, header, 0, header, header, header, 0, 0, 1, 1)
    flight.record_report(stream)


def enqueue_settle(
    groups: Sequence[Group], flight: Flight, shares: Shares, received: int, stride: int, *, own: bool
) -> None:
    """Scatter the rows of speculative messages to the results, on the current stream.

    Args:
        groups: groups of requests.
        flight: the exchange, whose state has the numbers of rows.
        shares: layout of the messages, with the largest numbers of rows.
        received: address of the message from the first other rank.
        stride: bytes from a message to the next one.
        own: also copy own and cached rows.
    """
    ranks = flight.ranks
    for g, group in enumerate(groups):
        cap, most = shares.row_caps[g], group.count if own else 0
        totals = flight.state_at + 8 * g * (ranks + 3)
        for source, out, width, begin in zip(
            group.sources, group.outs, group.widths, shares.row_begins[g], strict=True
        ):
            mine, kept = source.rows.data_ptr(), 0 if source.hot_rows is None else source.hot_rows.data_ptr()
            target = out.data_ptr()
            size = math.gcd((mine | kept if own else 0) | target | width, _ALIGNMENT)
            blocks, own_blocks = (_tiles(most_rows * width // size) for most_rows in (cap, most))
            programs = (ranks - 1) * blocks + (1 + (own and kept != 0)) * own_blocks
            if programs:
                settler(size, group.id_bytes)(
                    group.index.device, programs, received + begin, stride, cap, mine, kept, most, totals, ranks,
                    group.rows_at, group.positions_at, target, width // size, blocks, own_blocks,
                )  # fmt: skip


def _tiles(words: int) -> int:
    return -(-words // int(TILE.value))


@cache
def mover(size: int, source: int, target: int) -> Kernel:
    """Return the copy kernel for words of ``size`` bytes; ``source``, ``target``: bytes of row numbers, 0: none."""
    return Kernel(move_rows, (0,) * 6, (*_WORDS[size], source, target), num_warps=4)


@cache
def server(size: int, ids: int) -> Kernel:
    """Return the kernel that gathers rows for other ranks; ``ids``: bytes of row numbers."""
    return Kernel(serve, (0,) * 20, (*_WORDS[size], ids), num_warps=4)


@cache
def settler(size: int, ids: int) -> Kernel:
    """Return the kernel that scatters rows to the results; ``ids``: bytes of row numbers."""
    return Kernel(settle, (0,) * 14, (*_WORDS[size], ids), num_warps=4)


def usual_kernels() -> list[Kernel]:
    """Return the kernels for rows of a multiple of 16 bytes."""
    narrow = NARROW.value
    return [
        *(mover(16, source, target) for source, target in [(narrow, 0), (narrow, narrow), (0, narrow)]),
        server(16, narrow),
        settler(16, narrow),
    ]
