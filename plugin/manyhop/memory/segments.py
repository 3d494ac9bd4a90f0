"""Anonymous memory that processes of a node map; the last one frees it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import uuid
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.system.memory import require_memory

Bytes = npt.NDArray[np.uint8]

HUGE = 1 << 21  # bytes of a huge page
MADV_COLLAPSE = 25  # Linux 6.1 and later; Python has no name for it
_MAP_FIXED = 0x10


@dataclass(frozen=True)
class Segment:
    """A piece of memory, as this process has mapped it.

    It remains mapped as long as a view of ``memory`` exists. It has no file that could be left behind: the kernel frees
    the memory with the last mapping and the last descriptor, also after ``kill -9``.
    """

    id: str
    """Random; equal in all processes."""
    fd: int
    """Descriptor to pass on to other processes; open as long as the memory is mapped."""
    memory: Bytes
    """``[size] uint8``. Never moves."""


@dataclass(frozen=True)
class _Mapping:
    begin: int
    end: int
    fd: int
    memory: weakref.ref[Bytes]


_mapped: dict[str, _Mapping] = {}


def create(what: str, size: int, remedy: str = "Share less, or use a machine with more memory.") -> Segment:
    """Create memory of at least ``size`` bytes, all zero, in huge pages if the system has them.

    Raises:
        CapacityError: there is not as much memory.
    """
    size = round_up(max(size, 1), HUGE if size >= HUGE else mmap.PAGESIZE)
    require_memory(what, size, remedy)
    id = uuid.uuid4().hex
    fd = os.memfd_create(file_name(id))
    try:
        os.truncate(fd, size)
        mapping, begin = _map(fd, size)
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):  # random reads of small rows are twice as fast there
            np.frombuffer(mapping, np.uint8, size, begin)[::HUGE] = 0  # only memory with a page can get a huge one
            with contextlib.suppress(OSError):  # an older kernel, or memory in too small pieces
                mapping.madvise(MADV_COLLAPSE, begin, size)
        return _register(id, fd, mapping, begin, size)
    except BaseException:
        os.close(fd)
        raise


def attach(id: str, fd: int) -> Segment:
    """Map the segment that another process has passed on. ``fd`` then belongs to the segment."""
    known = find(id)
    try:
        if known is None:
            size = os.fstat(fd).st_size
            return _register(id, fd, *_map(fd, size), size)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return known


def find(id: str) -> Segment | None:
    """Return a segment that this process has mapped."""
    mapping = _mapped.get(id)
    memory = None if mapping is None else mapping.memory()
    return None if mapping is None or memory is None else Segment(id, mapping.fd, memory)


def where(address: int) -> tuple[str, int] | None:
    """Return the segment of memory: ``(id, offset)``; ``None`` for any other memory."""
    for id, mapping in list(_mapped.items()):
        if mapping.begin <= address < mapping.end:
            return id, address - mapping.begin
    return None


def file_name(id: str) -> str:
    """Return the name of a segment's anonymous file, which /proc shows."""
    return f"manyhop-{id}"


def return_freed_memory() -> None:
    """Return freed memory of this process to the system: glibc keeps tens of megabytes for later."""
    if hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(0)


def _register(id: str, fd: int, mapping: Any, begin: int, size: int) -> Segment:
    # Every view keeps this array alive, and nothing else does: it is freed with the last view.
    memory = np.frombuffer(mapping, np.uint8, size, begin)
    _mapped[id] = _Mapping(memory.ctypes.data, memory.ctypes.data + size, fd, weakref.ref(memory))
    weakref.finalize(memory, _forget, id).atexit = False
    return Segment(id, fd, memory)


def _forget(id: str) -> None:
    os.close(_mapped.pop(id).fd)


def _map(fd: int, size: int) -> tuple[mmap.mmap, int]:
    """Map a file; return the mapping and where the file begins in it: at a multiple of a huge page, if it is large."""
    if size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(fd, size), 0
    # The kernel aligns such a mapping only if the administrator has allowed huge pages everywhere.
    mapping = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    begin = -address % HUGE
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _libc().mmap(address + begin, size, protection, flags, fd, 0) != address + begin:
        raise OSError(ctypes.get_errno(), f"mapping {size} bytes of shared memory: {os.strerror(ctypes.get_errno())}")
    with contextlib.suppress(OSError):  # huge pages are off
        mapping.madvise(mmap.MADV_HUGEPAGE, begin, size)
    return mapping, begin  # also unmaps the file


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return libc


def round_up(n: int, unit: int) -> int:
    """Return the smallest multiple of ``unit`` that is at least ``n``."""
    return -(-n // unit) * unit
