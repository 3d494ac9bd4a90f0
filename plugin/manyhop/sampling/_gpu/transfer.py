"""Small arrays to the device and back, without making the host wait before it must."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(parts: Sequence[npt.NDArray[np.int64] | Tensor], device: torch.device) -> list[Tensor]:
    """``[n] int64`` arrays on the device, by one copy that the current stream waits for and the host does not."""
    sizes = [part.size if isinstance(part, np.ndarray) else part.numel() for part in parts]
    staging = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
    begin = 0
    for part, size in zip(parts, sizes, strict=True):
        flat = torch.from_numpy(part) if isinstance(part, np.ndarray) else part
        staging[begin : begin + size].copy_(flat.reshape(-1))
        begin += size
    return list(torch.split(staging.to(device, non_blocking=True), sizes))


class Readback:
    """A copy of a device tensor in host memory, under way from now on."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if source.is_cuda:
            self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._host.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = source

    def wait(self) -> Tensor:
        """The values; blocks until they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
