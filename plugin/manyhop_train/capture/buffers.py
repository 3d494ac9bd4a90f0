"""Where graphs read batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyhop.system import triton_compiler


class Buffers:
    """Tensors that graphs read, for batches of one size.

    Args:
        tensors: of such a batch, on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.device = tensors[0].device
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        self.by_kernel = triton_compiler.runs_on(self.device) and triton_compiler.usable()
        """Whether graphs copy plain tensors themselves."""
        plain = [self.by_kernel and type(t) is Tensor and not t.is_complex() for t in tensors]
        self.copied = [i for i, is_plain in enumerate(plain) if is_plain and tensors[i].numel()]
        """Numbers of the tensors that graphs copy."""
        self._others = [i for i, is_plain in enumerate(plain) if not is_plain]

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy what graphs do not copy, on the current stream.

        Args:
            tensors: of a batch, in the same order, of the same sizes.
        """
        if self._others:
            with torch.no_grad():
                torch._foreach_copy_([self.tensors[i] for i in self._others], [tensors[i] for i in self._others])
