"""The seed nodes of a loader on its GPU, which looks up those of each batch by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from manyhop.graph import NodeType
from manyhop.loading.pipeline import BatchPlan
from manyhop.system.arrays import version_of

MOST = 8 << 20
"""Seeds: more are looked up on the host, where they are."""


class GPUSeeds:
    """Seed nodes of one type.

    Args:
        node_type: their type.
        ids: ``[num_seeds]`` integers in host memory. Changes in place are followed.
        device: the GPU.
    """

    def __init__(self, node_type: NodeType, ids: Tensor, device: torch.device) -> None:
        from manyhop.loading.pipeline.gpu import GPUPositions  # imports triton

        self._node_type, self._ids, self._device = node_type, ids, device
        self._positions = GPUPositions(device)
        self._copy()

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> SeedsOfBatches:
        """Return the seeds of some batches of an epoch, enqueued on the current stream."""
        if version_of(self._ids) != self._version:
            self._copy()
        (_, ids), sizes = self._positions(plan, epoch, batches, [self._there])
        return SeedsOfBatches(self._node_type, ids, sizes)

    def _copy(self) -> None:
        self._version = version_of(self._ids)
        self._there = self._ids.to(self._device, torch.int64, copy=True).contiguous()


class SeedsOfBatches(Sequence["SeedsOfBatches"]):
    """The seeds of some batches, one behind the other on the GPU."""

    def __init__(self, node_type: NodeType, ids: Tensor, sizes: list[int]) -> None:
        self.node_type, self.ids, self.sizes = node_type, ids, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int | slice) -> SeedsOfBatches:
        first, end, _ = (slice(i, i + 1) if isinstance(i, int) else i).indices(len(self))
        ends = list(accumulate(self.sizes, initial=0))
        return SeedsOfBatches(self.node_type, self.ids[ends[first] : ends[max(first, end)]], self.sizes[first:end])
