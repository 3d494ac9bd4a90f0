"""Where graphs read batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manyhop.system import triton_compiler


class Buffers:
    """Tensors that graphs read, for batches of one size.

    Args:
        tensors: of such a batch, on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        by_kernel = triton_compiler.runs_on(tensors[0].device) and triton_compiler.usable()
        plain = [by_kernel and type(t) is Tensor and not t.is_complex() for t in tensors]
        known = [(i, t) for i, t in enumerate(self.tensors) if plain[i] and t.numel()]
        self._copies: list[Callable[[Sequence[Tensor]], None]] = []
        if known:
            from manyhop.capture.copies import copies_to  # imports triton

            self._copies += copies_to(known, tensors[0].device)
        self._others = [i for i, is_plain in enumerate(plain) if not is_plain]

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy a batch, on the current stream: up to 32 tensors by a launch.

        Args:
            tensors: in the same order, of the same sizes.
        """
        for copy in self._copies:
            copy(tensors)
        if self._others:
            with torch.no_grad():
                for i in self._others:
                    self.tensors[i].copy_(tensors[i], non_blocking=True)
