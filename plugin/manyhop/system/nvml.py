"""What the driver reports about the machine's GPUs, by nvidia-ml-py. Starts no CUDA, takes no memory on a GPU.

torch would start CUDA to tell what a GPU can compute, and does not see those that ``CUDA_VISIBLE_DEVICES`` hides.
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
    """Its number among all of the machine, which need not be torch's."""
    uuid: str
    """``"GPU-..."``, the same for all processes."""
    name: str
    total: int
    """Bytes of memory."""
    free: int
    """Bytes that no process has."""
    pcie: str | None
    """The fastest link to the host, such as ``"PCIe 5 x16"``; ``None`` if the driver does not report it."""
    peers: tuple[str, ...]
    """``uuid`` of the other GPUs whose memory it can read."""
    capability: tuple[int, int] = (0, 0)
    """What it can compute, such as ``(9, 0)``."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What the driver reports."""

    version: str
    gpus: tuple[GPU, ...]


def driver() -> Driver | None:
    """Return all GPUs of the machine, including those that ``CUDA_VISIBLE_DEVICES`` hides; ``None``: no driver."""
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
    """Return an answer of the driver, or ``None`` if it has none."""
    import pynvml

    try:
        return query(*args)
    except pynvml.NVMLError:
        return None


def visible(gpus: tuple[GPU, ...]) -> tuple[GPU, ...]:
    """Return those of ``gpus`` that CUDA shows this process: all, or what ``CUDA_VISIBLE_DEVICES`` names.

    As CUDA does, stops at the first name that is none.
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
