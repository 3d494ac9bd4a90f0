"""Addresses of batches in page-locked memory, from which the first kernel of a replay reads. Imports triton."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel
from manyhop_train.capture.kernels import FIELDS, TILE, copy_tensors, fetch_addresses

_SLOTS: Final = 256
"""Number of replays that the host may be ahead of the GPU."""
_AT_ONCE: Final = 32
"""Tensors that a launch copies, at most."""
_spare: dict[tuple[torch.device, int], list[Tensor]] = defaultdict(list)
"""Memory of deleted rings, which the GPU may still read, so it is not freed."""


class Ring:
    """The sources of the next replays of graphs that copy a batch: the graphs count replays as the host does.

    Args:
        targets: contiguous tensors with entries, to which a replay copies a batch's, on a GPU; on a CPU where triton
            interprets its kernels.
    """

    def __init__(self, targets: Sequence[Tensor]) -> None:
        self._device, width = targets[0].device, 1 << max(4, (len(targets) - 1).bit_length())
        is_cuda, spare = self._device.type == "cuda", _spare[self._device, width]
        self._slots = spare.pop() if spare else torch.empty((_SLOTS, width), dtype=torch.int64, pin_memory=is_cuda)
        if is_cuda:
            weakref.finalize(self, spare.append, self._slots).atexit = False
        self._numbers: Any = self._slots.numpy()
        self._memory = torch.zeros(1 + width, dtype=torch.int64, device=self._device)
        """Number of replays; sources of the replay under way."""
        self._launched, self._is_open = 0, False
        self._fetch = _kernel(fetch_addresses, _SLOTS, width)
        self._fetch.prepare(self._device)  # which is impossible during recording
        self._copies: list[tuple[Kernel, int, int, tuple[int, ...]]] = []
        for begin in range(0, len(targets), _AT_ONCE):
            numbers, programs = list[int](), 0
            for target in targets[begin : begin + _AT_ONCE]:
                numbers += (target.data_ptr(), target.nbytes, programs)
                programs += -(-target.nbytes // TILE.value)
            kernel = _kernel(copy_tensors, len(numbers) // FIELDS.value)
            kernel.prepare(self._device)
            self._copies.append((kernel, programs, self._memory[1 + begin :].data_ptr(), tuple(numbers)))

    def write(self, sources: Sequence[int]) -> None:
        """Set the addresses for the next replay. Wait for the GPU once per round of the ring."""
        if self._is_open:  # an interrupt came before or after the launch
            self.rewind()
        self._is_open, slot = True, self._launched % _SLOTS
        if slot == 0:
            self._wait()
        self._numbers[slot, : len(sources)] = sources

    def launched(self) -> None:
        """Note that the replay of these addresses is enqueued."""
        self._launched += 1
        self._is_open = False

    def copy(self) -> None:
        """Enqueue the kernels that copy the next batch, on the current stream."""
        count = self._memory.data_ptr()
        self._fetch(self._device, 1, self._slots.data_ptr(), count, count + 8)
        for kernel, programs, sources, targets in self._copies:
            kernel(self._device, programs, sources, targets)

    def rewind(self) -> None:
        """Begin with the first slot again."""
        self._wait()
        self._memory.zero_()
        self._launched, self._is_open = 0, False

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@functools.cache
def _kernel(function: Any, *constants: int) -> Kernel:
    if function is copy_tensors:
        return Kernel(function, constants, targets=constants[0] * FIELDS.value)
    return Kernel(function, constants, num_warps=1)
