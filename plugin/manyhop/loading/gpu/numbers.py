"""Numbers of seeds on a GPU, for batches outside of epochs."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = 64
_MOST = 1 << 16  # numbers made at once
_KINDS = 64


class Numbers:
    """Tensors ``0, 1, ...``, many made at once: a launch for each would be a large part of a small batch. Thread-safe.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[tuple[int, int], list[Tensor]] = {}  # by length, and by the stream that made them

    def take(self, n: int) -> Tensor:
        """Return ``[n] int64`` of nobody else, on the current stream."""
        on_gpu = self._device.type == "cuda"
        key = n, torch._C._cuda_getCurrentRawStream(self._device.index) if on_gpu else 0
        spare = self._spare.get(key)
        if spare is None:
            if len(self._spare) == _KINDS:
                self._spare = {}
            spare = self._spare.setdefault(key, [])
        try:
            return spare.pop()
        except IndexError:
            made = self._make(n)
            spare += made[1:]
            return made[0]

    def _make(self, n: int) -> list[Tensor]:
        copies = max(1, min(_AT_ONCE, _MOST // max(n, 1)))
        with torch.inference_mode(False):  # the next batch may be outside of it
            together = torch.arange(n, device=self._device).repeat(copies)
            # Unlike those of split(), they are no views: a change of one does not count as a change of all.
            return list(together.unsafe_split_with_sizes([n] * copies))
