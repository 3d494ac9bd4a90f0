"""Devices and streams; asynchronous copies of small arrays to the device and back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from manyhop.errors import InputError

_NO_CHANGE = nullcontext()


def kernel_device(device: torch.device | str, on_cpus: str) -> torch.device:
    """Return the device with its index.

    Args:
        device: a CUDA device; in triton's interpreter, the CPU.
        on_cpus: name of the CPU counterpart, for the error.

    Raises:
        InputError: kernels do not run on the device.
    """
    device = torch.device(device)
    if device.type != "cuda" and not (device.type == "cpu" and triton.knobs.runtime.interpret):
        raise InputError(f"Expected a CUDA device, got {device}. On CPUs, use {on_cpus}.")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the caller's current stream; ``None`` without CUDA."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """Make the stream and its device current within a context; cheap if they are already."""
    if stream is None or (
        torch._C._cuda_getDevice() == stream.device_index
        and torch._C._cuda_getCurrentRawStream(stream.device_index) == stream.cuda_stream
    ):
        return _NO_CHANGE
    return torch.cuda.stream(stream)


def low_64_bits(number: int) -> int:
    """Return the low 64 bits of an integer of any size, as an int64."""
    low = number & (1 << 64) - 1
    return low - (1 << 64) if low >> 63 else low


def upload(parts: Sequence[npt.NDArray[np.int64] | Tensor], device: torch.device) -> list[Tensor]:
    """Copy int64 arrays to the device, flat, by one copy that is asynchronous to the host.

    Each is aligned to 16 bytes, which kernels are compiled for.
    """
    flat = [part.ravel() if isinstance(part, np.ndarray) else part.resolve_neg().numpy() for part in parts]
    begins = np.cumsum([0] + [part.size + part.size % 2 for part in flat]).tolist()
    staging = torch.empty(begins[-1], dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    host = staging.numpy()
    for part, begin in zip(flat, begins, strict=False):
        host[begin : begin + part.size] = part
    memory = staging.to(device, non_blocking=True)
    return [memory.narrow(0, begin, part.size) for part, begin in zip(flat, begins, strict=False)]


class Readback:
    """An asynchronous copy of a device tensor to host memory, which the constructor starts."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if source.is_cuda:
            self._host = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
            self._host.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = source

    def wait(self) -> Tensor:
        """Wait for the copy, and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
