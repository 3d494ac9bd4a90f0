"""Batches whose seeds are contiguous on the device: their descriptor takes a few operations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, overload

import numpy as np
from torch import Tensor

from manyhop.graph import NodeType
from manyhop.sampling.contract import BatchKey, NodeRequest

if TYPE_CHECKING:
    from manyhop.sampling.gpu.launch.workspace import Workspace


class SeedGroup(Sequence[NodeRequest]):
    """Requests without times, for seeds of one type; each request is created when it is accessed.

    Args:
        keys: keys of the batches; they differ in ``batch`` only.
        node_type: type of the seeds.
        seeds: ``[n] int64`` on the device, contiguous: batch by batch.
        sizes: ``[num_batches]``: number of seeds of each batch.
    """

    def __init__(self, keys: Sequence[BatchKey], node_type: NodeType, seeds: Tensor, sizes: Sequence[int]) -> None:
        self.keys, self.node_type, self.seeds, self.sizes = keys, node_type, seeds, sizes
        self.begins = list(accumulate(sizes, initial=0))

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, i: int) -> NodeRequest: ...
    @overload
    def __getitem__(self, i: slice) -> SeedGroup: ...
    def __getitem__(self, i: int | slice) -> NodeRequest | SeedGroup:
        if isinstance(i, slice):
            first, end, _ = i.indices(len(self))
            part = self.seeds[self.begins[first] : self.begins[max(first, end)]]
            return SeedGroup(self.keys[first:end], self.node_type, part, self.sizes[first:end])
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        begin = self.begins[i % len(self)]
        seeds = self.seeds[begin : begin + self.sizes[i]]
        return NodeRequest(key=self.keys[i], seeds={self.node_type: seeds})

    def whole(self) -> NodeRequest:
        """Return one request with all seeds."""
        return NodeRequest(key=self.keys[0], seeds={self.node_type: self.seeds})

    def write_descriptor(self, workspace: Workspace) -> list[Tensor]:
        """Write the descriptor of a launch for these batches. Return the tensors that must outlive the launch."""
        from manyhop.sampling.gpu.kernels import tables as t  # imports triton
        from manyhop.system.triton_launch import low_64_bits

        memory, stamp = workspace.begin_descriptor()
        plan, shape, num = workspace.plan, workspace.shape, len(self)
        memory[: workspace.host.descriptor_size] = 0
        memory[t.STAMP.value] = stamp
        begins = np.array(self.begins[:-1], np.int64)
        regions_at = t.BATCHES.value + shape.num_batches * t.BATCH_COLUMNS.value
        batches = memory[t.BATCHES.value : regions_at].reshape(shape.num_batches, -1)[:num]
        batches[:, t.SEED_KEY.value] = low_64_bits(self.keys[0].seed)
        batches[:, t.EPOCH_KEY.value] = low_64_bits(self.keys[0].epoch)
        batches[:, t.BATCH_KEY.value] = [key.batch for key in self.keys]
        batches[:, t.FIRST_TREE.value] = begins
        regions_end = regions_at + workspace.extent.num_type_ranges * t.SEED_COLUMNS.value
        type_ranges = memory[regions_at:regions_end].reshape(shape.num_batches, len(plan.types), -1)
        type_range = type_ranges[:num, plan.types[self.node_type]]
        type_range[:, t.NUM_SEEDS.value] = self.sizes
        type_range[:, t.SEEDS.value] = self.seeds.data_ptr() + 8 * begins
        type_range[:, t.FIRST_SEED.value] = begins
        return [self.seeds]
