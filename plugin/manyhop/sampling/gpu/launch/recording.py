"""CUDA graphs without torch's: recorded in any thread, at any time, whatever other threads do meanwhile.

While ``torch.cuda.CUDAGraph`` records, torch's random numbers are in another state for all threads: ``dropout`` in the
training step would fail if a thread of a loader recorded at that moment (torch 2.11: "Offset increment outside graph
capture"). What is recorded here draws no random numbers and allocates nothing, so torch need not know.

CUDA's driver is called through ctypes: torch below 2.10 does not bring cuda-bindings, whose version has to be that of
torch's CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Callable

import torch

from manyhop.errors import CapacityError, ManyhopError

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: what any thread does on other streams is no part of it, and allowed
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU yet


class Recording:
    """Kernels that are enqueued by one call.

    Args:
        work: enqueues them on the current stream; kernels only, all of which have run before. Where it raises, the
            recording ends, too.
        device: a CUDA device.

    Raises:
        CapacityError: the GPU has no memory for it.
        ManyhopError: CUDA refuses to record.
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        cuda = self._cuda = _driver()
        self._exec = ctypes.c_void_p()
        self._device = device
        graph, own = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).query()  # makes the GPU's context this thread's
            # Streams of torch are handed out again and again: one of the user's may be the same.
            _check(cuda.cuStreamCreate(ctypes.byref(own), _NON_BLOCKING), "make a stream")
            try:
                stream = torch.cuda.ExternalStream(own.value, device)  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    _check(cuda.cuStreamBeginCapture_v2(own, _RELAXED), "begin to record")
                    try:
                        work()
                    finally:
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
    """Kernels that are enqueued one by one."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def launch(self, stream: torch.cuda.Stream | None) -> None:
        """Enqueue the kernels on the current stream, which is the one that is named."""
        self._work()


def record(work: Callable[[], object], device: torch.device) -> Recording | Enqueued:
    """A recording; where CUDA refuses to make one, what does the same at a higher cost to the host.

    Raises:
        CapacityError: the GPU has no memory for it.
    """
    try:
        return Recording(work, device)
    except CapacityError:
        raise
    except ManyhopError as error:
        _say_once(f"{error} Kernels are launched one by one, which takes the host longer.")
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
