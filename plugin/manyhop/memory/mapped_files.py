"""Memory that is a mapped file, which other processes map instead of copying it; names of shared contents."""

from __future__ import annotations

import bisect
import mmap
import os
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.memory import segments
from manyhop.memory.segments import Bytes
from manyhop.system.arrays import version_of
from manyhop.system.mapped import watch

_mapped: dict[int, tuple[int, str, int]] = {}  # begin -> end, file, offset


@dataclass(frozen=True)
class FilePlace:
    """Some bytes of a file, and how they are mapped."""

    path: str
    offset: int
    nbytes: int
    writes_through: bool
    """Whether changes are written to the file. Otherwise only the process that makes them sees them."""
    identity: tuple[int, ...]
    """The identity of the file and of its state."""


class MappedFiles:
    """Find the file behind an address; works on Linux only."""

    def __init__(self) -> None:
        self._mappings = [found for found in mappings(unchanged=True) if found.is_file]

    def find(self, address: int, nbytes: int) -> FilePlace | None:
        """Return the file with these bytes; ``None`` for ordinary memory, deleted files, and mappings that were
        changed.
        """
        for found in self._mappings:
            if found.begin <= address and address + nbytes <= found.end:
                break
        else:
            return None
        try:
            state = os.stat(found.path)
        except OSError:
            return None
        if found.offset + (address + nbytes - found.begin) > state.st_size:
            return None
        writes_through = found.rights[1] == "w" and found.rights[3] == "s"
        return FilePlace(found.path, found.offset + address - found.begin, nbytes, writes_through, _identity(state))

    def pages_of(self, table: Tensor) -> Tensor:
        """Return a contiguous tensor whose memory is a file as the pages that the system keeps for all processes.

        It must not be written to, although torch allows it. To page-lock memory that this process may write to would
        copy the file. Other tensors are returned unchanged.
        """
        place = self.find(table.data_ptr(), table.nbytes)
        if place is None:
            return table
        memory = map_again(place, read_only=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has no read-only tensors
            return torch.from_numpy(memory).view(table.dtype).view(table.shape)


def map_again(place: FilePlace, *, read_only: bool = False) -> Bytes:
    """Return ``[nbytes] uint8``: the bytes of a file, mapped as they were elsewhere on this node, or for reading only.

    Raises:
        InputError: the file has changed.
    """
    begin = place.offset - place.offset % mmap.ALLOCATIONGRANULARITY
    length = place.offset + place.nbytes - begin
    writes = place.writes_through and not read_only
    with open(place.path, "r+b" if writes else "rb") as file:
        if _identity(os.fstat(file.fileno())) != place.identity:
            raise InputError(f"The file {place.path} has changed since another rank mapped it. Share its data again.")
        if read_only:
            mapping = mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ, offset=begin)
        elif writes:
            mapping = mmap.mmap(file.fileno(), length, offset=begin)
        else:
            # torch has no read-only memory: writing copies the page. No memory is set aside for that.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
            mapping = mmap.mmap(file.fileno(), length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=begin)
    watch(mapping, place.path, begin + length)
    memory = np.frombuffer(mapping, np.uint8, place.nbytes, place.offset - begin)
    address = memory.ctypes.data
    _mapped[address] = address + place.nbytes, f"file {place.path} {place.identity}", place.offset
    weakref.finalize(memory, _mapped.pop, address).atexit = False
    return memory


def where(address: int) -> tuple[str, int] | None:
    """Return the file of memory from ``map_again``: a name of the file in its state, and the offset."""
    for begin, (end, name, offset) in list(_mapped.items()):
        if begin <= address < end:
            return name, offset + address - begin
    return None


def reside_in_files(addresses: Sequence[int]) -> list[bool]:
    """Return whether the memory at each address is a mapped file on disk. Always false except on Linux.

    Faster than :class:`MappedFiles`, and also true if the process has changed some of the pages.
    """
    ends, on_disk = [], []
    for found in mappings():
        ends += [found.begin, found.end]  # ascending: before a range, and inside of it
        on_disk += [False, found.is_file and not found.path.startswith("/dev/")]
    return [bool(ends) and address < ends[-1] and on_disk[bisect.bisect_right(ends, address)] for address in addresses]


class Mapping(NamedTuple):
    """A range of addresses. The ``path`` begins with ``/``, except for private memory without a file."""

    begin: int
    end: int
    rights: str
    offset: int
    path: str

    @property
    def is_file(self) -> bool:
        """Return whether the memory is a file that exists."""
        return self.path.startswith("/") and not self.path.endswith(" (deleted)")


def mappings(*, unchanged: bool = False) -> list[Mapping]:
    """Return the mappings of this process, ascending; none except on Linux.

    ``unchanged``: without files of which this process has changed pages. This takes long.
    """
    try:
        with open("/proc/self/smaps" if unchanged else "/proc/self/maps") as file:
            lines = [line.split(maxsplit=5) for line in file]
    except OSError:
        return []
    found: list[Mapping] = []
    for words in lines:
        if not words[0].endswith(":"):  # addresses, rights, offset, device, inode, path
            begin, end = (int(word, 16) for word in words[0].split("-"))
            path = words[5].rstrip("\n") if len(words) == 6 else ""
            found.append(Mapping(begin, end, words[1], int(words[2], 16), path))
        elif words[0] == "Anonymous:" and words[1] != "0" and found[-1].is_file:
            found.pop()
    return found


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def identity(tensor: Tensor) -> str | None:
    """Return a name of a tensor's content for all processes of the node; ``None``: it is in private memory."""
    kind = f"{tensor.dtype} {tuple(tensor.shape)}"
    if tensor.numel() == 0:
        return kind
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    place = segments.where(tensor.data_ptr()) or where(tensor.data_ptr())
    if place is None:
        return None
    # A different name if this process has changed it by operations of torch, such as x[i] = y.
    return f"{kind} {tensor.stride()} at {place[1]} of {place[0]}, version {version_of(tensor)}"
