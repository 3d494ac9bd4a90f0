"""Compute the CSC ``indptr`` of blocks on a GPU: one launch for all hops, edge types and batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from manyhop.sampling.gpu.kernels.indptr import TILE, fill_indptr
from manyhop.sampling.gpu.transfer import upload

_MOST_TILES = 64


def fill(columns: npt.NDArray[np.int64], device: torch.device) -> None:
    """Enqueue the counterpart of ``manyhop.sampling.cpu.kernels.columns.fill_indptr`` on the current stream.

    Args:
        columns: ``[n, 4] int64``, as there, with device addresses.
        device: where kernels run.
    """
    if len(columns):
        (table,) = upload([columns], device)
        tiles = -(-int(columns[:, 2].max() + 1) // int(TILE.value))
        fill_indptr[min(tiles, _MOST_TILES), len(columns)](table)
