"""Which rows are in a cache, and where: a bit per row of the table, and a count per 64 of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HotIndex:
    """A set of row numbers, which counts them: row ``i`` is number ``before[i // 64]`` plus the ones below its bit."""

    bits: Tensor
    """``[ceil(num_rows / 64)] int64``: bit ``i % 64`` of entry ``i // 64`` is set if row ``i`` is in the set."""

    before: Tensor
    """``[ceil(num_rows / 64)] int64``: how many of the set are below row ``64 * entry``."""

    count: int
    """How many rows are in the set."""

    @staticmethod
    def of(rows: Tensor, num_rows: int) -> HotIndex:
        """The set of ``rows``, ``[count] int64``, ascending and unique, of a table of ``num_rows``."""
        from manyhop.features.hot.cpu_kernels import index_rows

        ascending, num_words = rows.contiguous(), -(-num_rows // 64)
        bits, before = torch.zeros(num_words, dtype=torch.int64), torch.empty(num_words, dtype=torch.int64)
        index_rows(ascending.data_ptr(), rows.numel(), num_rows, bits.data_ptr(), before.data_ptr())
        return HotIndex(bits, before, rows.numel())
