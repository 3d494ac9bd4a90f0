"""Compile kernels in parallel before the first launch, instead of one by one at their first launches.

A kernel takes about a second, most of it without the GIL: in triton's passes, in ptxas, and in the C compiler that
builds its launcher.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch

from manyhop.system.kernel_progress import compiling

Compile: TypeAlias = Callable[[], Any]

_MOST_THREADS = 8

_noted: ContextVar[dict[Any, Compile] | None] = ContextVar("_noted", default=None)
_compiled: set[Any] = set()
_lock = threading.Lock()


class Ahead:
    """Wrap a triton kernel; launch it as usual: ``kernel[grid](*arguments, **constants)``.

    Inside :func:`compile_ahead`, a launch is recorded for compilation instead.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        noted = _noted.get()
        return self._kernel[grid] if noted is None else functools.partial(self._note, noted)

    def _note(self, noted: dict[Any, Compile], *arguments: Any, **constants: Any) -> None:
        key = id(self._kernel), *sorted(constants.items())
        noted.setdefault(key, functools.partial(self._kernel.warmup, *arguments, grid=(1,), **constants))


def compile_ahead(work: Callable[[], object], device: torch.device) -> None:
    """Compile the kernels that ``work`` launches, or load them from triton's cache, without launching any.

    All of them have to be launched through :class:`Ahead`. A kernel that fails to compile raises at its launch.
    """
    noted: dict[Any, Compile] = {}
    token = _noted.set(noted)
    try:
        work()
    finally:
        _noted.reset(token)

    def load(call: Compile) -> None:
        with suppress(Exception), torch.cuda.device(device):
            _ = call().run  # loads the compiled kernel onto the GPU

    with compiling(), _lock:  # other threads wait until all kernels are loaded
        new = {(device, key): call for key, call in noted.items() if (device, key) not in _compiled}
        if new:
            with ThreadPoolExecutor(min(len(new), _MOST_THREADS, os.cpu_count() or 1), "manyhop-compile") as threads:
                list(threads.map(load, new.values()))
            _compiled.update(new)
