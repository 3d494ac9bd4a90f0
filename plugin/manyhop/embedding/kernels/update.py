"""Sums of gradients by row, and the update of rows: gradients, rows and states are read once.

A row that has gradients beyond a multiple of ``PIECE`` positions is summed in pieces, by programs of a launch before.
"""

import triton
import triton.language as tl

from manyhop.embedding import rules
from manyhop.embedding.rules import Kind

_ADAM = tl.constexpr(int(Kind.ADAM))
_ADAGRAD = tl.constexpr(int(Kind.ADAGRAD))
_RMSPROP = tl.constexpr(int(Kind.RMSPROP))
_SGD = tl.constexpr(int(Kind.SGD))
_STORE = tl.constexpr(int(Kind.STORE))
_PIECE = tl.constexpr(rules.PIECE)
NUMBERS = tl.constexpr(5)  # float32 of a launch: scale, h0 to h3


@triton.jit(
    do_not_specialize=[
        "ids", "order", "count", "grads", "pieces", "weight", "first", "state_a", "state_b", "width", "numbers",
    ]
)  # fmt: skip
def update_rows(
    ids,
    order,
    count,
    grads,
    pieces,
    weight,
    first,
    state_a,
    state_b,
    width,
    numbers,
    KIND: tl.constexpr,
    WIDE_GRADS: tl.constexpr,
    WIDE_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Update some columns of the rows that begin at ``ROWS`` positions of the ascending ids.

    All others as in ``manyhop.embedding.cpu_kernels.update_rows``. pieces: what ``sum_pieces`` has written. numbers:
    the bits of ``NUMBERS`` float32. Sums have the same order in every launch.
    """
    program = tl.program_id(0).to(tl.int64)
    blocks = (width + COLUMNS - 1) // COLUMNS
    i = (program // blocks) * ROWS + tl.arange(0, ROWS)
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    id_of = ids.to(tl.pointer_type(tl.int64))
    inside = i < count
    row = tl.load(id_of + i, mask=inside, other=0)
    before = tl.load(id_of + i - 1, mask=inside & (i > 0), other=0)
    leads = inside & ((i == 0) | (before != row))
    columns = (column < width)[None, :]
    at = (row - first)[:, None] * width + column[None, :]
    mask = leads[:, None] & columns
    if WIDE_WEIGHT:
        target = weight.to(tl.pointer_type(tl.float32)) + at
    else:
        target = weight.to(tl.pointer_type(tl.bfloat16)) + at
    # All that is read of a row is under way before gradients are added.
    if KIND != _STORE:
        w = tl.load(target, mask=mask, other=0).to(tl.float32)
    if (KIND == _ADAM) | (KIND == _ADAGRAD) | (KIND == _RMSPROP):
        at_a = state_a.to(tl.pointer_type(tl.float32)) + at
        a = tl.load(at_a, mask=mask, other=0)
    if KIND == _ADAM:
        at_b = state_b.to(tl.pointer_type(tl.float32)) + at
        b = tl.load(at_b, mask=mask, other=0)
    total = _sum_to_boundary(id_of, order, grads, i, count, row, leads, column, width, WIDE_GRADS)
    number = i // _PIECE + 1
    more = _has_more(id_of, number * _PIECE, count, row, leads)
    going = tl.max(more.to(tl.int32), 0)
    while going > 0:
        piece = pieces.to(tl.pointer_type(tl.float32)) + number[:, None] * width + column[None, :]
        total += tl.load(piece, mask=more[:, None] & columns, other=0)
        number += 1
        more = _has_more(id_of, number * _PIECE, count, row, more)
        going = tl.max(more.to(tl.int32), 0)
    g = total * _number(numbers[0])
    h0, h1, h2, h3 = _number(numbers[1]), _number(numbers[2]), _number(numbers[3]), _number(numbers[4])
    if KIND == _SGD:
        w -= h0 * g
    elif KIND == _ADAM:
        a += h1 * (g - a)
        b += h2 * (g * g - b)
        w -= h0 * tl.div_rn(a, tl.sqrt_rn(b) + h3)
        tl.store(at_a, a, mask=mask)
        tl.store(at_b, b, mask=mask)
    elif KIND == _ADAGRAD:
        a += g * g
        w -= h0 * tl.div_rn(g, tl.sqrt_rn(a) + h3)
        tl.store(at_a, a, mask=mask)
    elif KIND == _RMSPROP:
        a += h1 * (g * g - a)
        w -= h0 * tl.div_rn(g, tl.sqrt_rn(a) + h3)
        tl.store(at_a, a, mask=mask)
    else:
        w = g
    if WIDE_WEIGHT:
        tl.store(target, w, mask=mask)
    else:
        tl.store(target, _narrow(w), mask=mask)


@triton.jit(do_not_specialize=["ids", "order", "count", "grads", "pieces", "width"])
def sum_pieces(
    ids, order, count, grads, pieces, width, WIDE_GRADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Sum the gradients from each multiple of ``_PIECE`` on that continues a row, up to the next one.

    pieces: address of ``[ceil(count / _PIECE), width] float32``; others stay undefined.
    """
    program = tl.program_id(0).to(tl.int64)
    blocks = (width + COLUMNS - 1) // COLUMNS
    number = (program // blocks) * ROWS + tl.arange(0, ROWS)
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    i = number * _PIECE
    id_of = ids.to(tl.pointer_type(tl.int64))
    inside = (i > 0) & (i < count)
    row = tl.load(id_of + i, mask=inside, other=0)
    continues = inside & (tl.load(id_of + i - 1, mask=inside, other=0) == row)
    if tl.max(continues.to(tl.int32), 0) > 0:
        total = _sum_to_boundary(id_of, order, grads, i, count, row, continues, column, width, WIDE_GRADS)
        target = pieces.to(tl.pointer_type(tl.float32)) + number[:, None] * width + column[None, :]
        tl.store(target, total, mask=continues[:, None] & (column < width)[None, :])


@triton.jit
def _sum_to_boundary(id_of, order, grads, i, count, row, rows, column, width, WIDE: tl.constexpr):
    """Return ``[ROWS, COLUMNS] float32``: the gradients of rows from positions on, up to the next boundary."""
    columns = (column < width)[None, :]
    total = _gradients(order, grads, i, column, rows, columns, width, WIDE)
    step = tl.full([], 1, tl.int64)
    more = _has_more(id_of, i + step, count, row, rows & ((i + step) % _PIECE != 0))
    going = tl.max(more.to(tl.int32), 0)
    while going > 0:
        total += _gradients(order, grads, i + step, column, more, columns, width, WIDE)
        step += 1
        more = _has_more(id_of, i + step, count, row, more & ((i + step) % _PIECE != 0))
        going = tl.max(more.to(tl.int32), 0)
    return total


@triton.jit
def _has_more(id_of, i, count, row, rows):
    """Return of which rows the gradient at a position is, too."""
    inside = rows & (i < count)
    return inside & (tl.load(id_of + i, mask=inside, other=0) == row)


@triton.jit
def _gradients(order, grads, i, column, rows, columns, width, WIDE: tl.constexpr):
    """Return ``[ROWS, COLUMNS] float32``: the gradients at some positions; zeros where there are none."""
    place = tl.load(order.to(tl.pointer_type(tl.int64)) + i, mask=rows, other=0)
    at = place[:, None] * width + column[None, :]
    mask = rows[:, None] & columns
    if WIDE:
        found = tl.load(grads.to(tl.pointer_type(tl.float32)) + at, mask=mask, other=0)
    else:
        found = tl.load(grads.to(tl.pointer_type(tl.bfloat16)) + at, mask=mask, other=0).to(tl.float32)
    return found


@triton.jit
def _narrow(w):
    """Return bfloat16, rounded to the nearest, ties to even: in triton's interpreter, too, which cuts bits off."""
    bits = w.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(w == w, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _number(bits):
    """Return the float32 that the lower bits of an integer are."""
    return bits.to(tl.int32).to(tl.float32, bitcast=True)
