"""Rows of a table in pinned memory that reside on the GPU instead, as batches read and update them most often."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.features import CachedRows, HotRows


@dataclass(frozen=True)
class Hot:
    """The only place of some rows: memory of the others has outdated ones."""

    ids: Tensor
    """``[count] int64``, ascending, on the GPU."""
    rows_set: HotRows
    """The same ids, as kernels look them up."""
    rows: Tensor
    """``[count, width]``, on the GPU."""

    @staticmethod
    def of(ids: Tensor, rows_set: HotRows, held: Tensor) -> Hot:
        """Copy the rows ``ids`` of ``held [num_rows, width]`` to the GPU that the ids are on."""
        return Hot(ids, rows_set, held[ids.to(held.device)].to(ids.device))

    def source(self, held: Tensor) -> CachedRows:
        """Return what gathers read all rows from, on the GPU."""
        return CachedRows(held, self.rows_set, self.rows)

    def settle(self, held: Tensor) -> None:
        """Copy the rows to their places in ``held``, where the host reads them."""
        if self.rows.is_cuda:
            torch.cuda.synchronize(self.rows.device)  # updates of the others
        held[self.ids.to(held.device)] = self.rows.to(held.device)

    def take(self, held: Tensor) -> None:
        """Copy the rows from ``held``, which the host has changed."""
        self.rows.copy_(held[self.ids.to(held.device)])
