"""Conversions between tensors and pylibcugraph's arrays, on cuGraph's stream, without copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Make a stream current for torch and CuPy. It first waits for the caller's current stream.

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
    """The work enqueued so far on the current stream of a device; on a CPU, no work."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def wait(self, tensors: Iterable[Tensor]) -> None:
        """Let the current stream wait for the work, and use tensors that it creates."""
        if self._event is None:
            return
        for tensor in tensors:
            stream = torch.cuda.current_stream(tensor.device)
            stream.wait_event(self._event)
            tensor.record_stream(stream)


def _of_cupy(stream: torch.cuda.Stream) -> Any:
    """Return a torch stream as a CuPy stream."""
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.cuda_stream)


def to_array(tensor: Tensor) -> Any:
    """Return a CuPy array over the memory of a tensor; in tests on a CPU, a numpy array."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    import cupy

    return cupy.asarray(tensor)


def to_tensor(array: Any, device: torch.device) -> Tensor:
    """Return a tensor over the memory of an array, which it keeps alive."""
    if device.type == "cpu" or array.size == 0:
        return torch.empty(0, dtype=torch.int64, device=device) if array.size == 0 else torch.from_numpy(array)
    return torch.as_tensor(array, device=device)
