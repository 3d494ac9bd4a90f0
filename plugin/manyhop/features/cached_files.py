"""Caches of the rows of mapped files that batches request most often, once for all ranks of a node.

The rows follow the requests. Other rows are read from the file, hundreds at the same time: page
faults would read them one by one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features.buffers import BufferPool
from manyhop.features.gathering import thread_counts
from manyhop.features.requests import RowRequest, out_of_range
from manyhop.features.sources import HitCounts
from manyhop.memory.mapped_files import FilePlace, MappedFiles, map_again
from manyhop.memory.segments import Bytes, Segment
from manyhop.memory.sharing import node_segment
from manyhop.ranks import world
from manyhop.system.arrays import RowLayout, known, known_if_any, row_layout, version_of
from manyhop.system.memory import available_memory, require_memory
from manyhop.system.units import in_units

CacheSize: TypeAlias = float | int | Literal["auto"]
"""A share of the rows of each tensor, bytes for all tensors, or as much as the memory of the node allows."""

VISITS_PER_ROW = 8
"""Requested rows per cached row: enough to separate frequent rows from others."""

_LINE = 64  # bytes of the header of a cache
_SMALLEST_ROW = 64  # bytes; a page has too many shorter ones for a cache to save time
_AT_ONCE = 2048  # rows that the system reads before they are copied
_AUTO_SHARE = 0.5  # of the memory that is available; the rest is for the system's cache of files, batches and the model
_WHAT, _REMEDY = "A cache of rows", "Pass a smaller cache."


class FileCache:
    """Rows of one mapped tensor that memory keeps. Threads and processes may gather while the rows are changed.

    Readers need no locks, and there is one writer at a time. An even number in the header is the number of changes. A
    writer makes it odd before it removes rows, and even again when no slot refers to them; only then are their slots
    written to. A reader discards the rows that it has copied if the number was odd before, or is a different one
    afterwards. If a writer is killed, the next one continues; the system takes back its lock.

    Args:
        layout: where the consecutive rows of the tensor are.
        memory: ``[FileCache.memory_bytes(...)] uint8``, zeros, or the state of a cache that other processes use.
        capacity: number of rows that it has memory for, at least 1.
        version: of the tensor; a tensor that was written to differs from its file.
        segment: the segment of the memory, if processes share it.
        why: where the capacity comes from; empty: from the user.
        mapping: object that keeps the layout valid, in addition to the tensor.
    """

    def __init__(
        self,
        layout: RowLayout,
        memory: Tensor,
        capacity: int,
        version: int,
        segment: Segment | None = None,
        why: str = "",
        mapping: Any = None,
    ) -> None:
        from manyhop.system.paging import advise_random

        num_rows, width = layout.num_rows, layout.row_bytes
        advise_random(layout.address, num_rows * width)
        self.capacity, self._version, self.why = capacity, version, why
        self._layout, self._segment, self._mapping = layout, segment, mapping
        self._header = memory[:16].view(torch.int64).numpy()  # number of changes, rows requested since the last one
        self._slots = memory[_LINE : _LINE + 4 * num_rows].view(torch.int32)
        """``[num_rows]``: 1 + the slot of a cached row; 0: not cached."""
        self._visits = memory[_LINE + 4 * num_rows :][:num_rows]
        self._rows = memory[len(memory) - capacity * width :]
        self._counts, self._renewing = HitCounts(), threading.Lock()
        self._is_new = True

    @staticmethod
    def memory_bytes(layout: RowLayout, capacity: int) -> int:
        """Return the bytes of memory: 5 per row of the table, and the cached rows."""
        return -(-(_LINE + 5 * layout.num_rows) // _LINE) * _LINE + capacity * layout.row_bytes

    def gather(self, request: RowRequest, pool: BufferPool) -> Tensor:
        """Return rows ``[count, ...]``; FeatureError: a row number is out of range."""
        from manyhop.features.cpu_kernels import move_rows
        from manyhop.features.cpu_lookup import find_rows, load
        from manyhop.system.paging import prefetch_rows

        layout, index, counts = self._layout, request.index.contiguous(), thread_counts.counting != "not"
        count, width = index.numel(), layout.row_bytes
        out = pool.empty((count, *layout.tail), layout.dtype)
        found = pool.empty((2, count), torch.int64)
        rows, header = found.data_ptr(), self._header.ctypes.data
        positions = rows + 8 * count
        number = load(header)
        hits = find_rows(
            index.data_ptr(), index.dtype == torch.int64, count, layout.num_rows, self._slots.data_ptr(),
            self._visits.data_ptr() if counts else 0, rows, positions,
        )  # fmt: skip
        if hits < 0:
            raise out_of_range(request, -1 - hits, layout.num_rows)
        if thread_counts.counting == "only":
            self._count_requested(count)
            return out
        prefetch_rows(layout.address, width, rows + 8 * hits, min(_AT_ONCE, count - hits))
        move_rows(self._rows.data_ptr(), rows, out.data_ptr(), positions, hits, width)
        if number % 2 or load(header) != number:  # removed in the meantime: the file has them
            found[0, :hits] = index[found[1, :hits]]
            hits = 0
        for begin in range(hits, count, _AT_ONCE):
            end = min(begin + _AT_ONCE, count)
            prefetch_rows(layout.address, width, rows + 8 * end, min(_AT_ONCE, count - end))
            move_rows(layout.address, rows + 8 * begin, out.data_ptr(), positions + 8 * begin, end - begin, width)
        if counts:
            self._counts.add(count, hits)
            thread_counts.requested, thread_counts.hits = thread_counts.requested + count, thread_counts.hits + hits
            if self._count_requested(count) >= self._wanted:
                self.renew(request.source)
        return out

    def renew(self, source: Any) -> None:
        """Select the rows to cache again, and read them, in a separate thread; unless that is under way or just done.

        Args:
            source: the tensor, which must remain mapped until the thread ends.
        """
        if self._renewing.acquire(blocking=False):
            threading.Thread(target=self._renew, args=(source,), name="manyhop-file-cache").start()

    def is_of(self, source: Any) -> bool:
        """Return whether the tensor has its former version: it was not written to."""
        return self._version == version_of(source)

    def claim(self) -> bool:
        """Return true to the first caller, which selects the first rows."""
        claimed, self._is_new = self._is_new, False
        return claimed

    @property
    def nbytes(self) -> int:
        """Bytes of the cached rows."""
        return self.capacity * self._layout.row_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of all rows."""
        return self._layout.num_rows * self._layout.row_bytes

    @property
    def is_shared(self) -> bool:
        """Return whether it is one for all ranks of the node."""
        return self._segment is not None

    @property
    def has_chosen(self) -> bool:
        """Return whether the first rows were selected."""
        return bool(self._header[0] > 0)

    @property
    def has_enough_counts(self) -> bool:
        """Return whether enough rows were requested to find the frequent ones, or the first ones are chosen."""
        return self.has_chosen or bool(self._header[1] >= VISITS_PER_ROW * self.capacity)

    @property
    def is_renewing(self) -> bool:
        """Return whether a thread is changing the rows."""
        return self._renewing.locked()

    @property
    def miss_rate(self) -> float:
        """Return the share of the requested rows that was not cached; 1 before any request."""
        return self._counts.miss_rate

    def take_counts(self) -> tuple[int, int]:
        """Return the requested rows and the hits since the last call."""
        return self._counts.take()

    def cached_ids(self) -> Tensor:
        """Return the rows that memory has now, ``[count] int64``, ascending."""
        return self._slots.nonzero()[:, 0]

    @property
    def _wanted(self) -> int:
        """Return the number of requested rows before rows are selected; the first ones are selected soon."""
        return (VISITS_PER_ROW if self.has_chosen else 1) * self.capacity

    def _count_requested(self, count: int) -> int:
        """Return about how many rows were requested since rows were selected: readers may overwrite each other."""
        total = self._header[1] = int(self._header[1]) + count
        return total

    def _renew(self, source: Any) -> None:
        try:
            with self._writing() as is_alone:
                if is_alone and (not self.has_chosen or self._header[1] >= self._wanted):
                    self._change()
        finally:
            self._renewing.release()

    @contextmanager
    def _writing(self) -> Iterator[bool]:
        """Exclude other writers in the body; yields false if there is one: then do not write."""
        if self._segment is None:
            yield True
            return
        import fcntl

        with open(f"/proc/self/fd/{self._segment.fd}", "r+b", buffering=0) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may also have it open

    def _change(self) -> None:
        """Cache the rows that were requested most often instead of others."""
        from manyhop.features.cpu_lookup import choose_rows, keep_rows, store
        from manyhop.system.paging import prefetch_rows

        layout, slots, header = self._layout, self._slots, self._header.ctypes.data
        come = torch.empty(self.capacity, dtype=torch.int64, device="cpu")
        number = int(self._header[0]) | 1
        store(header, number)
        count = choose_rows(self._visits.data_ptr(), layout.num_rows, slots.data_ptr(), self.capacity, come.data_ptr())
        store(header, number + 1)
        self._header[1] = 0
        free = torch.ones(self.capacity, dtype=torch.bool, device="cpu")
        free[slots[slots > 0].long() - 1] = False
        places = free.nonzero()[:, 0]
        for begin in range(0, count, _AT_ONCE):
            if not threading.main_thread().is_alive():  # the interpreter ends, and waits for this thread
                return
            rows = come[begin : min(begin + _AT_ONCE, count)]
            prefetch_rows(layout.address, layout.row_bytes, rows.data_ptr(), len(rows))
            keep_rows(
                layout.address, rows.data_ptr(), len(rows), layout.row_bytes, self._rows.data_ptr(),
                places[begin:].data_ptr(), slots.data_ptr(),
            )  # fmt: skip


