"""Updates of rows by the GPU. Importing this module imports triton."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel, as_current
from manyhop_embedding.gradients import PIECE, Change, Gradients
from manyhop_embedding.kernels import NUMBERS, refresh_rows, sum_pieces, update_rows

_TILE = 1024  # numbers of a program
_MOST_COLUMNS = 256
_REFRESHED = 32  # rows of a program that looks for outdated ones
_LANES = 4  # numbers that a thread reads at once: 16 bytes of float32


def update_on_gpu(gradients: Gradients, change: Change) -> None:
    """Do what :func:`manyhop_embedding.updating.update` does, on the current stream of the gradients' GPU."""
    rule, weight, states = change.rule, change.weight, change.states
    ids, values, count, width = gradients.ids, gradients.values, len(gradients.ids), gradients.values.shape[1]
    if count == 0 or len(weight) == 0:
        return
    device, parts = values.device, -(-count // PIECE)
    columns = min(_MOST_COLUMNS, 1 << max(4, (width - 1).bit_length()))
    rows, blocks = _TILE // columns, -(-width // columns)  # rows of a program, and programs of a row
    lanes = _LANES if all([_in_lanes(each, width) for each in (values, weight, *states)]) else 1
    wide_ids, wide_grads, *tile = ids.dtype == torch.int64, values.dtype == torch.float32, width, lanes, rows, columns
    numbers = struct.unpack("<5i", struct.pack("<5f", change.scale, rule.h0, rule.h1, rule.h2, rule.h3))
    a, b = ([state.data_ptr() for state in states] + [0, 0])[:2]
    stamps, stamp = (0, 0) if change.stamps is None else (change.stamps[0].data_ptr(), change.stamps[1])
    left_out = 0 if change.left_out is None else change.left_out.data_ptr()
    with as_current(device):
        pieces = torch.empty(parts, width, dtype=torch.float32, device=device)  # sums of those that continue a row
        reads = ids.data_ptr(), gradients.order.data_ptr(), count, values.data_ptr(), pieces.data_ptr()
        if parts > 1:
            _kernel(sum_pieces, (wide_ids, wide_grads, *tile))(device, -(-parts // rows) * blocks, *reads)
        constants = (int(rule.kind), wide_ids, wide_grads, weight.dtype == torch.float32, *tile)
        _kernel(update_rows, constants, numbers=NUMBERS.value)(
            device, -(-count // rows) * blocks,
            *reads, weight.data_ptr(), change.first, len(weight), left_out, a, b, stamps, stamp, numbers,
        )  # fmt: skip


def refresh_on_gpu(ids: Tensor, stamps: Tensor, latest: int, table: Tensor, rows: Tensor) -> None:
    """Read the rows again whose stamp is above ``latest``, on the current stream, without waiting for the GPU.

    Args:
        ids: ``[count]`` int64 or int32, contiguous, on the GPU.
        stamps: ``[num_rows, 1] int32``, contiguous; in GPU memory or pinned, like the table.
        latest: the number of the last update before ``rows`` were gathered.
        table: ``[num_rows, width]`` float32 or bfloat16, contiguous.
        rows: ``[count, width]``, contiguous: changed in place.
    """
    count, device = len(ids), rows.device
    if count == 0:
        return
    words = table.shape[1] * table.element_size() // 2
    refresh = _kernel(refresh_rows, (ids.dtype == torch.int64, words, _REFRESHED))
    with as_current(device):
        refresh(
            device, -(-count // _REFRESHED), ids=ids.data_ptr(), count=count, stamps=stamps.data_ptr(), latest=latest,
            table=table.data_ptr(), num_rows=len(table), rows=rows.data_ptr(),
        )  # fmt: skip


def _in_lanes(rows: Tensor, width: int) -> bool:
    """Return whether each row consists of aligned groups of ``_LANES`` numbers."""
    return width % _LANES == 0 and rows.data_ptr() % (_LANES * rows.element_size()) == 0


@cache
def _kernel(function: Any, constants: tuple[Any, ...], **tuples: int) -> Kernel:
    return Kernel(function, constants, **tuples)
