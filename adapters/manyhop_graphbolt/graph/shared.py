"""Sampling graphs in shared memory with a name: one process makes them, others open them."""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import struct
import weakref
import zlib
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.memory.segments import round_up
from manyhop_graphbolt.graph.fused_csc import ATTRIBUTES, TENSORS, FusedCSC

G = TypeVar("G", bound=FusedCSC)

_FOLDER = Path("/dev/shm")
_ALIGN = 64
_HEAD = struct.Struct("<8sQI")  # a mark, the length of the description, and its checksum
_MARK = b"manyhop2"


def copy_to_shared_memory(g: G, name: str) -> G:
    """Copy a graph into memory with a name; see ``FusedCSCSamplingGraph.copy_to_shared_memory``."""
    path, tensors = _path(name), g.tensors()
    places, size = [], 0
    for x in tensors:
        if x.device.type != "cpu":
            raise InputError(f"Expected a graph in CPU memory to share, got a tensor on {x.device}. Use .to('cpu').")
        size = round_up(size, _ALIGN)
        places.append((size, tuple(x.shape), str(x.dtype)))
        size += x.nbytes
    types = {"node_type_to_id": g.node_type_to_id, "edge_type_to_id": g.edge_type_to_id}
    text = json.dumps({"places": places, "types": types, "numbers": _numbered(g), "nbytes": size}).encode()
    file = _claim(path)
    try:
        memory = _reserve(file, path, _begin(text) + size)
        memory[_HEAD.size : _HEAD.size + len(text)] = text
        shared = _assemble(type(g), memory, text)
        for x, there in zip(tensors, shared.tensors(), strict=True):
            there.copy_(x)
        os.pwrite(file, _HEAD.pack(_MARK, len(text), zlib.crc32(text)), 0)  # last: the graph is complete
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(file)  # the lock stays until the memory is unmapped
    weakref.finalize(shared, _remove, path, os.getpid())
    return shared


def open_shared_memory(kind: type[G], name: str) -> G:
    """Open a graph of a class in memory with a name; see ``load_from_shared_memory``."""
    path = _path(name)
    try:
        file = _open_own(path)
    except FileNotFoundError:
        raise InputError(
            f"Expected a graph in shared memory named '{name}', found none. Keep what "
            "copy_to_shared_memory() returned in the process that made it."
        ) from None
    try:
        mark, length, crc32 = _HEAD.unpack(os.pread(file, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
        text = os.pread(file, length, _HEAD.size) if mark == _MARK and length <= os.fstat(file).st_size else b""
        nbytes = json.loads(text)["nbytes"] if text and zlib.crc32(text) == crc32 else None
        if nbytes is None or os.fstat(file).st_size != _begin(text) + nbytes:
            raise InputError(
                f"Expected a sampling graph in {path}, got something else, or one whose copying has not ended. Wait "
                "until copy_to_shared_memory() returns, or call it again if its process has ended."
            )
        return _assemble(kind, mmap.mmap(file, 0), text)
    finally:
        os.close(file)


def _numbered(g: FusedCSC) -> dict[str, int | dict[str, int] | None]:
    """What each of the tensors of a graph is, which have numbers."""
    numbers = iter(range(len(g.tensors())))
    found: dict[str, int | dict[str, int] | None] = {}
    for name in TENSORS:
        found[name] = None if getattr(g, name) is None else next(numbers)
    for name in ATTRIBUTES:
        own = getattr(g, name)
        found[name] = None if own is None else {key: next(numbers) for key in own}
    return found


def _assemble(kind: type[G], memory: mmap.mmap, text: bytes) -> G:
    """Return the graph that ``text`` describes, whose tensors are views of the memory."""
    described, begin = json.loads(text), _begin(text)

    def view(number: int | None) -> Tensor | None:
        if number is None:
            return None
        offset, shape, dtype_name = described["places"][number]
        dtype = getattr(torch, dtype_name.removeprefix("torch."))
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=begin + offset).view(shape)

    parts: dict[str, Any] = {
        name: {key: view(k) for key, k in number.items()} if isinstance(number, dict) else view(number)
        for name, number in described["numbers"].items()
    }
    return kind(**parts, **described["types"])


def _begin(text: bytes) -> int:
    """Where tensors begin behind a description."""
    return round_up(_HEAD.size + len(text), _ALIGN)


def _claim(path: Path) -> int:
    """Return a new file of this name, locked until its last descriptor and mapping are closed."""
    import fcntl  # POSIX systems have it

    while True:
        file = _open_own(path, os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InputError(
                f"Expected a free name of shared memory, got '{path.name}', which is in use. Use another name."
            ) from None
        found = os.fstat(file)
        if found.st_nlink and not found.st_size:
            return file
        if found.st_nlink:  # left by a process that has ended
            path.unlink()
        os.close(file)


def _open_own(path: Path, flags: int = 0) -> int:
    """Open a file of this user that nobody else may touch."""
    try:
        file = os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}. Remove it, or use another name.") from None
    found = os.fstat(file)
    private = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    if not private or found.st_nlink > 1:
        os.close(file)
        raise InputError(
            f"Expected {path} as a file of user {os.getuid()} that nobody else may open, got {found.st_nlink} names of "
            f"{stat.filemode(found.st_mode)} of user {found.st_uid}. Remove it, or use another name."
        )
    return file


def _reserve(file: int, path: Path, size: int) -> mmap.mmap:
    try:
        os.posix_fallocate(file, 0, size)  # now, so that no write can fail later
        return mmap.mmap(file, size)
    except OSError as error:
        raise CapacityError(
            f"Expected {size / 2**30:.2f} GiB of shared memory in {path.parent}, got: {error.strerror}. Enlarge it, or "
            "pass the graph to the processes that you start, which share its memory."
        ) from None


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        path.unlink(missing_ok=True)


def _path(name: str) -> Path:
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        raise InputError(f"Expected a name of shared memory without a slash, got {name!r}.")
    if not _FOLDER.is_dir():
        raise InputError(f"Expected {_FOLDER} for shared memory with a name, found none on this system.")
    return _FOLDER / f"manyhop-{os.getuid()}-{name}"
