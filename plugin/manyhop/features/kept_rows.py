"""Cached rows of a table, for threads and processes: readers need no locks, and there is one writer at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from manyhop.memory.segments import Segment

_LATEST, _OLDEST, _REQUESTED = 0, 8, 16  # places in the header, int64 each
_LINE = 64


class KeptRows:
    """Copies of some rows of a table, in slots, and an index of which rows these are.

    Each index has a number, and index ``n`` is written in place ``n % 2``. It is complete when its number becomes the
    latest one, and refers to slots only whose rows are complete. A reader takes the latest number, copies rows by that
    index and then asks whether the number is still valid: if not, it discards the copy. A writer makes older
    numbers invalid before it writes to anything that their indices refer to, or to the place of one of them. So no
    reader uses a row that was written to meanwhile, and readers neither wait nor delay others. A writer that
    is killed leaves a valid index behind; the system takes back its lock.

    Args:
        memory: ``[KeptRows.nbytes(...)] uint8``, zeros, or what other processes have made of them.
        num_rows: rows of the table.
        row_bytes: bytes of each.
        capacity: how many slots there are, at least 1.
        segment: the memory's, if processes share it.
    """

    def __init__(
        self, memory: Tensor, num_rows: int, row_bytes: int, capacity: int, segment: Segment | None = None
    ) -> None:
        self.capacity, self.row_bytes = capacity, row_bytes
        self._num_rows, self._memory, self._segment = num_rows, memory, segment
        header, self._visits, *places, self._rows = _offsets(num_rows, row_bytes, capacity)[:-1]
        self._header, self._counting = memory.data_ptr() + header, threading.Lock()
        self._counts = memory[header : header + _LINE].view(torch.int64).numpy()
        self._places: list[tuple[Tensor, Tensor]] = []
        for groups, slots in (places[:2], places[2:]):
            of_index = memory[groups : groups + 16 * -(-num_rows // 64)].view(torch.int64).view(-1, 2)
            self._places.append((of_index, memory[slots : slots + 8 * capacity].view(torch.int64)))

    @staticmethod
    def nbytes(num_rows: int, row_bytes: int, capacity: int) -> int:
        """Return the bytes of memory: 1.5 per row of the table, and a slot and 16 bytes per row that is kept."""
        return _offsets(num_rows, row_bytes, capacity)[-1]

    @property
    def is_shared(self) -> bool:
        """Return whether other processes may read and write these rows."""
        return self._segment is not None

    @property
    def number(self) -> int:
        """Return the number of the latest index; 0: no row was kept yet."""
        from manyhop.features.cpu_lookup import load

        return load(self._header + _LATEST)

    @property
    def num_requested(self) -> int:
        """About how many rows were requested since rows were chosen."""
        return int(self._counts[_REQUESTED // 8])

    def count_requested(self, count: int) -> int:
        """Add to :attr:`num_requested`, and return it. Processes may overwrite each other's counts."""
        with self._counting:
            total = int(self._counts[_REQUESTED // 8]) + count
            self._counts[_REQUESTED // 8] = total
        return total

    def find(self, index: Tensor, rows: int, positions: int, *, counts: bool) -> tuple[int, int]:
        """Sort the entries of an index: those of rows that are kept come first, the others follow.

        Args:
            index: ``[count] int64 or int32``, contiguous.
            rows, positions: addresses of ``[count]``, written: slots, then row numbers; which entries these are.
            counts: whether these are visits by which rows are chosen.

        Returns:
            The number of the index that was used; the number of cached rows, or -1 - i if row number i is the first
            that is out of range.
        """
        from manyhop.features.cpu_lookup import find_rows

        number = self.number
        groups, slots = self._places[number % 2]
        hits = find_rows(
            index.data_ptr(),
            index.dtype == torch.int64,
            index.numel(),
            self._num_rows,
            groups.data_ptr(),
            slots.data_ptr(),
            self.capacity,
            self._memory.data_ptr() + self._visits if counts else 0,
            rows,
            positions,
        )
        return number, hits

    def copy(self, rows: int, positions: int, hits: int, out: Tensor, number: int) -> bool:
        """Copy the first ``hits`` rows that :meth:`find` has found; return whether these are the right rows.

        Args:
            rows, positions: addresses of slots, and of positions in ``out``.
            hits: how many.
            out: ``[count, ...]``, written.
            number: of the index that they were found by.
        """
        from manyhop.features.cpu_kernels import move_rows
        from manyhop.features.cpu_lookup import load

        move_rows(self._slots, rows, out.data_ptr(), positions, hits, self.row_bytes)
        return load(self._header + _OLDEST) <= number

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Exclude other writers in the body; yields false if there is one: then do not write."""
        if self._segment is None:
            yield True
            return
        import fcntl

        lock = os.open(f"/proc/self/fd/{self._segment.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may also have it open
        finally:
            os.close(lock)

    def choose(self) -> Tensor:
        """Return the rows that were visited most often, ``[count] int64``, ascending; forget half of the visits."""
        from manyhop.features.cpu_lookup import choose_rows

        chosen, (groups, _) = torch.empty(self.capacity, dtype=torch.int64, device="cpu"), self._places[self.number % 2]
        visits = self._memory.data_ptr() + self._visits
        count = choose_rows(visits, self._num_rows, groups.data_ptr(), self.capacity, chosen.data_ptr())
        self._counts[_REQUESTED // 8] = 0
        return chosen[:count]

    def latest(self) -> tuple[Tensor, Tensor]:
        """Return the cached rows, ``[count] int64``, ascending, and their slots, ``[count] int64``."""
        groups, slots = self._places[self.number % 2]
        ids = np.flatnonzero(np.unpackbits(groups[:, 0].contiguous().numpy().view(np.uint8), bitorder="little"))
        return torch.from_numpy(ids), slots[: len(ids)].clone()

    def publish(self, ids: Tensor, slots: Tensor) -> None:
        """Publish an index as the latest one; the one before the latest becomes invalid.

        Args:
            ids: ``[count] int64``, ascending.
            slots: ``[count] int64``: where each of them is.
        """
        from manyhop.features.cpu_lookup import index_rows, store

        number = self.number + 1
        self.end_older()
        groups, places = self._places[number % 2]
        groups.zero_()
        index_rows(ids.data_ptr(), len(ids), self._num_rows, groups.data_ptr())
        places[: len(slots)] = slots
        store(self._header + _LATEST, number)

    def end_older(self) -> None:
        """Make all indices but the latest invalid, so that slots which it does not use can be written."""
        from manyhop.features.cpu_lookup import store

        store(self._header + _OLDEST, self.number)

    def write(self, table: int, rows: Tensor, slots: Tensor) -> None:
        """Copy rows of a table into slots that no valid index uses.

        Args:
            table: address of row 0.
            rows, slots: ``[count] int64``, contiguous.
        """
        from manyhop.features.cpu_kernels import move_rows

        move_rows(table, rows.data_ptr(), self._slots, slots.data_ptr(), len(rows), self.row_bytes)

    @property
    def _slots(self) -> int:
        return self._memory.data_ptr() + self._rows


def _offsets(num_rows: int, row_bytes: int, capacity: int) -> list[int]:
    """Return the offsets of header, visits, twice groups and slots of an index, and rows; and the end."""
    index = [16 * -(-num_rows // 64), 8 * capacity]
    out = [0]
    for size in (_LINE, num_rows, *index, *index, capacity * row_bytes):
        out.append(-(-(out[-1] + size) // _LINE) * _LINE)
    return out
