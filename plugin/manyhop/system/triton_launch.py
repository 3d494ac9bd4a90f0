"""Kernels compiled once for fixed types of arguments, and launched without triton's binder, which costs 15 us."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from triton.runtime import driver

from manyhop.system.kernel_progress import compiling

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_locks: dict[object, threading.Lock] = {}  # what triton has compiled is shared, and loaded in two steps
_ALREADY: AbstractContextManager[None] = nullcontext()
_SOME = (1 << 40) + 1  # triton types it as 64 bits, and takes no divisor of it for granted, as it would in tuples


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Let a GPU be the current one within a context, as launches need it; a CPU stands for one in the interpreter."""
    if device.type != "cuda" or torch._C._cuda_getDevice() == device.index:
        return _ALREADY
    return torch.cuda.device(device)


class Kernel:
    """A kernel that takes 64-bit integers, single or in tuples, and constants.

    Args:
        function: a ``triton.jit`` function; no integer argument of it is specialised.
        shape: for each argument, how many integers: 0 for a single one, else the length of the tuple.
        constants: its constexpr arguments, in order.
        num_warps: warps of a program.
    """

    def __init__(self, function: Any, shape: tuple[int, ...], constants: tuple[Any, ...], *, num_warps: int) -> None:
        self._function, self._constants, self._num_warps = function, constants, num_warps
        self._examples = tuple((_SOME,) * n if n else _SOME for n in shape)
        self._enqueue: dict[int, Callable[..., None]] = {}
        self._lock = _locks.setdefault((id(function), constants, num_warps), threading.Lock())

    def prepare(self, device: torch.device) -> None:
        """Compile for a GPU, or load what was compiled before; other threads wait until it is there."""
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

    def __call__(self, device: torch.device, programs: int, *args: Any) -> None:
        """Enqueue on the current stream of the device, which has to be the current one."""
        if INTERPRETED:
            self._function[(programs,)](*args, *self._constants)
        else:
            enqueue = self._enqueue.get(device.index)
            if enqueue is None:  # of kernels that are seldom needed, nobody has asked to be prepared
                self.prepare(device)
                enqueue = self._enqueue[device.index]
            enqueue(programs, *args)
