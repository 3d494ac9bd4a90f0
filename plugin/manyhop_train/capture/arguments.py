"""What each replay of a graph is given: numbers that its first kernel reads from the memory of the host."""

from __future__ import annotations

import functools
import struct
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel
from manyhop_train.capture.kernels import fetch_arguments

_SLOTS: Final = 64
"""Replays whose arguments are kept: the host is at most that far ahead of the GPU."""
_HALF: Final = _SLOTS // 2
_spare: dict[tuple[torch.device, int], list[Tensor]] = defaultdict(list)
"""Rings of graphs that are gone: the GPU may still read them, so nobody else may get their memory."""


class Arguments:
    """Arguments of the replays of one graph, which counts its replays as the host does.

    Args:
        most: arguments of a replay, at most.
        device: the GPU; a CPU where triton interprets its kernels.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self._device, self._width = device, 1 << max(4, (most - 1).bit_length())
        spare = _spare[device, self._width]
        if spare:
            self._settle()
            self._ring = spare.pop()
        else:
            self._ring = torch.empty(
                (_SLOTS, self._width), dtype=torch.int64, pin_memory=device.type == "cuda", device="cpu"
            )
        if device.type == "cuda":
            weakref.finalize(self, spare.append, self._ring).atexit = False
        self._bytes: Any = self._ring.numpy()
        self._memory = torch.zeros(1 + self._width, dtype=torch.int64, device=device)
        self.address = self._memory.data_ptr() + 8
        """Of ``[width] int64``: the arguments of the replay under way."""
        self._launched, self._is_open = 0, False
        self._passed: list[torch.cuda.Event | None] = [None, None]
        self._kernel = _fetch(self._width)
        self._kernel.prepare(device)

    def write(self, numbers: Sequence[int]) -> None:
        """Give arguments to the next replay; waits for the GPU where it is too far behind."""
        if self._is_open:  # after an interrupt, who knows whether the graph has been launched
            self._settle()
            self.rewind()
        self._is_open = True
        slot = self._launched % _SLOTS
        if slot % _HALF == 0 and self._device.type == "cuda":
            self._begin_half(slot // _HALF)
        struct.pack_into(f"{len(numbers)}q", self._bytes, 8 * self._width * slot, *numbers)

    def launched(self) -> None:
        """Note that the replay is enqueued which these arguments are for."""
        self._launched += 1
        self._is_open = False

    def fetch(self) -> None:
        """Enqueue the kernel that reads the arguments of the next replay, on the current stream."""
        begin = self._memory.data_ptr()
        self._kernel(self._device, 1, self._ring.data_ptr(), begin, self.address)

    def rewind(self) -> None:
        """Begin with the first replay, after the graph was recorded."""
        self._memory.zero_()
        self._launched, self._is_open = 0, False

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _begin_half(self, half: int) -> None:
        """Wait until the replays that this half of the ring was written for last time have read it."""
        other = self._passed[1 - half] = torch.cuda.Event()  # type: ignore[no-untyped-call]  # of torch
        other.record(torch.cuda.current_stream(self._device))
        before = self._passed[half]
        if before is not None:
            before.synchronize()


@functools.cache
def _fetch(width: int) -> Kernel:
    return Kernel(fetch_arguments, (0, 0, 0), (_SLOTS, width), num_warps=1)
