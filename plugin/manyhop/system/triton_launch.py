"""Kernels compiled once for fixed types of arguments, and launched without triton's binder, which costs 15 us.

Also the device and the stream that launches go to, and integers of any size as their arguments.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from triton.runtime import driver

from manyhop.system.kernel_progress import compiling

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_locks: dict[object, threading.Lock] = {}  # compiled kernels are shared, and loaded in two steps
_ALREADY: AbstractContextManager[object] = nullcontext()
_SOME = (1 << 40) + 1  # triton types it as 64 bits, and does not specialise on its divisors


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one within a context, as launches require. Do nothing for a CPU (interpreter)."""
    if device.type != "cuda" or torch._C._cuda_getDevice() == device.index:
        return _ALREADY
    return torch.cuda.device(device)


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the caller's current stream; ``None`` without CUDA."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Make the stream and its device current within a context; cheap if they are already."""
    if stream is None or (
        torch._C._cuda_getDevice() == stream.device_index
        and torch._C._cuda_getCurrentRawStream(stream.device_index) == stream.cuda_stream
    ):
        return _ALREADY
    return torch.cuda.stream(stream)


def low_64_bits(number: int) -> int:
    """Return the low 64 bits of an integer of any size, as an int64."""
    low = number & (1 << 64) - 1
    return low - (1 << 64) if low >> 63 else low


class Kernel:
    """A kernel whose arguments are 64-bit integers, single or in tuples, then constants.

    Args:
        function: a ``triton.jit`` function; no integer argument of it is specialised.
        constants: its constexpr arguments, in order.
        num_warps: warps of a program.
        tuples: the lengths of the arguments that are tuples.
    """

    def __init__(self, function: Any, constants: tuple[Any, ...] = (), *, num_warps: int = 4, **tuples: int) -> None:
        self._function, self._constants, self._num_warps = function, constants, num_warps
        names = list(inspect.signature(function.fn).parameters)
        self._names = names[: len(names) - len(constants)]
        # Before the last argument: an itemgetter of one name would not return a tuple.
        self._rest = [itemgetter(*self._names[n:]) for n in range(len(self._names) - 1)]
        assert tuples.keys() <= set(self._names), f"expected names among {self._names}, got {[*tuples]}"
        self._examples = tuple((_SOME,) * tuples[name] if name in tuples else _SOME for name in self._names)
        self._enqueue: dict[int, Callable[..., None]] = {}
        self._lock = _locks.setdefault((id(function), constants, num_warps), threading.Lock())

    def prepare(self, device: torch.device) -> None:
        """Compile for a GPU, or load from the cache. Other threads wait."""
        if INTERPRETED or device.index in self._enqueue:
            return
        with compiling(), self._lock:
            if device.index not in self._enqueue:
                self._load(device)

    def _load(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            compiled = self._function.warmup(*self._examples, *self._constants, grid=(1,), num_warps=self._num_warps)
            run, stream_of = compiled.run, driver.active.get_current_stream  # run: loads the code
        function, metadata, constants, index = (
            compiled.function,
            compiled.packed_metadata,
            self._constants,
            device.index,
        )

        def enqueue(programs: int, *args: Any) -> None:
            run(programs, 1, 1, stream_of(index), function, metadata, None, None, None, *args, *constants)

        self._enqueue[index] = enqueue

    def __call__(self, device: torch.device, programs: int, *args: Any, **named: Any) -> None:
        """Enqueue on the current stream of the device, which must be the current device."""
        if named:
            args += self._rest[len(args)](named)
        if INTERPRETED:
            self._function[(programs,)](*args, *self._constants)
        else:
            enqueue = self._enqueue.get(device.index)
            if enqueue is None:  # rarely used kernels are not prepared
                self.prepare(device)
                enqueue = self._enqueue[device.index]
            enqueue(programs, *args)
