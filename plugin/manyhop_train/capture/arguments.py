"""Arguments of each replay of a graph: addresses, which its first kernel reads from host memory."""

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
"""Number of replays that the host may be ahead of the GPU."""
_HALF: Final = _SLOTS // 2
_spare: dict[tuple[torch.device, int], list[Tensor]] = defaultdict(list)
"""Rings of deleted graphs, which the GPU may still read, so their memory is not freed."""


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
        """Set the arguments of the next replay; wait for the GPU if it is too far behind."""
        if self._is_open:  # an interrupt came before or after the launch
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
"""First program of a missing tensor."""


def enqueue_copies(tensors: Sequence[Tensor], first: int, arguments: Arguments, *, out: bool) -> None:
    """Copy tensors from, or to, the addresses in a replay's arguments, on the current stream.

    Args:
        tensors: contiguous tensors with entries; replays of a recording graph use their memory.
        first: argument number of the first tensor; the others follow.
        arguments: arguments read by :meth:`Arguments.fetch`.
        out: copy to these addresses instead of from them.
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
    """Compile or load the kernels for these numbers of tensors, which is impossible during recording."""
    for num, out in ((num_in, False), (num_out, True)):
        for count in {num % _COUNTS[-1], min(num, _COUNTS[-1])} - {0}:
            _kernel(_size(count), out).prepare(device)


def _size(count: int) -> int:
    return next(n for n in _COUNTS if n >= count)


@functools.cache
def _kernel(size: int, out: bool) -> Kernel:
    return Kernel(copy_tensors, (size, out), calls=size * FIELDS.value)
