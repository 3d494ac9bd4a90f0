"""CPU kernels of embeddings. Importing this module imports numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.random import draw, fold, unit
from manyhop.system.numba_kernels import f32, helper, i32, i64, kernel, prefetch8_far, u16, u64
from manyhop_embedding.gradients import PIECE, Kind

F32 = npt.NDArray[np.float32]

_ADAM, _ADAGRAD, _RMSPROP, _SGD = int(Kind.ADAM), int(Kind.ADAGRAD), int(Kind.RMSPROP), int(Kind.SGD)
_AHEAD = 8  # rows that are prefetched
_LINES = 512  # bytes of one prefetch
_DIGITS = 2048
_DIGIT, _DIGIT_BITS = np.uint64(_DIGITS - 1), np.uint64(11)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_SIGN, _QUIET = np.uint32(0x7FFFFFFF), np.uint16(0x7FC0)


@kernel("void(int64, int64, int64, int64, uint64, float64)")
def fill_uniform(out: int, first: int, count: int, width: int, key: np.uint64, bound: float) -> None:
    """Write initial rows: column ``j`` of row ``i`` is in ``[-bound, bound)``, from draw ``j`` of the row's key.

    out: address of ``[count, width] float32``, of which the first row has the number ``first``.
    """
    rows = f32(out, count * width)
    for i in range(count):
        of_row = fold(key, np.uint64(first + i))
        for j in range(width):
            rows[i * width + j] = np.float32((2.0 * unit(draw(of_row, np.uint64(j))) - 1.0) * bound)


@kernel(
    "void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64,"
    " int64, int64, float64, float64, float64, float64, float64)"
)
def update_rows(
    kind: int, ids: int, order: int, begin: int, end: int, grads: int, wide_grads: int,
    weight: int, wide_weight: int, first: int, state_a: int, state_b: int, width: int, stamps: int, stamp: int,
    scale: float, h0: float, h1: float, h2: float, h3: float,
) -> None:  # fmt: skip
    """Sum the gradients of each row and update it: see :class:`manyhop_embedding.gradients.Rule`.

    ids, order: addresses of int64, ascending row numbers and the gradient of each; positions ``[begin, end)`` are done,
    in which no row is only in part. grads, weight: of ``[..., width]``, float32 (wide) or bfloat16. first: the number
    of the row at ``weight``, and at the states, which are float32. stamps: address of an int32 per row, which gets
    ``stamp`` where the row is updated; 0: there are none. scale: factor of the sums.
    """
    id_of, order_of = i64(ids, end), i64(order, end)
    total, piece, row = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    factor, f0, f1, f2, f3 = np.float32(scale), np.float32(h0), np.float32(h1), np.float32(h2), np.float32(h3)
    grad_bytes, weight_bytes = width * (4 if wide_grads else 2), width * (4 if wide_weight else 2)
    i = begin
    while i < end:
        ahead = i + _AHEAD
        if ahead < end:
            _ask(grads + order_of[ahead] * grad_bytes, grad_bytes)
            near = id_of[ahead] - first
            _ask(weight + near * weight_bytes, weight_bytes)
            if state_a:
                _ask(state_a + near * width * 4, width * 4)
            if state_b:
                _ask(state_b + near * width * 4, width * 4)
        number = id_of[i]
        _load(total, grads + order_of[i] * grad_bytes, wide_grads)
        i += 1
        while i < end and id_of[i] == number:
            _load(piece, grads + order_of[i] * grad_bytes, wide_grads)
            begins = i % PIECE == 0
            i += 1
            while begins and i < end and i % PIECE > 0 and id_of[i] == number:
                _load(row, grads + order_of[i] * grad_bytes, wide_grads)
                for c in range(width):
                    piece[c] += row[c]
                i += 1
            for c in range(width):
                total[c] += piece[c]
        for c in range(width):
            total[c] *= factor
        at = number - first
        if stamps:
            i32(stamps + 4 * at, 1)[0] = stamp
        a_at, b_at = state_a + at * width * 4, state_b + at * width * 4
        if wide_weight:
            _apply(kind, total, f32(weight + at * weight_bytes, width), a_at, b_at, f0, f1, f2, f3)
        else:
            _load(row, weight + at * weight_bytes, 0)
            _apply(kind, total, row, a_at, b_at, f0, f1, f2, f3)
            _store_narrow(row, weight + at * weight_bytes)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def sort_rows(ids: int, count: int, num_rows: int, sorted_ids: int, order: int, scratch: int) -> None:
    """Sort row numbers, ties in the given order, digit by digit from the lowest.

    ids: address of ``[count] int64`` in ``[0, num_rows)``. sorted_ids, order: addresses of ``[count] int64``, written.
    scratch: of ``[2, count] uint64``. count and num_rows are at most 2^32.
    """
    source, a, b = u64(ids, count), u64(scratch, count), u64(scratch + 8 * count, count)
    rows, places = i64(sorted_ids, count), i64(order, count)
    next_place = np.empty(_DIGITS, np.int64)
    for i in range(count):
        a[i] = source[i] << _HALF | np.uint64(i)  # one word to move, not two
    shift, rest = _HALF, num_rows - 1
    while rest > 0:
        next_place[:] = 0
        for i in range(count):
            next_place[a[i] >> shift & _DIGIT] += 1
        total = 0
        for digit in range(_DIGITS):
            total, next_place[digit] = total + next_place[digit], total
        for i in range(count):
            digit_of = a[i] >> shift & _DIGIT
            b[next_place[digit_of]] = a[i]
            next_place[digit_of] += 1
        a, b = b, a
        shift, rest = shift + _DIGIT_BITS, rest // _DIGITS
    for i in range(count):
        rows[i] = np.int64(a[i] >> _HALF)
        places[i] = np.int64(a[i] & _LOW)


@helper
def _apply(
    kind: int, g: F32, w: F32, a_at: int, b_at: int, h0: np.float32, h1: np.float32, h2: np.float32, h3: np.float32
) -> None:
    """Update one row."""
    n = len(g)
    if kind == _ADAM:
        a, b = f32(a_at, n), f32(b_at, n)
        for c in range(n):
            a[c] += h1 * (g[c] - a[c])
            b[c] += h2 * (g[c] * g[c] - b[c])
            w[c] -= h0 * (a[c] / (np.sqrt(b[c]) + h3))
    elif kind == _ADAGRAD:
        a = f32(a_at, n)
        for c in range(n):
            a[c] += g[c] * g[c]
            w[c] -= h0 * (g[c] / (np.sqrt(a[c]) + h3))
    elif kind == _RMSPROP:
        a = f32(a_at, n)
        for c in range(n):
            a[c] += h1 * (g[c] * g[c] - a[c])
            w[c] -= h0 * (g[c] / (np.sqrt(a[c]) + h3))
    elif kind == _SGD:
        for c in range(n):
            w[c] -= h0 * g[c]
    else:
        for c in range(n):
            w[c] = g[c]


@helper
def _load(row: F32, address: int, wide: int) -> None:
    """Read a row of float32, or of bfloat16, whose bits are the upper half of a float32's."""
    n = len(row)
    if wide:
        source = f32(address, n)
        for c in range(n):
            row[c] = source[c]
    else:
        half, bits = u16(address, n), row.view(np.uint32)
        for c in range(n):
            bits[c] = np.uint32(half[c]) << np.uint32(16)


@helper
def _store_narrow(row: F32, address: int) -> None:
    """Write a row as bfloat16, rounded to the nearest, ties to even."""
    n = len(row)
    half, bits = u16(address, n), row.view(np.uint32)
    for c in range(n):
        is_number = (bits[c] & _SIGN) <= np.uint32(0x7F800000)
        odd = (bits[c] >> np.uint32(16)) & np.uint32(1)
        rounded = np.uint16((bits[c] + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        half[c] = rounded if is_number else _QUIET


@helper
def _ask(address: int, num_bytes: int) -> None:
    for offset in range(0, num_bytes, _LINES):
        prefetch8_far(np.uint64(address + offset))
