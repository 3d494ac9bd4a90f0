"""The devices of samplers; asynchronous copies of small arrays there and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from manyhop.errors import InputError


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
