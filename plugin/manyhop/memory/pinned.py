"""Host memory that GPUs read directly: memory of any kind is pinned in place, once per process."""

from __future__ import annotations

import bisect
import contextlib
import mmap
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.system.threads import in_forked_children

_PAGE = mmap.PAGESIZE
_PAGES_OF_ITS_OWN = 32 << 20  # bytes of the smallest allocation that has pages of its own
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8  # of cudaHostRegister


def pin(source: Tensor | np.ndarray[Any, Any]) -> None:
    """Pin the memory of a CPU tensor or an array in place, so that GPUs read it over the bus.

    It remains pinned until the memory is freed, or :func:`unpin`. Shared memory and files mapped into memory can be
    pinned too, by each process for itself. Pinning it again does nothing.

    Args:
        source: a tensor or an array of any shape and strides. A file that is mapped into memory is read completely,
            and remains in memory.

    Raises:
        InputError: not CPU memory, or there is no GPU.
        CapacityError: the system does not let this process pin as much memory.
    """
    if not torch.cuda.is_available():
        raise InputError("Expected a CUDA device to pin memory for, found none. Pin nothing on this machine.")
    begin, end, owner = _extent(source)
    if begin == end or registry.has(begin, end):
        return
    if isinstance(source, Tensor) and source.is_pinned() and not registry.over(begin, end):
        return
    registry.add(begin, end)
    weakref.finalize(owner, registry.remove, begin, end).atexit = False


def unpin(source: Tensor | np.ndarray[Any, Any]) -> None:
    """Undo :func:`pin`; wait for the GPU first. Other memory is left unchanged."""
    begin, end, _ = _extent(source)
    if registry.over(begin, end):
        torch.cuda.synchronize()
        registry.remove(begin, end)


def is_pinned(source: Tensor | np.ndarray[Any, Any]) -> bool:
    """Return whether a GPU may read this CPU tensor or array."""
    begin, end, _ = _extent(source)
    if begin == end or registry.covers(begin, end):
        return True
    return isinstance(source, Tensor) and torch.cuda.is_available() and source.is_pinned()


def is_pinnable(source: Tensor | np.ndarray[Any, Any]) -> bool:
    """Return whether memory is large enough to be pinned in place.

    The pages of smaller memory may be shared with other objects, which CUDA then cannot copy, as only a part of
    them is pinned.
    """
    return int(source.nbytes) >= _PAGES_OF_ITS_OWN


def pinned_bytes() -> int:
    """Return the bytes that this process has pinned with :func:`pin`."""
    return registry.bytes


@dataclass
class _Piece:
    """Pages that were pinned by one call, and the number of their users."""

    begin: int
    end: int
    users: int


