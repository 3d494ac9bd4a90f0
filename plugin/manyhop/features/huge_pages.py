"""Put tensors that batches read at random into huge pages, in place: most reads of a row then find their page at once.

The memory that manyhop allocates is in huge pages from the start. Tensors of torch are not, unless the system uses huge
pages for everything.
"""

from __future__ import annotations

import bisect
import ctypes
import os
from collections.abc import Iterable, Iterator
from threading import Thread
from typing import Any

from torch import Tensor

from manyhop.errors import InputError
from manyhop.memory.mapped_files import mappings
from manyhop.memory.segments import HUGE, MADV_COLLAPSE
from manyhop.system.arrays import row_layout

_MOST = 4 << 30  # bytes for one loader; a GiB takes a core one to three seconds
_STEP = 1 << 26  # bytes of one call


def collapse(sources: Iterable[Any]) -> Thread | None:
    """Put the memory of tensors into huge pages, in a thread; contents and addresses stay.

    Only private memory without a file is changed, and of that only whole huge pages. What the system refuses stays as
    it is. The environment variable ``MANYHOP_HUGE_PAGES=0`` turns it off.

    Return the thread, which holds the tensors among ``sources`` until it is done; ``None`` if there is nothing to do.
    """
    wanted = os.environ.get("MANYHOP_HUGE_PAGES", "1")
    if wanted not in ("0", "1"):
        raise InputError(f"Expected MANYHOP_HUGE_PAGES to be 0 or 1, got {wanted!r}. Set one of them.")
    found, total = [], 0
    for source in sources:
        layout = row_layout(source, "the features") if isinstance(source, Tensor) else None
        if layout is None or layout.device.type != "cpu" or layout.stride != layout.row_bytes:
            continue
        begin, end = _inner(layout.address, layout.address + layout.num_rows * layout.row_bytes)
        total += max(0, end - begin)
        if begin < end and total <= _MOST:
            found.append((begin, end, source))
    if wanted == "0" or not found or not _allowed():
        return None
    thread = Thread(target=_collapse, args=(found,), name="manyhop-huge-pages", daemon=True)
    thread.start()
    return thread


def _allowed() -> bool:
    """Return whether the administrator lets programs use huge pages; the call itself would not ask."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return "[never]" not in file.read()
    except OSError:  # another system
        return False


def _collapse(found: list[tuple[int, int, Any]]) -> None:
    """Collapse ranges of addresses. ``found`` also has the owners of their memory, and is emptied."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    private = _private_memory()
    while found:
        begin, end, owner = found.pop()
        for first, last in _overlaps(private, begin, end):
            for at in range(first, last, _STEP):
                madvise(at, min(_STEP, last - at), MADV_COLLAPSE)  # fails on an older kernel, or if memory is short
        del owner


def _private_memory() -> list[tuple[int, int]]:
    """Return the addresses of this process's writable memory that has no file and is shared with nobody, ascending."""
    found: list[tuple[int, int]] = []
    for begin, end, rights, _, path in mappings():
        if rights.startswith("rw") and rights[3] == "p" and not path.startswith("/"):
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            found.append((begin, end))
    return found


def _overlaps(ranges: list[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the whole huge pages of ``[begin, end)`` that are in one of the ranges."""
    for i in range(max(0, bisect.bisect_right(ranges, (begin, end)) - 1), len(ranges)):
        if ranges[i][0] >= end:
            return
        first, last = _inner(max(begin, ranges[i][0]), min(end, ranges[i][1]))
        if first < last:
            yield first, last


def _inner(begin: int, end: int) -> tuple[int, int]:
    """Return the whole huge pages of a range of addresses."""
    return -(-begin // HUGE) * HUGE, end // HUGE * HUGE
