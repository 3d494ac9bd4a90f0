"""Updates of rows by the GPU. Importing this module imports triton."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel, as_current
from manyhop_embedding.gradients import Gradients
from manyhop_embedding.kernels.update import NUMBERS, refresh_rows, sum_pieces, update_rows
from manyhop_embedding.rules import PIECE, Change, Hot

_TILE = 1024  # numbers of a program
_MOST_COLUMNS = 256
_NUM_WARPS = 4
_REFRESHED = 32  # rows of a program that looks for outdated ones
_LANES = 4  # numbers that a thread reads at once: 16 bytes of float32


def update_on_gpu(gradients: Gradients, change: Change) -> None:
    """Do what :func:`manyhop_embedding.updating.update` does, on the current stream of the gradients' GPU."""
    rule, weight, states, hot = change.rule, change.weight, change.states, change.hot
    values, (begin, end) = gradients.values, gradients.ends
    if begin == end or len(weight) == 0:
        return
    with as_current(values.device):
        reads, types, rows, blocks = _gradients(gradients, [weight, *states, *(one.rows for one in hot)])
        pieces = _pieces(gradients)
        numbers = tuple(_bits(number) for number in (change.scale, rule.h0, rule.h1, rule.h2, rule.h3))
        a, b = ([state.data_ptr() for state in states] + [0, 0])[:2]
        stamped = (0, 0) if change.stamps is None else (change.stamps.of_rows.data_ptr(), change.stamps.value)
        at_hot = [hot[0].rows_set.groups.data_ptr(), *(each.rows.data_ptr() for each in hot)] if hot else []
        at_hot = (at_hot + [0] * 4)[:4]
        apart = (0, 0) if change.apart is None else (change.apart.data_ptr(), change.apart[-1:].data_ptr())
        wide_ids, wide_grads, *tile = types
        constants = (int(rule.kind), wide_ids, wide_grads, weight.dtype == torch.float32, *tile, bool(hot))
        updates = _kernel(update_rows, (0,) * 18 + (NUMBERS.value,), constants)
        updates(
            values.device, -(-(end - begin) // rows) * blocks,
            *reads, pieces.data_ptr(), weight.data_ptr(), change.first, a, b, *stamped, *apart, *at_hot,
            numbers,
        )  # fmt: skip


def _pieces(gradients: Gradients) -> Tensor:
    """Return ``[ceil(end / PIECE), width] float32``: sums of the pieces that continue a row; others are undefined."""
    if gradients.pieces:
        return gradients.pieces[0]
    values, (begin, end) = gradients.values, gradients.ends
    first, last = begin // PIECE, -(-end // PIECE)
    pieces = torch.empty(last, values.shape[1], dtype=torch.float32, device=values.device)
    if last - first > 1:
        with as_current(values.device):
            reads, types, rows, blocks = _gradients(gradients, [])
            sums = _kernel(sum_pieces, (0,) * 6, types)
            sums(values.device, -(-(last - first) // rows) * blocks, *reads, pieces.data_ptr())
    gradients.pieces.append(pieces)
    return pieces


def _gradients(gradients: Gradients, others: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[Any, ...], int, int]:
    """Return how kernels get gradients.

    Args:
        gradients: some.
        others: of as many columns, read or written beside.

    Returns:
        Their first arguments; constants, from the dtype of ids on; and what a program works on: rows, and how many
        programs do for all columns.
    """
    ids, values, width = gradients.ids, gradients.values, gradients.values.shape[1]
    columns = min(_MOST_COLUMNS, 1 << max(4, (width - 1).bit_length()))
    rows = _TILE // columns
    lanes = _LANES if all(_in_lanes(each, width) for each in (values, *others)) else 1
    reads = ids.data_ptr(), gradients.order.data_ptr(), *gradients.ends, values.data_ptr()
    types = ids.dtype == torch.int64, values.dtype == torch.float32, width, lanes, rows, columns
    return reads, types, rows, -(-width // columns)


def refresh_on_gpu(
    ids: Tensor, stamps: Tensor, latest: int, table: Tensor, rows: Tensor, hot: Hot | None = None
) -> None:
    """Read the rows again whose stamp is above ``latest``, on the current stream, without waiting for the GPU.

    Args:
        ids: ``[count]`` int64 or int32, contiguous, on the GPU.
        stamps: ``[num_rows, 1] int32``, contiguous; in GPU memory or pinned, like the table.
        latest: the number of the last update before ``rows`` were gathered.
        table: ``[num_rows, width]`` float32 or bfloat16, contiguous.
        rows: ``[count, width]``, contiguous: changed in place.
        hot: rows of the table that reside elsewhere.
    """
    count, device = len(ids), rows.device
    if count == 0:
        return
    words = table.shape[1] * table.element_size() // 2
    at_hot = (0, 0) if hot is None else (hot.rows_set.groups.data_ptr(), hot.rows.data_ptr())
    refresh = _kernel(refresh_rows, (0,) * 9, (ids.dtype == torch.int64, words, _REFRESHED, hot is not None))
    with as_current(device):
        refresh(
            device, -(-count // _REFRESHED),
            ids.data_ptr(), count, stamps.data_ptr(), latest, table.data_ptr(), len(table), rows.data_ptr(), *at_hot,
        )  # fmt: skip


def _in_lanes(rows: Tensor, width: int) -> bool:
    """Return whether each row consists of aligned groups of ``_LANES`` numbers."""
    return width % _LANES == 0 and rows.data_ptr() % (_LANES * rows.element_size()) == 0


@cache
def _kernel(function: Any, shape: tuple[int, ...], constants: tuple[Any, ...]) -> Kernel:
    return Kernel(function, shape, constants, num_warps=_NUM_WARPS)


def _bits(number: float) -> int:
    """Return the bits of a float32, as a kernel takes them."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    return int(bits)
