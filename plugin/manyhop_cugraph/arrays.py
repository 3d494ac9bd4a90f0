"""Tensors as pylibcugraph takes and gives them: arrays of CuPy over the same memory, on cuGraph's stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """In the body, torch and CuPy work on a stream of torch's: cuGraph's. It waits for what the caller has enqueued.

    Args:
        stream: the stream; ``None``: no GPU.
    """
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream), _of_cupy(stream):
        yield


class Mark:
    """What the current stream of a device has been given so far; nothing where there is no GPU."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def wait(self, tensors: Iterable[Tensor]) -> None:
        """Let the current stream wait for it, and use tensors that were made by then."""
        if self._event is None:
            return
        for tensor in tensors:
            stream = torch.cuda.current_stream(tensor.device)
            stream.wait_event(self._event)
            tensor.record_stream(stream)


def _of_cupy(stream: torch.cuda.Stream) -> Any:
    """Return a stream of torch's as CuPy has it."""
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
        return cupy.cuda.Stream.from_external(_Stream(stream.cuda_stream))
    return cupy.cuda.ExternalStream(stream.cuda_stream)


class _Stream:
    """A stream by CUDA's protocol, which torch's own follow from 2.8 on."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def to_array(tensor: Tensor) -> Any:
    """Return an array over the memory of a tensor; of a tensor on the CPU, for tests, numpy's."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    import cupy

    return cupy.asarray(tensor)


def to_tensor(array: Any, device: torch.device) -> Tensor:
    """Return a tensor over the memory of an array, which it keeps alive."""
    if device.type == "cpu" or array.size == 0:
        return torch.empty(0, dtype=torch.int64, device=device) if array.size == 0 else torch.from_numpy(array)
    return torch.as_tensor(array, device=device)


def fanout_array(fanouts: list[int]) -> Any:
    """Return fanouts as pylibcugraph takes them, in memory of the host."""
    return np.array(fanouts, dtype=np.int32)
