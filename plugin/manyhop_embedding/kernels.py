"""Sums of gradients by row, and the update of rows: gradients, rows and states are read once.

A row that has gradients beyond a multiple of ``PIECE`` positions is summed in pieces, by programs of a launch before.
"""

import triton
import triton.language as tl

from manyhop_embedding import gradients
from manyhop_embedding.gradients import Kind

_ADAM = tl.constexpr(int(Kind.ADAM))
_ADAGRAD = tl.constexpr(int(Kind.ADAGRAD))
_RMSPROP = tl.constexpr(int(Kind.RMSPROP))
_SGD = tl.constexpr(int(Kind.SGD))
_STORE = tl.constexpr(int(Kind.STORE))
_PIECE = tl.constexpr(gradients.PIECE)
NUMBERS = tl.constexpr(5)  # float32 of a launch: scale, h0 to h3


@triton.jit
def update_rows(
    ids, order, count, grads, pieces, weight, first, num_rows, left_out, state_a, state_b, stamps, stamp, numbers,
    KIND: tl.constexpr, WIDE_IDS: tl.constexpr, WIDE_GRADS: tl.constexpr, WIDE_WEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Update some columns of the rows that begin at ``ROWS`` positions of the ascending ids.

    All others as in ``manyhop_embedding.cpu_kernels.update_rows``, for positions ``[0, count)``. ids: int64 (WIDE_IDS)
    or int32. pieces: results of ``sum_pieces``. num_rows: of the weight. left_out: address of two int64, a range of its
    rows; 0: none. numbers: the bits of ``NUMBERS`` float32. LANES: numbers that are read at once, aligned in every row.
    Sums have the same order in every launch.
    """
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0).to(tl.int64)
    i = (program // blocks) * ROWS + tl.arange(0, ROWS)
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    id_of = _ids_at(ids, WIDE_IDS)
    inside = i < count
    row = tl.load(id_of + i, mask=inside, other=0).to(tl.int64)
    leads = inside & (tl.load(id_of + i - 1, mask=inside & (i > 0), other=-1) != row)
    row_of = row - first
    leads = leads & (row_of >= 0) & (row_of < num_rows)
    if left_out != 0:
        ends = left_out.to(tl.pointer_type(tl.int64))
        leads = leads & ((row_of < tl.load(ends)) | (row_of >= tl.load(ends + 1)))
    repeats = _has_more(id_of, i + 1, count, row, leads)
    at = row_of[:, None] * WIDTH + column[None, :]
    mask = leads[:, None] & (column < WIDTH)[None, :]
    # All that is read of a row is under way before it is known whether there are more gradients.
    total = _gradients(order, grads, i, column, leads, WIDE_GRADS, WIDTH, LANES)
    target = _numbers_at(weight, at, WIDE_WEIGHT, LANES)
    if KIND != _STORE:
        w = tl.load(target, mask=mask, other=0).to(tl.float32)
    if (KIND == _ADAM) | (KIND == _ADAGRAD) | (KIND == _RMSPROP):
        at_a = _numbers_at(state_a, at, True, LANES)
        a = tl.load(at_a, mask=mask, other=0)
    if KIND == _ADAM:
        at_b = _numbers_at(state_b, at, True, LANES)
        b = tl.load(at_b, mask=mask, other=0)
    if tl.max(repeats.to(tl.int32), 0) > 0:
        total = _sum_to_boundary(total, id_of, order, grads, i, count, row, repeats, column, WIDE_GRADS, WIDTH, LANES)
        total = _add_pieces(total, id_of, pieces, i, count, row, repeats, column, WIDTH, LANES)
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
    if stamps != 0:
        marks = stamps.to(tl.pointer_type(tl.int32)) + row_of
        tl.store(marks, tl.zeros([ROWS], tl.int32) + stamp.to(tl.int32), mask=leads)


@triton.jit
def sum_pieces(
    ids, order, count, grads, pieces,
    WIDE_IDS: tl.constexpr, WIDE_GRADS: tl.constexpr,
    WIDTH: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients from each multiple of ``_PIECE`` on that continues a row, up to the next one.

    pieces: address of ``[ceil(count / _PIECE), WIDTH] float32``; others remain undefined.
    """
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0).to(tl.int64)
    number = (program // blocks) * ROWS + tl.arange(0, ROWS)
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    i = number * _PIECE
    id_of = _ids_at(ids, WIDE_IDS)
    inside = (i > 0) & (i < count)
    row = tl.load(id_of + i, mask=inside, other=0).to(tl.int64)
    continues = inside & (tl.load(id_of + i - 1, mask=inside, other=0) == row)
    if tl.max(continues.to(tl.int32), 0) > 0:
        total = _gradients(order, grads, i, column, continues, WIDE_GRADS, WIDTH, LANES)
        total = _sum_to_boundary(total, id_of, order, grads, i, count, row, continues, column, WIDE_GRADS, WIDTH, LANES)
        target = _numbers_at(pieces, number[:, None] * WIDTH + column[None, :], True, LANES)
        tl.store(target, total, mask=continues[:, None] & (column < WIDTH)[None, :])


@triton.jit
def _sum_to_boundary(
    total, id_of, order, grads, i, count, row, rows, column,
    WIDE: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Add the gradients of rows after the positions ``i``, up to the next boundary."""
    step = tl.full([], 1, tl.int64)
    more = _has_more(id_of, i + step, count, row, rows & ((i + step) % _PIECE != 0))
    going = tl.max(more.to(tl.int32), 0)
    while going > 0:
        total += _gradients(order, grads, i + step, column, more, WIDE, WIDTH, LANES)
        step += 1
        more = _has_more(id_of, i + step, count, row, more & ((i + step) % _PIECE != 0))
        going = tl.max(more.to(tl.int32), 0)
    return total


@triton.jit
def _add_pieces(total, id_of, pieces, i, count, row, rows, column, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Add the results of ``sum_pieces`` for rows that continue beyond a boundary."""
    number = i // _PIECE + 1
    more = _has_more(id_of, number * _PIECE, count, row, rows)
    going = tl.max(more.to(tl.int32), 0)
    while going > 0:
        piece = _numbers_at(pieces, number[:, None] * WIDTH + column[None, :], True, LANES)
        total += tl.load(piece, mask=more[:, None] & (column < WIDTH)[None, :], other=0)
        number += 1
        more = _has_more(id_of, number * _PIECE, count, row, more)
        going = tl.max(more.to(tl.int32), 0)
    return total


@triton.jit
def _ids_at(ids, WIDE_IDS: tl.constexpr):
    """Return the pointer to ids, int64 or int32."""
    return ids.to(tl.pointer_type(tl.int64 if WIDE_IDS else tl.int32))


@triton.jit
def _has_more(id_of, i, count, row, rows):
    """Return the rows that have another gradient at a position."""
    inside = rows & (i < count)
    return inside & (tl.load(id_of + i, mask=inside, other=-1) == row)


@triton.jit
def _gradients(order, grads, i, column, rows, WIDE: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Return ``[ROWS, COLUMNS] float32``: the gradients at some positions; otherwise zeros."""
    place = tl.load(order.to(tl.pointer_type(tl.int64)) + i, mask=rows, other=0)
    at = _numbers_at(grads, place[:, None] * WIDTH + column[None, :], WIDE, LANES)
    return tl.load(at, mask=rows[:, None] & (column < WIDTH)[None, :], other=0).to(tl.float32)


@triton.jit
def _numbers_at(address, at, WIDE: tl.constexpr, LANES: tl.constexpr):
    """Return pointers to numbers, float32 (WIDE) or bfloat16, of which ``LANES`` are aligned, as rows are."""
    if WIDE:
        found = tl.multiple_of(address.to(tl.pointer_type(tl.float32)) + at, [1, 4 * LANES])
    else:
        found = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)) + at, [1, 2 * LANES])
    return found


@triton.jit
def _narrow(w):
    """Return bfloat16, rounded to the nearest, ties to even: in triton's interpreter as well, which cuts bits off."""
    bits = w.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(w == w, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _number(bits):
    """Return the float32 that the lower bits of an integer are."""
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def refresh_rows(
    ids, count, stamps, latest, table, num_rows, rows,
    WIDE_IDS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Copy the rows whose stamp is above ``latest`` from the table to their positions among the gathered rows.

    ids: address of ``[count]`` int64 (WIDE_IDS) or int32; those out of range are left alone. stamps: of an int32 per
    row of the table. table, rows: of ``[num_rows, WORDS]`` and ``[count, WORDS]`` words of 2 bytes. ROWS: rows of a
    program.
    """
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = i < count
    if WIDE_IDS:
        row = tl.load(ids.to(tl.pointer_type(tl.int64)) + i, mask=inside, other=0)
    else:
        row = tl.load(ids.to(tl.pointer_type(tl.int32)) + i, mask=inside, other=0).to(tl.int64)
    inside = inside & (row >= 0) & (row < num_rows)
    outdated = inside & (tl.load(stamps.to(tl.pointer_type(tl.int32)) + row, mask=inside, other=0) > latest)
    if tl.max(outdated.to(tl.int32), 0) > 0:
        target = rows.to(tl.pointer_type(tl.int16))
        source = table.to(tl.pointer_type(tl.int16))
        for begin in range(0, WORDS, 64):
            word = begin + tl.arange(0, 64)
            mask = outdated[:, None] & (word < WORDS)[None, :]
            words = tl.load(source + row[:, None] * WORDS + word[None, :], mask=mask, other=0)
            tl.store(target + i[:, None] * WORDS + word[None, :], words, mask=mask)
