"""Where graphs read batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_LARGE: Final = 1 << 20
"""Bytes from which on a tensor is copied faster by itself than with others."""


class Buffers:
    """Tensors that graphs read, for batches of one size.

    Args:
        tensors: of such a batch.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        sizes = [t.nbytes for t in tensors]
        self._large = [i for i, size in enumerate(sizes) if size >= _LARGE]
        dtypes = dict.fromkeys(t.dtype for t in tensors)
        small = [[i for i, t in enumerate(tensors) if t.dtype == dtype and sizes[i] < _LARGE] for dtype in dtypes]
        self._small = [([self.tensors[i] for i in places], places) for places in small if places]

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy a batch: small tensors by a launch for all of a dtype.

        Args:
            tensors: in the same order, of the same sizes.
        """
        with torch.no_grad():
            for i in self._large:
                self.tensors[i].copy_(tensors[i], non_blocking=True)
            for into, places in self._small:
                torch._foreach_copy_(into, [tensors[i] for i in places])
