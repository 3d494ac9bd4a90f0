"""Sampling graphs in shared memory with a name: one process makes them, others open them."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop_dgl.graphbolt.graph.fused_csc import ATTRIBUTES, TENSORS, FusedCSC

G = TypeVar("G", bound=FusedCSC)

_FOLDER = Path("/dev/shm")
_ALIGN = 64
_HEAD = 16  # bytes: how long the description is, and a mark
_MARK = b"manyhop1"


def copy_to_shared_memory(g: G, name: str) -> G:
    """Copy a graph into memory with a name; see ``FusedCSCSamplingGraph.copy_to_shared_memory``."""
    path, tensors = _path(name), g.tensors()
    places, size = [], 0
    for x in tensors:
        if x.device.type != "cpu":
            raise InputError(f"Expected a graph in CPU memory to share, got a tensor on {x.device}. Use .to('cpu').")
        size = -(-size // _ALIGN) * _ALIGN
        places.append((size, tuple(x.shape), str(x.dtype)))
        size += x.nbytes
    types = {"node_type_to_id": g.node_type_to_id, "edge_type_to_id": g.edge_type_to_id}
    described = pickle.dumps((places, types, _numbered(g)))
    begin = -(-(_HEAD + len(described)) // _ALIGN) * _ALIGN
    memory = _create(path, begin + size)
    memory[:_HEAD] = _MARK + len(described).to_bytes(8, "little")
    memory[_HEAD : _HEAD + len(described)] = described
    shared = _assemble(type(g), memory)
    for x, there in zip(tensors, shared.tensors(), strict=True):
        there.copy_(x)
    weakref.finalize(shared, _remove, path, os.getpid())
    return shared


def open_shared_memory(kind: type[G], name: str) -> G:
    """Open a graph of a class in memory with a name; see ``load_from_shared_memory``."""
    path = _path(name)
    try:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    except (FileNotFoundError, ValueError):
        raise InputError(
            f"Expected a graph in shared memory named '{name}', found none. Keep what "
            "copy_to_shared_memory() returned in the process that made it."
        ) from None
    if memory[:8] != _MARK:
        raise InputError(f"Expected a sampling graph in the shared memory '{name}', got something else.")
    return _assemble(kind, memory)


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


def _assemble(kind: type[G], memory: mmap.mmap) -> G:
    """A graph whose tensors are views of the memory."""
    length = int.from_bytes(memory[8:_HEAD], "little")
    places, types, numbers = _Plain(io.BytesIO(memory[_HEAD : _HEAD + length])).load()
    begin = -(-(_HEAD + length) // _ALIGN) * _ALIGN

    def view(number: int | None) -> Tensor | None:
        if number is None:
            return None
        offset, shape, dtype_name = places[number]
        dtype = getattr(torch, dtype_name.removeprefix("torch."))
        count = int(torch.Size(shape).numel())
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=begin + offset).view(shape)

    parts: dict[str, Any] = {
        name: {key: view(k) for key, k in number.items()} if isinstance(number, dict) else view(number)
        for name, number in numbers.items()
    }
    return kind(**parts, **types)


class _Plain(pickle.Unpickler):
    """Numbers, texts, lists and dictionaries; nothing that could run code."""

    def find_class(self, module: str, name: str) -> object:
        raise InputError(f"Expected plain data in shared memory, got {module}.{name}.")


def _create(path: Path, size: int) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError(f"Expected a free name of shared memory, got '{path.name}', which is in use.") from None
    try:
        os.posix_fallocate(descriptor, 0, size)  # now, so that no write can fail later
        return mmap.mmap(descriptor, size)
    except OSError as error:
        os.unlink(path)
        raise CapacityError(
            f"Expected {size / 2**30:.2f} GiB of shared memory in {path.parent}, got: {error.strerror}. Enlarge it, or "
            "pass the graph to the processes that you start, which share its memory."
        ) from None
    finally:
        os.close(descriptor)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        path.unlink(missing_ok=True)


def _path(name: str) -> Path:
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        raise InputError(f"Expected a name of shared memory without a slash, got {name!r}.")
    if not _FOLDER.is_dir():
        raise InputError(f"Expected {_FOLDER} for shared memory with a name, found none on this system.")
    return _FOLDER / f"manyhop-{os.getuid()}-{name}"
