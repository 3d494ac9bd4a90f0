"""Which items are in which batch: looked up where batches are made."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features._gpu._launch import Kernel
from manyhop.pipeline._gpu.kernels.positions import look_up
from manyhop.pipeline._plan import BatchPlan, network

MOST: Final = 32
"""Batches that are looked up at once."""

_TILE = 128


class GPUPositions:
    """Looks up the items of batches on a GPU, several batches at once.

    Args:
        device: where the positions are wanted; a CPU where triton interprets its kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> tuple[Tensor, list[int]]:
        """What ``plan.many_indices(epoch, batches)`` says, on the device; enqueued on the current stream.

        Returns:
            ``[n] int64``: the positions, batch by batch; and how many each batch has.

        Raises:
            InputError: for a batch that the plan does not have, or more than ``MOST``.
        """
        if not 0 < len(batches) <= MOST or not 0 <= min(batches) <= max(batches) < len(plan):
            raise InputError(f"expected 1 to {MOST} batches, each from 0 to {len(plan) - 1}, got {list(batches)}")
        size, n, device = plan.batch_size, plan.num_items, self._device
        out = torch.empty(len(batches) * size, dtype=torch.int64, device=device)
        tiles = -(-size // _TILE)
        numbers = (*batches, *[0] * (MOST - len(batches)))
        shuffle = network(plan, epoch) if plan.shuffle else (0, 0, 0, 0, 0)
        _kernel(plan.shuffle)(device, tiles * len(batches), out.data_ptr(), numbers, tiles, size, n, *shuffle)
        sizes = [min(size, n - batch * size) for batch in batches]
        if min(sizes) == size:
            return out, sizes
        return torch.cat([out[k * size : k * size + count] for k, count in enumerate(sizes)]), sizes


@functools.cache
def _kernel(shuffle: bool) -> Kernel:
    return Kernel(look_up, (0, MOST, 0, 0, 0, 0, 0, 0, 0, 0), (MOST, shuffle, _TILE), num_warps=4)