def cache_files(sources: Sequence[Any], size: CacheSize) -> None:
    """Cache rows of mapped tensors in memory, for all gathers of the process, and of the other ranks of this node.

    Ranks share the rows of tensors whose memory is the same part of a file, if they were started with ``MASTER_ADDR``
    and ``MASTER_PORT`` and request the same size; otherwise each has its own. Any rank may call this, alone.

    Tensors with rows of less than 64 bytes, or whose rows are not consecutive, are left to the system. Writing into a
    tensor with torch ends its cache; do not write into it by other means.

    Args:
        sources: tensors or arrays in mapped files.
        size: a float, share of the rows of each; an integer, bytes of rows of all together, in proportion to their
            size. With ``"auto"``, half of the memory that is available now, divided by the ranks of this node if each
            has its own cache. In addition to the rows, 5 bytes per row of the file are needed.

    Raises:
        InputError: a size out of range.
        CapacityError: too little memory is free.
        RankError: another rank failed to make the cache.
    """
    check_cache(size)
    layouts = [(source, _layout(source)) for source in sources]
    fitting = [(source, layout) for source, layout in layouts if layout is not None]
    why, for_size = "", None
    if size == "auto":
        olds = [file_cache(source) for source, _ in fitting]
        fitting = [each for each, old in zip(fitting, olds, strict=True) if old is None or not old.why]
    found = [layout for _, layout in fitting]
    places = _in_files(found)
    if size == "auto":
        size, why, for_size = _fitting_memory(found, places)
    total = sum(layout.num_rows * layout.row_bytes for layout in found)
    for (source, layout), place in zip(fitting, places, strict=True):
        share = size if isinstance(size, float) else min(1.0, size / total)
        capacity, old = int(share * layout.num_rows), file_cache(source)
        if old is None or old.capacity != capacity:
            known(source).file_cache = old = None  # before the next one needs memory
        if old is None and capacity > 0:
            known(source).file_cache = _make_cache(layout, place, capacity, version_of(source), why, for_size)


