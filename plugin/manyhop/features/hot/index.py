"""Which rows are in a cache, and where: a bit per row of the table, and a count per 64 of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HotIndex:
    """A set of row numbers, which counts them: row ``i`` is number ``before[i // 64]`` plus the ones below its bit."""

    bits: Tensor
    """``[ceil(num_rows / 64)] int64``: bit ``i % 64`` of entry ``i // 64`` says whether row ``i`` is in the set."""

    before: Tensor
    """``[ceil(num_rows / 64)] int64``: how many of the set are below row ``64 * entry``."""

    count: int
    """How many rows are in the set."""

    @staticmethod
    def of(rows: Tensor, num_rows: int) -> HotIndex:
        """The set of ``rows``, ``[count] int64``, ascending and unique, of a table of ``num_rows``."""
        bits = np.zeros(-(-num_rows // 64) * 8, np.uint8)
        i = rows.numpy()
        np.bitwise_or.at(bits, i >> 3, (1 << (i & 7)).astype(np.uint8))
        counts = np.bincount(i >> 6, minlength=len(bits) // 8)
        words = bits.view("<u8").astype(np.uint64).view(np.int64)
        return HotIndex(torch.from_numpy(words), torch.from_numpy(np.cumsum(counts) - counts), rows.numel())
