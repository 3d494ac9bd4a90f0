"""Copies of rows between tables, messages and results, by the GPU. Importing this module imports triton."""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl

from manyhop.features.kernels.gather import load_words, rows_of_tile, store_words
from manyhop.features.kernels.routes import report
from manyhop.system.triton_launch import Kernel

TILE = tl.constexpr(512)  # words of a program
LINEAR = tl.constexpr(0)  # rows 0, 1, ...
NARROW = tl.constexpr(4)  # rows that int32 numbers name
WIDE = tl.constexpr(8)  # rows that int64 numbers name


@triton.jit
def move_rows(
    source, source_rows, target, target_rows, count, words,
    WORD: tl.constexpr, LANES: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr,
):  # fmt: skip
    """Copy ``count`` rows of ``words`` times ``LANES`` words.

    source, target: addresses of row 0. source_rows, target_rows: of ``[count]`` row numbers, unless FROM, or TO, is
    LINEAR.
    """
    start = tl.program_id(0).to(tl.int64) * TILE
    r, column, inside = rows_of_tile(start, count, words, TILE)
    _copy(
        source, _numbers(source_rows, r, inside, FROM), target, _numbers(target_rows, r, inside, TO), column, inside,
        words, WORD, LANES,
    )  # fmt: skip


@triton.jit
def serve(
    headers, words, host, host_words, others, state, host_state, state_words, before, before_words, reports,
    source, num_rows, ids, lengths, target, stride, cap, row_words, blocks,
    WORD: tl.constexpr, LANES: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Report the received headers to the host (see ``report``; ``reports`` programs, all or none), and gather rows that
    other ranks request: at most ``cap`` for each, by ``blocks`` programs.

    - source: address of row 0 of ``num_rows``, with ``row_words`` words each.
    - ids, lengths: addresses in the message of the first other rank; messages follow each other by ``words`` int64.
      ``[cap]`` ids, NARROW or WIDE (KIND), undefined after a failed exchange; and the int64 with their number.
    - target: address of the rows for the first other rank; rows for the next one follow ``stride`` bytes later.
    """
    program = tl.program_id(0)
    if program < reports:
        report(program, headers, words, host, host_words, others, state, host_state, state_words, before, before_words)
    else:
        other = (program - reports) // blocks
        start = ((program - reports) % blocks).to(tl.int64) * TILE
        header = other.to(tl.int64) * words * 8
        wanted = tl.load((lengths + header).to(tl.pointer_type(tl.int64)))
        count = tl.minimum(wanted, cap)
        if start < count * row_words:
            r, column, inside = rows_of_tile(start, count, row_words, TILE)
            numbers = _numbers(ids + header, r, inside, KIND)
            inside = inside & (numbers >= 0) & (numbers < num_rows)
            to = target + other.to(tl.int64) * stride
            _copy(source, numbers, to, r, column, inside, row_words, WORD, LANES)


@triton.jit
def settle(
    came, stride, cap, own, hot, most, totals, num_ranks, rows, positions, target, words, blocks, own_blocks,
    WORD: tl.constexpr, LANES: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Copy rows to the result: the first ``cap`` rows of each other rank, own rows, and cached rows.

    - came: address of the rows from the first other rank; rows of the next one follow ``stride`` bytes later.
    - own, hot: addresses of row 0 of the part of this rank, and of the cache. most: number of own or cached rows.
    - totals: address of ``[num_ranks + 2] int64``: entries of each bucket (see ``mark``).
    - rows, positions: addresses of all entries, by bucket: NARROW or WIDE (KIND), and int32.
    - target: address of row 0 of the result.

    ``blocks`` programs copy the rows of each other rank, then ``own_blocks`` own rows, and ``own_blocks`` cached rows.
    """
    program = tl.program_id(0)
    others = num_ranks - 1
    after = program - others * blocks
    linear = after < 0
    bucket = tl.where(linear, program // blocks, others + after // tl.maximum(own_blocks, 1)) + 1
    start = tl.where(linear, program % blocks, after % tl.maximum(own_blocks, 1)).to(tl.int64) * TILE
    counts = totals.to(tl.pointer_type(tl.int64))
    first = tl.load(counts)
    for b in range(1, bucket):
        first += tl.load(counts + b)
    count = tl.minimum(tl.load(counts + bucket), tl.where(linear, cap, most))
    if start < count * words:
        r, column, inside = rows_of_tile(start, count, words, TILE)
        source = tl.where(linear, came + (bucket - 1).to(tl.int64) * stride, tl.where(bucket == num_ranks, own, hot))
        named = _numbers(rows, first + r, inside & (linear == 0), KIND)
        to = _numbers(positions, first + r, inside, NARROW)
        _copy(source, tl.where(linear, r, named), target, to, column, inside, words, WORD, LANES)


@triton.jit
def _copy(source, source_rows, target, target_rows, column, inside, words, WORD: tl.constexpr, LANES: tl.constexpr):
    """Copy one word (LANES times WORD) of some row each."""
    SIZE: tl.constexpr = LANES * WORD.primitive_bitwidth // 8
    a = source + source_rows * words * SIZE + column * SIZE
    b = target + target_rows * words * SIZE + column * SIZE
    store_words(b, load_words(a, inside, WORD, LANES), inside, WORD, LANES)


@triton.jit
def _numbers(rows, r, inside, KIND: tl.constexpr):
    """Return the numbers of the rows ``r``."""
    if KIND == LINEAR:
        n = r
    elif KIND == NARROW:
        n = tl.load(rows.to(tl.pointer_type(tl.int32)) + r, mask=inside, other=0).to(tl.int64)
    else:
        n = tl.load(rows.to(tl.pointer_type(tl.int64)) + r, mask=inside, other=0)
    return n


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
