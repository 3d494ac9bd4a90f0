"""Compute the CSC ``indptr`` of blocks on a GPU: one launch for all hops, edge types and batches."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

from manyhop.sampling.gpu.kernels.indptr import TILE, fill_indptr
from manyhop.system.triton_launch import Kernel, as_current

_MOST_TILES = 64


def fill(columns: npt.NDArray[np.int64], device: torch.device) -> None:
    """Enqueue the counterpart of ``manyhop.sampling.cpu.kernels.columns.fill_indptr`` on the current stream.

    Args:
        columns: ``[n, 4] int64``, as there, with device addresses.
        device: where kernels run.
    """
    if len(columns):
        staging = torch.empty(columns.shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        staging.numpy()[:] = columns
        tiles = min(-(-int(columns[:, 2].max() + 1) // int(TILE.value)), _MOST_TILES)
        with as_current(device):
            table = staging.to(device, non_blocking=True)
            _kernel()(device, tiles * len(columns), table.data_ptr(), tiles)


@functools.cache
def _kernel() -> Kernel:
    return Kernel(fill_indptr, (0, 0), (), num_warps=4)
