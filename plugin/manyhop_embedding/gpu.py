"""Routes of sorted gradients and updates of rows by the GPU. Importing this module imports triton."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel, as_current
from manyhop_embedding.gradients import PIECE, Change, Gradients, Hot
from manyhop_embedding.kernels.routes import count_rows, find_routes, merge_runs, number_rows
from manyhop_embedding.kernels.update import NUMBERS, refresh_rows, sum_pieces, update_rows

_TILE = 1024  # numbers of a program
_MOST_COLUMNS = 256
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
        stamps, stamp = (0, 0) if change.stamps is None else (change.stamps.of_rows.data_ptr(), change.stamps.value)
        hot_weight, hot_a, hot_b = ([each.rows.data_ptr() for each in hot] + [0] * 3)[:3]
        wide_ids, wide_grads, *tile = types
        constants = (int(rule.kind), wide_ids, wide_grads, weight.dtype == torch.float32, *tile, bool(hot))
        updates = _kernel(update_rows, constants, numbers=NUMBERS.value)
        updates(
            values.device, -(-(end - begin) // rows) * blocks, *reads, pieces=pieces.data_ptr(),
            weight=weight.data_ptr(), first=change.first, state_a=a, state_b=b, stamps=stamps, stamp=stamp,
            apart=0 if change.apart is None else change.apart.data_ptr(),
            apart_end=0 if change.apart is None else change.apart[-1:].data_ptr(),
            groups=hot[0].rows_set.groups.data_ptr() if hot else 0,
            hot_weight=hot_weight, hot_a=hot_a, hot_b=hot_b, numbers=numbers,
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
            sums = _kernel(sum_pieces, types)
            sums(values.device, -(-(last - first) // rows) * blocks, *reads, pieces.data_ptr())
    gradients.pieces.append(pieces)
    return pieces


def _gradients(gradients: Gradients, others: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[Any, ...], int, int]:
    """Return how kernels get gradients.

    Args:
        gradients: some.
        others: tensors of the same width that the kernel also reads or writes.

    Returns:
        First arguments, constants, rows of a program, and number of programs per row.
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
    refresh = _kernel(refresh_rows, (ids.dtype == torch.int64, words, _REFRESHED, hot is not None))
    with as_current(device):
        refresh(
            device, -(-count // _REFRESHED), ids=ids.data_ptr(), count=count, stamps=stamps.data_ptr(), latest=latest,
            table=table.data_ptr(), num_rows=len(table), rows=rows.data_ptr(),
            groups=0 if hot is None else hot.rows_set.groups.data_ptr(), hot=0 if hot is None else hot.rows.data_ptr(),
        )  # fmt: skip


def _in_lanes(rows: Tensor, width: int) -> bool:
    """Return whether each row consists of aligned groups of ``_LANES`` numbers."""
    return width % _LANES == 0 and rows.data_ptr() % (_LANES * rows.element_size()) == 0


@cache
def _kernel(function: Any, constants: tuple[Any, ...], **tuples: int) -> Kernel:
    return Kernel(function, constants, **tuples)


def _bits(number: float) -> int:
    """Return the bits of a float32, for a kernel."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    return int(bits)


_BLOCK = 1024
MOST_RUNS = 16
"""Runs that are merged; sorting is as fast for more."""


def number_on_gpu(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Do what :func:`manyhop_embedding.updating.distinct_rows` does, on the current stream."""
    count, device = len(ids), ids.device
    before, rows = torch.empty(count + 1, dtype=torch.int64, device=device), torch.empty_like(ids)
    if count == 0:
        return before.zero_(), rows
    blocks, constants = -(-count // _BLOCK), (ids.dtype == torch.int64, _BLOCK)
    counts = torch.empty(blocks, dtype=torch.int64, device=device)
    read = ids.data_ptr(), count, counts.data_ptr()
    _kernel(count_rows, constants)(device, blocks, *read)
    _kernel(number_rows, constants)(device, blocks, *read, before.data_ptr(), rows.data_ptr())
    return before, rows


def routes_on_gpu(ids: Tensor, before: Tensor, bounds: Tensor, total: int, at: Tensor, routes: Tensor) -> None:
    """Count the gradients and rows before each bound, on the current stream.

    Args:
        ids: ``[count]``, ascending.
        before: of :func:`number_on_gpu`.
        bounds: ``[ranks, bounds]``, like ids: rows, ascending for each rank.
        total: value of the last column of ``routes``.
        at: gets ``[ranks, bounds] int64``: numbers of gradients.
        routes: gets ``[ranks, bounds + 1] int64``: numbers of rows, and ``total``.
    """
    lanes = 1 << (bounds.numel() - 1).bit_length()
    ranks, bounds_of_rank = bounds.shape
    _kernel(find_routes, (ids.dtype == torch.int64, lanes))(
        ids.device, 1, ids=ids.data_ptr(), count=len(ids), before=before.data_ptr(), bounds=bounds.data_ptr(),
        ranks=ranks, bounds_of_rank=bounds_of_rank, total=total, at=at.data_ptr(), routes=routes.data_ptr(),
    )  # fmt: skip


def merge_on_gpu(ids: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sort ids that consist of ascending runs, on the current stream.

    Args:
        ids: ``[count]``, contiguous.
        sizes: of the runs, at most ``MOST_RUNS``.

    Returns:
        ``[count]``: ids, ascending, equal ones in the order that they had; and ``[count] int64``: positions before.
    """
    count, device = len(ids), ids.device
    rows, order = torch.empty_like(ids), torch.empty(count, dtype=torch.int64, device=device)
    if count:
        runs, wide = len(sizes), ids.dtype == torch.int64
        merge = _kernel(merge_runs, (wide, runs, _BLOCK), begins=runs + 1)
        begins = tuple(accumulate(sizes, initial=0))
        merge(device, -(-count // _BLOCK), ids.data_ptr(), rows.data_ptr(), order.data_ptr(), begins)
    return rows, order
