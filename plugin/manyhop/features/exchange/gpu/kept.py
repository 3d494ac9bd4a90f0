"""Memory that exchanges use one after the other, on whatever stream each of them runs."""

from __future__ import annotations

import torch
from torch import Tensor


class Kept:
    """A tensor that grows when it has to. Those who take it come one after the other, on the GPU too.

    Args:
        dtype: of its entries.
        device: where it lies.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._tensor = torch.empty(0, dtype=dtype, device=device)

    def take(self, count: int) -> Tensor:
        """``[count]`` or more entries, whose content is undefined."""
        if self._tensor.numel() < count:
            if self._tensor.is_cuda:  # all who have taken it are before what is enqueued here from now on
                self._tensor.record_stream(torch.cuda.current_stream())
            self._tensor = torch.empty(count + count // 4, dtype=self._tensor.dtype, device=self._tensor.device)
        return self._tensor
