"""Where graphs read batches, and copies to such places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manyhop.system import triton_compiler


class Copies:
    """Copies to tensors that stay where they are: up to 32 of them by a launch.

    Args:
        targets: on one device.
        tensors: such as are copied to them, in the same order.
    """

    def __init__(self, targets: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        self._targets, device = targets, targets[0].device
        by_kernel = triton_compiler.runs_on(device) and triton_compiler.usable()
        plain = [
            by_kernel and type(t) is Tensor and not t.is_complex() and target.is_contiguous()
            for target, t in zip(targets, tensors, strict=True)
        ]
        known = [(i, target) for i, target in enumerate(targets) if plain[i] and target.numel()]
        self._copies: list[Callable[[Sequence[Tensor]], None]] = []
        if known:
            from manyhop.capture.copies import copies_to  # imports triton

            self._copies += copies_to(known, device)
        self._others = [i for i, is_plain in enumerate(plain) if not is_plain]

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors of the targets' sizes, on the current stream."""
        for copy in self._copies:
            copy(tensors)
        if self._others:
            with torch.no_grad():
                for i in self._others:
                    self._targets[i].copy_(tensors[i], non_blocking=True)


class Buffers:
    """Tensors that graphs read, for batches of one size.

    Args:
        tensors: of such a batch, on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        self._copies = Copies(self.tensors, tensors)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy a batch, on the current stream.

        Args:
            tensors: in the same order, of the same sizes.
        """
        self._copies(tensors)
