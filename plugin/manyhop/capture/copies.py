"""Copies of batches to where graphs read them: all tensors by one launch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from manyhop.capture.kernels import FIELDS, TILE, copy_tensors
from manyhop.system.triton_launch import Kernel

_COUNTS: Final = (8, 16, 32)
"""Tensors of a launch; a kernel each."""
_NEVER: Final = 1 << 62
"""The first program of a tensor that is not there."""


def copies_to(targets: Sequence[tuple[int, Tensor]], device: torch.device) -> list[Copy]:
    """Return launches that copy tensors of a batch.

    Args:
        targets: contiguous and not empty, with their numbers in a batch.
        device: the GPU; a CPU where triton interprets its kernels.
    """
    most = _COUNTS[-1]
    return [Copy(targets[k : k + most], device) for k in range(0, len(targets), most)]


class Copy:
    """One launch; see :func:`copies_to`."""

    def __init__(self, targets: Sequence[tuple[int, Tensor]], device: torch.device) -> None:
        self._numbers = [i for i, _ in targets]
        self._device, self._programs = device, 0
        self._calls: list[int] = []
        for _, target in targets:
            self._calls += (0, target.data_ptr(), target.nbytes, self._programs)
            self._programs += -(-target.nbytes // TILE.value)
        size = next(n for n in _COUNTS if n >= len(targets))
        self._calls += (0, 0, 0, _NEVER) * (size - len(targets))
        self._kernel = _kernel(size)
        self._kernel.prepare(device)

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors of a batch, on the current stream."""
        sources = [tensors[i] for i in self._numbers]
        if not all([source.is_contiguous() for source in sources]):
            sources = [source.contiguous() for source in sources]  # which live until the kernel is enqueued
        calls = self._calls.copy()
        calls[: FIELDS.value * len(sources) : FIELDS.value] = [source.data_ptr() for source in sources]
        if self._device.type == "cuda" and torch.cuda.current_device() != self._device.index:
            with torch.cuda.device(self._device):
                self._kernel(self._device, self._programs, tuple(calls))
        else:
            self._kernel(self._device, self._programs, tuple(calls))


@functools.cache
def _kernel(size: int) -> Kernel:
    return Kernel(copy_tensors, (size * FIELDS.value,), (size,), num_warps=4)
