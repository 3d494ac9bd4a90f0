"""Scratch memory that successive exchanges reuse, on any streams."""

from __future__ import annotations

import torch
from torch import Tensor


class ScratchBuffer:
    """A tensor that grows on demand. Its uses must be ordered, on the GPU as well.

    Args:
        dtype: dtype of the entries.
        device: where it resides.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._tensor = torch.empty(0, dtype=dtype, device=device)

    def take(self, count: int) -> Tensor:
        """Return ``[count]`` or more entries with undefined content."""
        if self._tensor.numel() < count:
            if self._tensor.is_cuda:  # earlier uses precede the work enqueued on this stream from now on
                self._tensor.record_stream(torch.cuda.current_stream())
            self._tensor = torch.empty(count + count // 4, dtype=self._tensor.dtype, device=self._tensor.device)
        return self._tensor
