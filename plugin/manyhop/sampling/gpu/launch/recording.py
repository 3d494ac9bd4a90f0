"""Compile the kernels of a launch, and record its sequence as a CUDA graph."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch

from manyhop.errors import CapacityError, ManyhopError
from manyhop.system.kernel_progress import compiling

# Compile kernels in parallel before the first launch, instead of one by one at their first launches.
#
# A kernel takes about a second, most of it without the GIL: in triton's passes, in ptxas, and in the C compiler that
# builds its launcher.

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

    All of them must be launched through :class:`Ahead`. A kernel that fails to compile raises at its launch.
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


# CUDA graphs, captured independently of torch: in any thread, while other threads use the GPU.
#
# While ``torch.cuda.CUDAGraph`` captures, torch's generator is in capture mode for all threads: ``dropout`` in a
# training step fails while a loader's thread captures (torch 2.11: "Offset increment outside graph capture"). The work
# captured here draws no random numbers and allocates nothing, so torch is not needed.
#
# CUDA's driver is called through ctypes: torch below 2.10 does not depend on cuda-bindings, whose version must match
# torch's CUDA.

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: all threads may use other streams
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU yet
_INVALIDATED = 901  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: by a call that is forbidden during any capture
_ATTEMPTS = 3


class Recording:
    """A CUDA graph of kernels: enqueues them by one call.

    Args:
        work: enqueues the kernels on the current stream, and nothing else; each must have run before. An error that
            it raises ends the capture and is raised again, unless CUDA has invalidated the capture.
        device: a CUDA device.

    Raises:
        CapacityError: the GPU has too little memory for the graph.
        ManyhopError: CUDA fails to capture.
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        cuda = self._cuda = _driver()
        self._exec = ctypes.c_void_p()
        graph, own = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).query()  # binds the GPU's context to this thread
            # torch reuses streams of a pool: the user may have one of them.
            _check(cuda.cuStreamCreate(ctypes.byref(own), _NON_BLOCKING), "make a stream")
            try:
                stream = torch.cuda.ExternalStream(own.value, device)  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    _check(cuda.cuStreamBeginCapture_v2(own, _RELAXED), "begin to record")
                    try:
                        work()
                    except Exception:
                        if cuda.cuStreamEndCapture(own, ctypes.byref(graph)) != _INVALIDATED:
                            raise
                        ended = _INVALIDATED
                    else:
                        ended = cuda.cuStreamEndCapture(own, ctypes.byref(graph))
                _check(ended, "end the recording")
                _check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(self._exec), graph, 0), "make a CUDA graph")
            finally:
                if graph:
                    cuda.cuGraphDestroy(graph)
                cuda.cuStreamDestroy_v2(own)

    def launch(self, stream: torch.cuda.Stream) -> None:
        """Enqueue the kernels on a stream."""
        code = self._cuda.cuGraphLaunch(self._exec, stream.cuda_stream)
        if code == _INVALID_CONTEXT:
            stream.query()
            code = self._cuda.cuGraphLaunch(self._exec, stream.cuda_stream)
        if code:
            _check(code, "launch a CUDA graph")

    def __del__(self) -> None:
        if self._exec and not sys.is_finalizing():
            self._cuda.cuGraphExecDestroy(self._exec)


class Enqueued:
    """A fallback without a CUDA graph: enqueues the kernels one by one."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def launch(self, stream: torch.cuda.Stream | None) -> None:
        """Enqueue the kernels on the current stream, which must be ``stream``."""
        self._work()


def record(work: Callable[[], object], device: torch.device) -> Recording | Enqueued:
    """Capture ``work`` as a CUDA graph; if CUDA fails to, fall back to launches one by one, which cost the host more.

    Raises:
        CapacityError: the GPU has too little memory for the graph.
    """
    for _ in range(_ATTEMPTS):  # another thread can invalidate a capture
        try:
            return Recording(work, device)
        except CapacityError:
            raise
        except ManyhopError as error:
            message = str(error)
    _say_once(f"{message} Kernels are launched one by one, which takes the host longer.")
    return Enqueued(work)


@functools.cache
def _say_once(message: str) -> None:
    logging.getLogger("manyhop").warning(message)


@functools.cache
def _driver() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer, handle = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    for name, types in (
        ("cuStreamCreate", (handle, ctypes.c_uint)),
        ("cuStreamDestroy_v2", (pointer,)),
        ("cuStreamBeginCapture_v2", (pointer, ctypes.c_int)),
        ("cuStreamEndCapture", (pointer, handle)),
        ("cuGraphInstantiateWithFlags", (handle, pointer, ctypes.c_ulonglong)),
        ("cuGraphDestroy", (pointer,)),
        ("cuGraphLaunch", (pointer, pointer)),
        ("cuGraphExecDestroy", (pointer,)),
        ("cuGetErrorName", (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))),
    ):
        getattr(cuda, name).argtypes = types
    return cuda


def _check(code: int, what: str) -> None:
    if code == 0:
        return
    if code == _OUT_OF_MEMORY:
        raise CapacityError(f"Expected room in the GPU's memory to {what}, found none. Free some of it.")
    name = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(name))
    raise ManyhopError(f"CUDA could not {what}: {(name.value or b'?').decode()} ({code}).")
