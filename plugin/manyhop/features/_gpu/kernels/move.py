"""Moving rows: from rows of a table, or one after the other, to such."""

import triton
import triton.language as tl

TILE = tl.constexpr(512)  # words of a program
LINEAR = tl.constexpr(0)  # rows 0, 1, ...
NARROW = tl.constexpr(4)  # rows that int32 numbers name
WIDE = tl.constexpr(8)  # rows that int64 numbers name


@triton.jit(do_not_specialize=["source", "source_rows", "target", "target_rows", "count", "words"])
def move_rows(
    source,
    source_rows,
    target,
    target_rows,
    count,
    words,
    WORD: tl.constexpr,
    LANES: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
):
    """Copy ``count`` rows of ``words`` times ``LANES`` words.

    source, target: addresses of row 0. source_rows, target_rows: of ``[count]`` row numbers, unless FROM, or TO, is
    LINEAR.
    """
    SIZE: tl.constexpr = LANES * WORD.primitive_bitwidth // 8
    start = tl.program_id(0).to(tl.int64) * TILE
    first = start // words
    w = (start - first * words).to(tl.int32) + tl.arange(0, TILE)  # words from the beginning of the first row
    r = w // words.to(tl.int32)
    column = (w - r * words.to(tl.int32)).to(tl.int64) * SIZE
    r = first + r
    inside = r < count
    a = source + _rows(source_rows, r, inside, FROM) * words * SIZE + column
    b = target + _rows(target_rows, r, inside, TO) * words * SIZE + column
    if LANES == 1:
        value = tl.load(a.to(tl.pointer_type(WORD)), mask=inside)
        tl.store(b.to(tl.pointer_type(WORD)), value, mask=inside)
    else:
        lane = tl.arange(0, LANES)[None, :]
        x = tl.multiple_of(a.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16])
        y = tl.multiple_of(b.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16])
        tl.store(y, tl.load(x, mask=inside[:, None]), mask=inside[:, None])


@triton.jit
def _rows(rows, r, inside, KIND: tl.constexpr):
    """The numbers of the rows ``r``."""
    if KIND == LINEAR:
        n = r
    elif KIND == NARROW:
        n = tl.load(rows.to(tl.pointer_type(tl.int32)) + r, mask=inside, other=0).to(tl.int64)
    else:
        n = tl.load(rows.to(tl.pointer_type(tl.int64)) + r, mask=inside, other=0)
    return n