class Registry:
    """All pinned memory. Small tensors share pages, and a page can be pinned only once."""

    def __init__(self) -> None:
        self.bytes = 0
        self.generation = 0
        """Changes whenever memory is pinned or unpinned."""
        self._pieces: list[_Piece] = []  # disjoint, ascending
        self._users: set[tuple[int, int]] = set()
        self._lock = threading.RLock()  # garbage collection may call remove() in the middle of add()

    def has(self, begin: int, end: int) -> bool:
        """Return whether exactly this was pinned here."""
        return (begin, end) in self._users

    def covers(self, begin: int, end: int) -> bool:
        """Return whether all of it was pinned here."""
        for piece in self.over(begin, end):
            if piece.begin > begin:
                return False
            begin = piece.end
        return begin >= end

    def add(self, begin: int, end: int) -> None:
        """Pin the pages that are not pinned yet."""
        user = begin, end
        begin, end = _pages(begin, end)
        with self._lock:
            if user in self._users:
                return
            over, at = self.over(begin, end), begin
            new: list[_Piece] = []
            try:
                for stop in [*(piece.begin for piece in over), end]:
                    if at < stop:
                        _register(at, stop - at)
                        new.append(_Piece(at, stop, 1))
                    at = next((piece.end for piece in over if piece.begin == stop), end)
            except BaseException:
                for piece in new:
                    _unregister(piece.begin)
                raise
            for piece in over:
                piece.users += 1
            self._pieces = sorted(self._pieces + new, key=lambda piece: piece.begin)
            self._users.add(user)
            self.bytes += sum(piece.end - piece.begin for piece in new)
            self.generation += 1

    def remove(self, begin: int, end: int) -> None:
        """Unpin pages that have no other owner."""
        user = begin, end
        begin, end = _pages(begin, end)
        with self._lock:
            if user not in self._users:
                return
            self._users.remove(user)
            for piece in self.over(begin, end):
                piece.users -= 1
                if not piece.users:
                    _unregister(piece.begin)
                    self._pieces.remove(piece)
                    self.bytes -= piece.end - piece.begin
            self.generation += 1

    def forget(self) -> None:
        """Drop the records in a forked child: CUDA and all pinning belong to the parent. The child may pin memory."""
        self.bytes, self._pieces, self._users, self._lock = 0, [], set(), threading.RLock()
        self.generation += 1

    def over(self, begin: int, end: int) -> list[_Piece]:
        """Return the pieces that have some of it."""
        pieces = self._pieces
        first = bisect.bisect_right(pieces, begin, key=lambda piece: piece.end)
        last = bisect.bisect_left(pieces, end, key=lambda piece: piece.begin)
        return pieces[first:last]


registry = Registry()
in_forked_children(lambda: registry.forget())


def _register(begin: int, nbytes: int) -> None:
    for read_only in (0, _READ_ONLY):  # a file may be pinned for reading only, even if its mapping can be written to
        flags = _PORTABLE | _MAPPED | read_only
        code = int(torch.cuda.cudart().cudaHostRegister(begin, nbytes, flags))  # type: ignore[no-untyped-call]
        if code == 0:
            return
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda")  # CUDA keeps an error until a kernel is launched, which this one stands for
    raise CapacityError(
        f"Expected to pin {nbytes / 2**30:.2f} GiB, on top of {registry.bytes / 2**30:.2f} GiB that this process has "
        f"pinned, got CUDA error {code} from cudaHostRegister (locked memory, 'ulimit -l': {_limit()}). Raise the "
        "limit, copy the rows of a file to separate memory, or let the CPU gather them."
    )


def _limit() -> str:
    """Return the limit of locked memory, in words."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return "unknown"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "no limit" if soft == resource.RLIM_INFINITY else f"{soft / 2**30:.2f} GiB"


def _unregister(begin: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(begin)  # type: ignore[no-untyped-call]


def _pages(begin: int, end: int) -> tuple[int, int]:
    return begin // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE


def _extent(source: Tensor | np.ndarray[Any, Any]) -> tuple[int, int, Any]:
    """Return the first byte, the end, and the owner of the memory."""
    if isinstance(source, Tensor):
        if source.device.type != "cpu" or source.layout is not torch.strided:
            raise InputError(f"Expected a dense tensor in CPU memory to pin, got {source.layout} on {source.device}.")
        size, shape, begin = source.element_size(), tuple(source.shape), source.data_ptr()
        strides = [s * size for s in source.stride()]
        owner: Any = source.untyped_storage()
    elif isinstance(source, np.ndarray):
        size, shape, begin = source.itemsize, source.shape, source.__array_interface__["data"][0]
        strides = list(source.strides)
        owner = source
        while isinstance(owner, np.ndarray) and owner.base is not None:
            if not isinstance(owner.base, np.ndarray | Tensor | mmap.mmap):
                break
            owner = owner.base
        owner = owner.untyped_storage() if isinstance(owner, Tensor) else owner
    else:
        raise InputError(f"Expected a tensor or an array to pin, got a {type(source).__name__}.")
    if 0 in shape:
        return begin, begin, owner
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return begin + sum(min(s, 0) for s in steps), begin + sum(max(s, 0) for s in steps) + size, owner
