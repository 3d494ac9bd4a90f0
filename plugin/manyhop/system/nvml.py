"""The machine's GPUs, as the driver reports them (nvidia-ml-py), without starting CUDA.

torch would start CUDA to report the compute capability, and omits GPUs that ``CUDA_VISIBLE_DEVICES`` hides.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One GPU of the machine."""

    index: int
    """Number among all GPUs of the machine, which may differ from torch's number."""
    uuid: str
    """``"GPU-..."``, equal in all processes."""
    name: str
    total: int
    """Bytes of memory."""
    free: int
    """Free bytes."""
    pcie: str | None
    """The fastest link to the host, such as ``"PCIe 5 x16"``; ``None`` if the driver does not report it."""
    peers: tuple[str, ...]
    """``uuid`` of the other GPUs whose memory it can read."""
    capability: tuple[int, int] = (0, 0)
    """Compute capability, such as ``(9, 0)``."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The driver's version and GPUs."""

    version: str
    gpus: tuple[GPU, ...]


def driver() -> Driver | None:
    """Return all GPUs of the machine, including hidden ones (``CUDA_VISIBLE_DEVICES``); ``None``: no driver."""
    try:
        import pynvml  # a dependency on Linux
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found = [_ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(pynvml.nvmlDeviceGetCount())]
        handles = [handle for handle in found if handle is not None]  # not of GPUs that have failed
        gpus = tuple(_gpu(index, handles) for index in range(len(handles)))
        return Driver(version=_ask(pynvml.nvmlSystemGetDriverVersion) or "unknown", gpus=gpus)
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int, handles: list[Any]) -> GPU:
    import pynvml

    handle, memory = handles[index], pynvml.nvmlDeviceGetMemoryInfo(handles[index])
    readable, ok = 0, pynvml.NVML_P2P_STATUS_OK  # NVML_P2P_CAPS_INDEX_READ, which pynvml has as a tuple
    peers = [
        pynvml.nvmlDeviceGetUUID(other)
        for other in handles
        if other is not handle and _ask(pynvml.nvmlDeviceGetP2PStatus, handle, other, readable) == ok
    ]
    generation = _ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return GPU(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        total=memory.total,
        free=memory.free,
        pcie=f"PCIe {generation} x{width}" if generation and width else None,
        peers=tuple(peers),
        capability=_ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0),
    )


def _ask(query: Callable[..., Any], *args: Any) -> Any:
    import pynvml

    try:
        return query(*args)
    except pynvml.NVMLError:
        return None


def visible(gpus: tuple[GPU, ...]) -> tuple[GPU, ...]:
    """Return the GPUs that CUDA shows to this process, as ``CUDA_VISIBLE_DEVICES`` selects them.

    Like CUDA, stop at the first unknown name.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    found: list[GPU] = []
    for name in chosen.split(","):
        fits = [gpu for gpu in gpus if name.strip() == str(gpu.index) or (name and gpu.uuid.startswith(name.strip()))]
        if len(fits) != 1:
            break
        found += fits
    return tuple(found)
