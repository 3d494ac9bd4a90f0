"""Small equal tensors on a GPU, one for each batch, such as marks of seeds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_AT_ONCE = 64
_MOST = 1 << 16  # entries made at once
_KINDS = 64


class TensorPool:
    """Equal tensors, many made at once: a launch for each would be a large part of what a batch costs. Thread-safe.

    Args:
        device: the GPU.
        one: ``one(n, device=device)`` makes one of them, ``[n]``, such as ``torch.arange``.
    """

    def __init__(self, device: torch.device, one: Callable[..., Tensor]) -> None:
        self._device, self._one = device, one
        self._spare: dict[tuple[int, int], list[Tensor]] = {}  # by length, and by the stream that made them

    def take(self, n: int) -> Tensor:
        """Return an unshared tensor of length ``n``, allocated on the current stream."""
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
            together = self._one(n, device=self._device).repeat(copies)
            # Unlike those of split(), they are no views: a change of one does not count as a change of all.
            return list(together.unsafe_split_with_sizes([n] * copies))