def _make_cache(
    layout: RowLayout, place: FilePlace | None, capacity: int, version: int, why: str, for_size: Any
) -> FileCache:
    nbytes, segment = FileCache.memory_bytes(layout, capacity), None
    if place is not None:
        key = f"rows {place} {layout.num_rows} {layout.row_bytes} {capacity}"
        segment = node_segment(key, nbytes, lambda memory: None, what=_WHAT, remedy=_REMEDY)
    if place is None or segment is None:
        require_memory(_WHAT, nbytes, _REMEDY)
        return FileCache(layout, torch.zeros(nbytes, dtype=torch.uint8, device="cpu"), capacity, version, why=why)
    # Others read the rows that this process writes, so it reads the file, not the tensor, whose pages it may change.
    file = map_again(place)
    memory = torch.from_numpy(segment.memory[:nbytes])
    return FileCache(
        layout._replace(address=file.ctypes.data), memory, capacity, version, segment, why, (file, for_size)
    )


def _in_files(layouts: Sequence[RowLayout]) -> list[FilePlace | None]:
    """Return where the rows are in files; ``None`` if other ranks must not read the pages of this process."""
    if not layouts or world.launch() is None:
        return [None] * len(layouts)
    files = MappedFiles()
    places = [files.find(layout.address, layout.num_rows * layout.row_bytes) for layout in layouts]
    return [None if place is None or place.writes_through else place for place in places]


