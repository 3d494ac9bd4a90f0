"""Rows of prefetched batches: gathered by a loader, and read again later if steps have updated them.

Each row has a stamp, the number of the update that changed it last, in the same kind of memory. A gather notes which
updates have ended when it begins. At the batch's turn no update is under way, and rows with a later stamp are read
again: all others are current.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyhop_embedding.place import Table, TablePlace


class RowsAhead:
    """The rows of a batch before its turn.

    Args:
        finish: returns the current rows of such an object.
        ids: ``[count]`` int64 or int32.
        latest: the last update that had ended when they were gathered; ``None``: they are not prefetched.
    """

    __slots__ = ("_finish", "ids", "latest", "rows")

    def __init__(self, finish: Callable[[RowsAhead], Tensor], ids: Tensor, latest: int | None) -> None:
        self._finish, self.ids, self.latest = finish, ids, latest
        self.rows: Tensor | None = None
        """``[count, width]``, to be changed in place."""

    def tensors(self) -> list[Tensor]:
        """Return the tensors that :meth:`finish` reads."""
        return [self.ids] if self.rows is None else [self.ids, self.rows]

    def finish(self) -> Tensor:
        """Return the current rows, with a graph for ``backward``."""
        return self._finish(self)


class Versions:
    """Counts the updates of a table, and stamps its rows. All ranks create it.

    Args:
        place: of the table.
        table: whose rows are stamped, unless ranks exchange them.
        name: for errors.
    """

    def __init__(self, place: TablePlace, table: Table, name: str) -> None:
        self._table, self._place = table, place
        self.stamps: Table | None = None
        """Marks of rows; ``None``: there are none."""
        if table.owners.copies in ("rank", "node"):  # otherwise, stamps would need an exchange like rows
            self.stamps = place.make(table.owners.num_rows, 1, torch.int32, f"versions of {name}")
        self._begun = self._ended = 0
        self._in_flight: deque[tuple[int, torch.cuda.Event]] = deque()
        self._lock = threading.Lock()

    def next(self) -> tuple[Tensor, int] | None:
        """Return the stamps of the rows that this rank owns, and the number of the next update."""
        return None if self.stamps is None else (self.stamps.own, self._begun + 1)

    def updated(self) -> None:
        """Count an update, of all ranks: it has ended or, on a GPU, will have on the current stream."""
        if self.stamps is None:
            return
        with self._lock:
            self._begun += 1
            if self._place.device.type == "cuda":
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(torch.cuda.current_stream(self._place.device))
                self._in_flight.append((self._begun, done))
            self._look()

    def outdate(self) -> None:
        """Mark all rows that this rank owns as outdated: the next update replaces them."""
        if self.stamps is not None:
            self.stamps.own.fill_(self._begun + 1)

    def latest(self) -> int:
        """Return the number of the last update that has ended."""
        with self._lock:
            self._look()
            return self._ended

    def refresh(self, ids: Tensor, latest: int, rows: Tensor) -> None:
        """Read rows again that were updated after ``latest``; on a GPU, on the current stream.

        Args:
            ids: ``[count]`` int64 or int32.
            latest: of when they were gathered.
            rows: ``[count, width]``, changed in place.
        """
        assert self.stamps is not None
        if latest == self._begun:
            return
        table: Any = self._table.source
        stamps: Any = self.stamps.source
        if rows.is_cuda:
            from manyhop_embedding.gpu import refresh_on_gpu  # imports triton

            refresh_on_gpu(ids.contiguous(), stamps, latest, table, rows)
            return
        outdated = (stamps.view(-1).index_select(0, ids) > latest).nonzero().view(-1)
        if len(outdated):
            rows[outdated] = table.index_select(0, ids[outdated])

    def _look(self) -> None:
        """Note which updates have ended."""
        if self._place.device.type != "cuda":
            self._ended = self._begun
        while self._in_flight and self._in_flight[0][1].query():  # type: ignore[no-untyped-call]
            self._ended = self._in_flight.popleft()[0]
