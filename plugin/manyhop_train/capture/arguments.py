"""What each replay of a graph is given: addresses, which its first kernel reads from the memory of the host."""

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
from manyhop_train.capture.kernels import FIELDS, TILE, copy_tensors, fetch_arguments

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
    return Kernel(fetch_arguments, (_SLOTS, width), num_warps=1)


_COUNTS: Final = (8, 16, 32)
"""Tensors of a launch; a kernel each."""
_NEVER: Final = 1 << 62
"""The first program of a tensor that is not there."""


def enqueue_copies(tensors: Sequence[Tensor], first: int, arguments: Arguments, *, out: bool) -> None:
    """Copy tensors from, or to, the addresses that a replay is given, on the current stream.

    Args:
        tensors: contiguous and not empty; a graph that this is recorded in keeps using their memory.
        first: number of the argument of the first one; those of the others follow.
        arguments: which :meth:`Arguments.fetch` has read.
        out: copies to these addresses, not from them.
    """
    most = _COUNTS[-1]
    for begin in range(0, len(tensors), most):
        some, calls, programs = tensors[begin : begin + most], list[int](), 0
        for number, tensor in enumerate(some, first + begin):
            calls += (number, tensor.data_ptr(), tensor.nbytes, programs)
            programs += -(-tensor.nbytes // TILE.value)
        size = _size(len(some))
        calls += (0, 0, 0, _NEVER) * (size - len(some))
        _kernel(size, out)(some[0].device, programs, tuple(calls), arguments.address)


def prepare(num_in: int, num_out: int, device: torch.device) -> None:
    """Compile the kernels for so many tensors, or load them, which cannot be done while a graph is recorded."""
    for num, out in ((num_in, False), (num_out, True)):
        for count in {num % _COUNTS[-1], min(num, _COUNTS[-1])} - {0}:
            _kernel(_size(count), out).prepare(device)


def _size(count: int) -> int:
    return next(n for n in _COUNTS if n >= count)


@functools.cache
def _kernel(size: int, out: bool) -> Kernel:
    return Kernel(copy_tensors, (size, out), calls=size * FIELDS.value)
