"""Rows and routes of sorted gradients, by the GPU. Importing this module imports triton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel
from manyhop_embedding.kernels.routes import count_rows, find_routes, merge_runs, number_rows

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
    _kernel(count_rows, (0,) * 3, constants)(device, blocks, *read)
    _kernel(number_rows, (0,) * 5, constants)(device, blocks, *read, before.data_ptr(), rows.data_ptr())
    return before, rows


def routes_on_gpu(ids: Tensor, before: Tensor, bounds: Tensor, total: int, at: Tensor, routes: Tensor) -> None:
    """Find how many gradients, and how many rows, come before each bound, on the current stream.

    Args:
        ids: ``[count]``, ascending.
        before: of :func:`number_on_gpu`.
        bounds: ``[ranks, bounds]``, like ids: rows, ascending for each rank.
        total: what the last column of ``routes`` gets.
        at: gets ``[ranks, bounds] int64``: numbers of gradients.
        routes: gets ``[ranks, bounds + 1] int64``: numbers of rows, and ``total``.
    """
    lanes = 1 << (bounds.numel() - 1).bit_length()
    find = _kernel(find_routes, (0,) * 9, (ids.dtype == torch.int64, lanes))
    read = ids.data_ptr(), len(ids), before.data_ptr(), bounds.data_ptr(), *bounds.shape
    find(ids.device, 1, *read, total, at.data_ptr(), routes.data_ptr())


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
        merge = _kernel(merge_runs, (0, 0, 0, runs + 1), (wide, runs, _BLOCK))
        begins = tuple(accumulate(sizes, initial=0))
        merge(device, -(-count // _BLOCK), ids.data_ptr(), rows.data_ptr(), order.data_ptr(), begins)
    return rows, order


@cache
def _kernel(function: Any, shape: tuple[int, ...], constants: tuple[Any, ...]) -> Kernel:
    return Kernel(function, shape, constants, num_warps=4)
