"""What the driver reports about the machine's GPUs through its management library. Takes no memory on a GPU.

Called through ctypes, as nvidia-ml-py does: `manyhop doctor` and `manyhop plan` have to see the GPUs of an installation
that lacks every extra, and torch does not depend on nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

_OK = 0
_P2P_READ = 0  # the first of the library's kinds of peer access


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
    """The fastest link to the host, such as ``"PCIe 5 x16"``; ``None`` where the driver does not report it."""
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
    """All GPUs of the machine, also those that ``CUDA_VISIBLE_DEVICES`` hides; ``None`` without a driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2() != _OK:
        return None
    try:
        handles = _handles(library)
        uuids = [_text(library.nvmlDeviceGetUUID, handle) for handle in handles]
        gpus = [
            GPU(
                index=index,
                uuid=uuids[index],
                name=_text(library.nvmlDeviceGetName, handle),
                **_memory(library, handle),
                pcie=_pcie(library, handle),
                peers=tuple(
                    uuid
                    for uuid, other in zip(uuids, handles, strict=True)
                    if other is not handle and _number(library.nvmlDeviceGetP2PStatus, handle, other, _P2P_READ) == _OK
                ),
                capability=_capability(library, handle),
            )
            for index, handle in enumerate(handles)
        ]
        return Driver(version=_text(library.nvmlSystemGetDriverVersion), gpus=tuple(gpus))
    finally:
        library.nvmlShutdown()


def visible(gpus: tuple[GPU, ...]) -> tuple[GPU, ...]:
    """Those of ``gpus`` that CUDA shows this process: all, or what ``CUDA_VISIBLE_DEVICES`` names.

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


def _handles(library: Any) -> list[ctypes.c_void_p]:
    count = _number(library.nvmlDeviceGetCount_v2) or 0
    handles = []
    for index in range(count):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == _OK:
            handles.append(handle)
    return handles


def _memory(library: Any, handle: ctypes.c_void_p) -> dict[str, int]:
    found = (ctypes.c_ulonglong * 3)()  # total, free, used
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(found))
    return {"total": found[0], "free": found[1]}


def _pcie(library: Any, handle: ctypes.c_void_p) -> str | None:
    generation = _number(library.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _number(library.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return None if not generation or not width else f"PCIe {generation} x{width}"


def _capability(library: Any, handle: ctypes.c_void_p) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _number(query: Any, *args: Any) -> int | None:
    """What ``ask`` writes through its last argument; ``None`` where it fails."""
    found = ctypes.c_uint()
    return found.value if query(*args, ctypes.byref(found)) == _OK else None


def _text(query: Any, *args: Any) -> str:
    found = ctypes.create_string_buffer(96)
    return found.value.decode() if query(*args, found, ctypes.c_uint(len(found))) == _OK else "unknown"
