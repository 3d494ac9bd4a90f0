"""The columns of blocks on a GPU: those of all hops, edge types and batches by one launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from manyhop.sampling.gpu.kernels.indptr import TILE, fill_indptr
from manyhop.sampling.gpu.transfer import upload

_MOST_TILES = 64


def fill(columns: npt.NDArray[np.int64], device: torch.device) -> None:
    """Enqueue what ``manyhop.sampling.cpu.kernels.columns.fill_indptr`` does, on the current stream.

    Args:
        columns: ``[n, 4] int64``, as there; the addresses are those of memory of the device.
        device: the device.
    """
    if len(columns):
        (table,) = upload([columns], device)
        tiles = -(-int(columns[:, 2].max() + 1) // int(TILE.value))
        fill_indptr[min(tiles, _MOST_TILES), len(columns)](table)
