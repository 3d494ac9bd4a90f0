"""Rows that a GPU reads slowly, and the ones among them that it keeps, because they are asked for often."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HotRows:
    """A set of row numbers on a GPU, which counts them: a bit per row of the table, and a count per 64 of them."""

    groups: Tensor
    """``[ceil(num_rows / 64), 2] int64``: bit ``i % 64`` of ``groups[i // 64, 0]`` is set if row ``i`` is in the
    set, ``groups[i // 64, 1]`` how many of the set are below row ``64 * (i // 64)``."""

    count: int
    """How many rows are in the set."""

    @staticmethod
    def of(rows: Tensor, num_rows: int) -> HotRows:
        """The set of ``rows``, ``[count] int64``, ascending and unique, of a table of ``num_rows``."""
        num_groups = -(-num_rows // 64)
        bits = torch.zeros(num_groups, dtype=torch.int64, device=rows.device)
        bits.scatter_add_(0, rows >> 6, torch.ones_like(rows) << (rows & 63))
        counts = torch.zeros_like(bits).scatter_add_(0, rows >> 6, torch.ones_like(rows))
        return HotRows(torch.stack([bits, counts.cumsum(0) - counts], 1), rows.numel())


@dataclass(eq=False)
class CachedRows:
    """A tensor on the host, in a file, or on other GPUs, of which this GPU keeps some rows; a source for ``gather``.

    Only indices on this GPU use the cache; with others, the tensor is read.
    """

    source: Tensor | np.ndarray[Any, Any]
    """``[num_rows, ...]``: all rows."""

    hot: HotRows
    """Which of them the GPU keeps. Tensors that are indexed by the same ids may share it."""

    rows: Tensor
    """``[hot.count, ...]``: these rows, on the GPU."""

    counts: Tensor = field(init=False)
    """``[2] int64`` on the GPU: how many rows were asked for, and how many of those it had. Kernels count them,
    where the GPU reads the others itself."""

    def __post_init__(self) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=self.rows.device)
        self._taken = self._staged = (0, 0)
        self._counting = threading.Lock()

    def count(self, asked: int, found: int) -> None:
        """Count rows that were asked for, and those that it had, where the CPU reads the others."""
        with self._counting:
            self._staged = self._staged[0] + asked, self._staged[1] + found

    def take_counts(self) -> tuple[int, int]:
        """Return rows asked for, and those it had, since this was called before; waits for the GPU."""
        asked, found = self.counts.tolist()
        before, self._taken = self._taken, (asked + self._staged[0], found + self._staged[1])
        return self._taken[0] - before[0], self._taken[1] - before[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole tensor."""
        return tuple(self.source.shape)
