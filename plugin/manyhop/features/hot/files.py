"""Rows of mapped files that the memory of this process keeps: those that batches ask for most often.

Which rows these are follows what is asked for, while batches are made. Rows that are not kept are read from the file,
hundreds at the same time: a page fault would read one after the other.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from manyhop import world
from manyhop.errors import InputError
from manyhop.features.buffers import BufferPool
from manyhop.features.hot.index import HotIndex
from manyhop.features.layout import RowLayout, row_layout
from manyhop.features.requests import RowRequest, out_of_range
from manyhop.system.memory import available_memory, require_memory
from manyhop.system.units import in_units

CacheSize: TypeAlias = float | int | Literal["auto"]
"""A share of the rows of each tensor; bytes for all tensors; what the memory of the node allows."""

VISITS_PER_ROW = 8
"""Rows asked for, of each that is kept: enough to tell rows that are asked for often from others."""

_SMALLEST_ROW = 64  # bytes; a page of shorter ones has so many rows that the system's own cache does as well
_AT_ONCE = 2048  # rows that the system is asked to read ahead of copying
_PIECES = 8  # in which new rows come into use
_AUTO_SHARE = 0.5  # of the memory that is available; the rest is for the system's cache of files, batches and the model
_PATIENCE = 60.0  # seconds until threads that read rows about to be replaced are given up


@dataclass(frozen=True, eq=False)
class _Kept:
    """Which rows are kept, and where."""

    ids: Tensor
    """``[count] int64``, ascending."""
    slots: Tensor
    """``[count] int64``: where each of them is."""
    index: HotIndex


class FileCache:
    """Rows of one mapped tensor that memory keeps. Threads may gather while the rows are changed.

    Args:
        layout: where the rows of the tensor are, one after the other.
        capacity: how many rows are kept.
        version: of the tensor; a tensor that was written to differs from its file.
        why: says where the capacity comes from; empty: the user has said so.
    """

    def __init__(self, layout: RowLayout, capacity: int, version: int, why: str = "") -> None:
        from manyhop.features.hot.cpu_kernels import read_no_more_than_asked

        require_memory("A cache of rows", capacity * layout.row_bytes, "Pass a smaller cache.")
        read_no_more_than_asked(layout.address, layout.num_rows * layout.row_bytes)
        self.capacity, self.version, self.why = capacity, version, why
        self._layout = layout
        self._rows = torch.empty(capacity * layout.row_bytes, dtype=torch.uint8)
        self._visits = torch.zeros(layout.num_rows, dtype=torch.uint8)
        none = torch.empty(0, dtype=torch.int64)
        self._kept = _Kept(none, none, HotIndex.of(none, layout.num_rows))
        self._replaced: weakref.WeakSet[_Kept] = weakref.WeakSet()  # those that a thread may still read by
        self._asked = self._found = self._since = 0
        self._taken = (0, 0)
        self._counting, self._renewing = threading.Lock(), threading.Lock()
        self._is_new = True

    def gather(self, request: RowRequest, pool: BufferPool) -> Tensor:
        """Return rows ``[count, ...]``.

        Raises:
            FeatureError: a row number is out of range.
        """
        from manyhop.features.exchange.cpu_kernels import move_rows
        from manyhop.features.hot.cpu_kernels import ask_for_rows, find_rows

        layout, kept, index = self._layout, self._kept, request.index.contiguous()
        count, width = index.numel(), layout.row_bytes
        out = pool.empty((count, *layout.tail), layout.dtype)
        found = pool.empty((2, count), torch.int64)
        rows, positions = found[0].data_ptr(), found[1].data_ptr()
        is_wide, hot = index.dtype == torch.int64, kept.index
        hits = find_rows(
            index.data_ptr(),
            is_wide,
            count,
            layout.num_rows,
            hot.bits.data_ptr(),
            hot.before.data_ptr(),
            kept.slots.data_ptr(),
            self._visits.data_ptr(),
            rows,
            positions,
        )
        if hits < 0:
            raise out_of_range(request, -1 - hits, layout.num_rows)
        if _current.only_counts:
            with self._counting:
                self._since += count
            return out
        first = min(_AT_ONCE, count - hits)
        ask_for_rows(layout.address, width, rows + 8 * hits, first)
        move_rows(self._rows.data_ptr(), rows, out.data_ptr(), positions, hits, width)
        for begin in range(hits, count, _AT_ONCE):
            end = min(begin + _AT_ONCE, count)
            ask_for_rows(layout.address, width, rows + 8 * end, min(_AT_ONCE, count - end))
            move_rows(layout.address, rows + 8 * begin, out.data_ptr(), positions + 8 * begin, end - begin, width)
        if _current.counts_nothing:
            return out
        with self._counting:
            self._asked, self._found, self._since = self._asked + count, self._found + hits, self._since + count
            is_due = self._since >= VISITS_PER_ROW * self.capacity
        if is_due:
            self.renew(request.source)
        return out

    def renew(self, source: Any) -> None:
        """Choose the rows to keep anew, and read them, in a thread of its own; unless one does so already.

        Args:
            source: the tensor, which has to stay mapped meanwhile.
        """
        if not self._renewing.acquire(blocking=False):
            return
        self._since = 0
        threading.Thread(target=self._renew, args=(source,), name="manyhop-file-cache").start()

    def claim(self) -> bool:
        """Return whether nobody has looked for the first rows yet; whoever asks does so."""
        claimed, self._is_new = self._is_new, False
        return claimed

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept."""
        return self.capacity * self._layout.row_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of all rows."""
        return self._layout.num_rows * self._layout.row_bytes

    @property
    def knows_enough(self) -> bool:
        """Whether as many rows were asked for as are needed to choose."""
        return self._since >= VISITS_PER_ROW * self.capacity

    @property
    def is_renewing(self) -> bool:
        """Whether a thread is changing the rows."""
        return self._renewing.locked()

    @property
    def miss_rate(self) -> float:
        """Of the rows that were asked for, the share that was not kept; 1 before any was."""
        with self._counting:
            return 1 - self._found / self._asked if self._asked else 1.0

    def take_counts(self) -> tuple[int, int]:
        """Return rows asked for and those of them that were kept, since this was called before."""
        with self._counting:
            before, self._taken = self._taken, (self._asked, self._found)
            return self._taken[0] - before[0], self._taken[1] - before[1]

    def _renew(self, source: Any) -> None:
        try:
            self._change_to(self._chosen())
        finally:
            self._renewing.release()

    def _chosen(self) -> Tensor:
        from manyhop.features.hot.cpu_kernels import choose_rows

        chosen, bits = torch.empty(self.capacity, dtype=torch.int64), self._kept.index.bits
        count = choose_rows(
            self._visits.data_ptr(), self._layout.num_rows, bits.data_ptr(), self.capacity, chosen.data_ptr()
        )
        return chosen[:count]

    def _change_to(self, chosen: Tensor) -> None:
        """Keep these rows (``[count] int64``, ascending) in the place of others."""
        from manyhop.features.exchange.cpu_kernels import move_rows
        from manyhop.features.hot.cpu_kernels import ask_for_rows

        kept, width = self._kept, self._layout.row_bytes
        stays = _is_in(kept.ids, chosen)
        new = chosen[~_is_in(chosen, kept.ids)]
        ids, slots = kept.ids[stays], kept.slots[stays]
        free = torch.ones(self.capacity, dtype=torch.bool)
        free[slots] = False
        free_slots = free.nonzero()[:, 0]
        if len(ids) < len(kept.ids):
            self._publish(ids, slots)
        del kept
        end = time.monotonic() + _PATIENCE
        while len(self._replaced):  # threads that read rows about to be replaced
            if time.monotonic() > end:
                return
            time.sleep(0.001)
        size = max(_AT_ONCE * 32, -(-len(new) // _PIECES))
        for begin in range(0, len(new), size):
            piece, places = new[begin : begin + size], free_slots[begin : begin + size][: len(new) - begin]
            for k in range(0, len(piece), _AT_ONCE):
                if not threading.main_thread().is_alive():  # the interpreter ends, and waits for this thread
                    return
                rows, to = piece[k : k + _AT_ONCE], places[k : k + _AT_ONCE]
                ask_for_rows(self._layout.address, width, rows.data_ptr(), len(rows))
                source, target = self._layout.address, self._rows.data_ptr()
                move_rows(source, rows.data_ptr(), target, to.data_ptr(), len(rows), width)
            ids, order = torch.sort(torch.cat([ids, piece]))
            slots = torch.cat([slots, places])[order]
            self._publish(ids, slots)

    def _publish(self, ids: Tensor, slots: Tensor) -> None:
        self._replaced.add(self._kept)
        self._kept = _Kept(ids, slots, HotIndex.of(ids, self._layout.num_rows))


def cache_files(sources: Sequence[Any], size: CacheSize) -> None:
    """Have memory of this process keep rows of mapped tensors, for all gathers of the process.

    The system reads these files page by page from then on, not ahead, which makes long slices of them slow. Tensors
    with rows of less than 64 bytes, or whose rows do not follow each other, are left to the system. What is
    written into a tensor by torch later ends its cache; do not write into it otherwise.

    Args:
        sources: tensors or arrays whose memory is that of files.
        size: a float, share of the rows of each; an integer, bytes of rows of all together, in proportion to their
            size; ``"auto"``: half of the memory that is available now, divided by the ranks of this node, each of which
            has a cache of its own. Beside the rows, 1.5 bytes per row of the file and 16 per row that is kept are
            needed.

    Raises:
        InputError: a size out of range.
        CapacityError: so much memory is not free.
    """
    check_cache(size)
    layouts = [(source, _layout(source)) for source in sources]
    fitting = [(source, layout) for source, layout in layouts if layout is not None]
    why = ""
    if size == "auto":
        old_ones = [file_cache(source) for source, _ in fitting]
        fitting = [each for each, old in zip(fitting, old_ones, strict=True) if old is None or not old.why]
        size, why = _fitting_memory([layout for _, layout in fitting])
    total = sum(layout.num_rows * layout.row_bytes for _, layout in fitting)
    for source, layout in fitting:
        share = size if isinstance(size, float) else min(1.0, size / total)
        capacity, old = int(share * layout.num_rows), file_cache(source)
        if old is not None and old.capacity == capacity:
            continue
        if old is not None:
            del caches[source]
        if capacity > 0:
            caches[source] = FileCache(layout, capacity, _version(source), why)


def _fitting_memory(layouts: Sequence[RowLayout]) -> tuple[int, str]:
    """Return the bytes for rows of files with ``"auto"``, and what they come from."""
    ranks = max(world.current().local_world_size, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    free = available_memory() or 0  # unknown: the system's own cache is all there is
    for_counts = sum(2 * layout.num_rows for layout in layouts)
    row_bytes = min((layout.row_bytes for layout in layouts), default=1)
    size = max(0, int(_AUTO_SHARE * free) // ranks - for_counts) * row_bytes // (row_bytes + 16)
    of_ranks = f", divided by {ranks} ranks" if ranks > 1 else ""
    return size, f"half of the {in_units(free)} that were available{of_ranks}"


def in_words(found: Iterable[FileCache]) -> str:
    """Return how much of files memory keeps, in a line; empty where there is no cache."""
    every = list(found)
    if not every:
        return ""
    kept, whole = (in_units(sum(sizes)) for sizes in zip(*((c.nbytes, c.file_bytes) for c in every), strict=True))
    why = next((f" ({cache.why})" for cache in every if cache.why), "")
    return f"{kept} of {whole} of rows in files are kept in memory{why}"


def check_cache(size: Any) -> None:
    """Raise InputError for the size of a cache that is none: a share of the rows, bytes, or ``"auto"``."""
    if isinstance(size, str) and size == "auto":
        return
    if isinstance(size, bool) or not isinstance(size, int | float):
        raise InputError(f"Expected cache as a float (share of the rows), an integer (bytes) or 'auto', got {size!r}.")
    if not 0 <= size <= (1 if isinstance(size, float) else size):
        raise InputError(f"Expected cache from 0.0 to 1.0 of the rows, or at least 0 bytes, got {size!r}.")


def file_cache(source: Any) -> FileCache | None:
    """Return the cache of a mapped tensor; ``None`` where it has none, or was written to."""
    if not isinstance(source, Tensor | np.ndarray) or source not in caches:
        return None
    cache: FileCache = caches[source]
    return cache if cache.version == _version(source) else None


@contextmanager
def only_counting() -> Iterator[None]:
    """In this thread, count rows of files that have a cache, and read none: their content is undefined."""
    before, _current.only_counts = _current.only_counts, True
    try:
        yield
    finally:
        _current.only_counts = before


@contextmanager
def not_counting() -> Iterator[None]:
    """In this thread, read rows of files that have a cache without counting them in reports: no batch asks for them."""
    before, _current.counts_nothing = _current.counts_nothing, True
    try:
        yield
    finally:
        _current.counts_nothing = before


class _Thread(threading.local):
    only_counts = False
    counts_nothing = False


_current = _Thread()
caches: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tensor -> FileCache, of all tensors that have one. While it is empty, gathers need not look for them."""


def _layout(source: Any) -> RowLayout | None:
    layout = row_layout(source, "a cached tensor")
    plain = layout is not None and layout.device.type == "cpu" and layout.stride == layout.row_bytes
    return layout if plain and layout is not None and layout.row_bytes >= _SMALLEST_ROW else None


def _version(source: Any) -> int:
    return source._version if isinstance(source, Tensor) and not source.is_inference() else 0


def _is_in(ids: Tensor, others: Tensor) -> Tensor:
    """Which of the ids are among others; both ascending."""
    if not len(others):
        return torch.zeros(len(ids), dtype=torch.bool)
    return others[torch.searchsorted(others, ids).clamp_(max=len(others) - 1)] == ids