def _fitting_memory(
    layouts: Sequence[RowLayout], places: Sequence[FilePlace | None]
) -> tuple[int, str, Segment | None]:
    """Return the bytes for rows of files with ``"auto"``, their origin, and an object to retain."""
    free, agreed, of_ranks, ranks = available_memory() or 0, None, "", 1  # unknown: the system's own cache must do
    if places and None not in places:

        def begin(memory: Bytes) -> None:
            memory[:8].view(np.int64)[0] = free

        agreed = node_segment(f"memory for {places}", 8, begin, what=_WHAT, remedy=_REMEDY)
    if agreed is not None:
        free = int(agreed.memory[:8].view(np.int64)[0])
    else:
        ranks = max(world.current().local_world_size, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        of_ranks = f", divided by {ranks} ranks" if ranks > 1 else ""
    size = max(0, int(_AUTO_SHARE * free) // ranks - 5 * sum(layout.num_rows for layout in layouts))
    return size, f"half of the {in_units(free)} that were available{of_ranks}", agreed


def in_words(found: Iterable[FileCache]) -> str:
    """Return how much of files memory keeps, in a line; empty without a cache."""
    every = list(found)
    if not every:
        return ""
    kept, whole = (in_units(sum(sizes)) for sizes in zip(*((c.nbytes, c.file_bytes) for c in every), strict=True))
    why = next((f" ({cache.why})" for cache in every if cache.why), "")
    once = " for all ranks of the node" if all(cache.is_shared for cache in every) else ""
    return f"{kept} of {whole} of rows in files are kept in memory{once}{why}"


def check_cache(size: Any) -> None:
    """Raise InputError for an invalid size of a cache; valid are a share of the rows, bytes, or ``"auto"``."""
    if isinstance(size, str) and size == "auto":
        return
    if isinstance(size, bool) or not isinstance(size, int | float):
        raise InputError(f"Expected cache as a float (share of the rows), an integer (bytes) or 'auto', got {size!r}.")
    if not 0 <= size <= (1 if isinstance(size, float) else size):
        raise InputError(f"Expected cache from 0.0 to 1.0 of the rows, or at least 0 bytes, got {size!r}.")


def file_cache(source: Any) -> FileCache | None:
    """Return the cache of a mapped tensor; ``None`` if it has none, or was written to."""
    record = known_if_any(source) if isinstance(source, Tensor | np.ndarray) else None
    cache: FileCache | None = None if record is None else record.file_cache
    return cache if cache is not None and cache.is_of(source) else None


def only_counting() -> AbstractContextManager[None]:
    """Count rows of files that have a cache, in this thread, without reading them: results have undefined content."""
    return _counting("only")


def not_counting() -> AbstractContextManager[None]:
    """Read rows of files that have a cache, in this thread, without counting them: no batch requests them."""
    return _counting("not")


@contextmanager
def _counting(how: str) -> Iterator[None]:
    before, thread_counts.counting = thread_counts.counting, how
    try:
        yield
    finally:
        thread_counts.counting = before


def _layout(source: Any) -> RowLayout | None:
    layout = row_layout(source, "a cached tensor")
    plain = layout is not None and layout.device.type == "cpu" and layout.stride == layout.row_bytes
    return layout if plain and layout is not None and layout.row_bytes >= _SMALLEST_ROW else None
