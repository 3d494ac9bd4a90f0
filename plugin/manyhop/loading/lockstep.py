"""One exchange of rows per batch, in the order of the batches, on all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from manyhop.errors import InputError, ManyhopError, RankError
from manyhop.features import BufferPool, RowExchange, RowRequest, Traffic
from manyhop.loading.keys import current_batch
from manyhop.system.failure import text_of
from manyhop.system.ranges import ranged


class SectionEndedError(ManyhopError):
    """The epoch ended before this exchange."""


class EpochExchanges:
    """The exchanges of one epoch of a loader. All ranks begin the same epochs.

    Threads enter them one at a time, as exchanges ``0, 1, ..., count - 1``, in this order: a thread waits until all
    earlier ones are done. If one raises an error, or after ``close``, the epoch ends: waiting and later threads get an
    error.
    """

    def __init__(self, exchange: RowExchange, epoch: int, count: int) -> None:
        exchange.begin()
        self._exchange, self._epoch, self._count = exchange, epoch, count
        # Its lock is reentrant: a finaliser may close the epoch at any point of this code.
        self._condition = threading.Condition()
        self._next = 0
        self._busy = self._ended = self._closed = False
        exchange.released_later = True

    @property
    def failure(self) -> RankError | None:
        """The error of a failed exchange, if any. Rows of the previous one may also be missing."""
        return self._exchange.failure

    @property
    def lacks_rows(self) -> bool:
        """Whether rows of a returned batch are missing."""
        return self._exchange.lacks_rows

    def rows_under_way(self) -> bool:
        """Return whether rows of a returned batch are still being received."""
        return self._exchange.rows_under_way()

    @ranged("exchange")
    def gather(self, number: int, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        """Gather the rows for batch ``number`` of this rank, from 0.

        Raises:
            SectionEndedError: the epoch has ended.
            InputError: the exchange is done.
        """
        with self._enter(number):
            rows = None
            try:
                rows = self._exchange.gather(requests, (self._epoch, number), pool=pool)
            finally:
                if rows is None or number == self._count - 1:
                    self._exchange.rest()
            _count(self._exchange.traffic)
            self._exchange.traffic = Traffic()
        return rows

    def fail(self, number: int, error: Exception) -> None:
        """Let the other ranks raise an error in their exchange for batch ``number``, unless it is done."""
        with contextlib.suppress(Exception), self._enter(number):  # if no rank can receive it
            self._exchange.end((self._epoch, number), text_of(error))
            self._exchange.rest()
            raise SectionEndedError

    def close(self) -> None:
        """Leave the rest of the epoch. A finaliser may call it, in any thread; more calls do nothing.

        From now on, kernels that wait for rows of a failed exchange continue without them. No step of the caller uses
        these rows.
        """
        if self._closed:
            return
        self._closed = True
        with self._condition:
            leaves = not self._ended and not self._busy  # otherwise the current exchange does it
            self._ended = True
            self._busy = self._busy or leaves
            self._condition.notify_all()
        if leaves:
            try:
                self._leave()
            finally:
                self._rest()
        self._exchange.released_later = False
        self._exchange.release()

    def finish(self) -> None:
        """Close, and wait for the current exchange."""
        self.close()
        with self._condition:
            self._condition.wait_for(lambda: not self._busy)

    @contextmanager
    def _enter(self, number: int) -> Iterator[None]:
        """Wait until exchange ``number`` may run, which is the body."""
        with self._condition:
            self._condition.wait_for(lambda: self._ended or self._next >= number + self._busy)
            if self._ended:
                raise SectionEndedError(
                    f"Expected step {number} of an epoch, but its exchanges ended at step {self._next}."
                )
            if self._next > number:
                raise InputError(
                    f"Expected one exchange per batch, got a second one for batch {number}. Ask for all rows at once."
                )
            self._busy = True
        try:
            yield
            self._next += 1
            if self._ended:  # closed by another thread
                self._leave()
        except BaseException:
            self._ended = True
            raise
        finally:
            self._rest()

    def _leave(self) -> None:
        """Announce that this rank leaves the epoch before its last exchange."""
        if self._next < self._count:
            with contextlib.suppress(RankError):  # the other ranks have already left
                self._exchange.end((self._epoch, self._next))
                self._exchange.rest()

    def _rest(self) -> None:
        with self._condition:
            self._busy = False
            self._condition.notify_all()


def _count(traffic: Traffic) -> None:
    """Add the traffic of an exchange to the contents of the batch that this thread is making."""
    if (rank_batch := current_batch()) is not None:
        rank_batch.contents.update(
            exchanged_bytes=traffic.bytes_received,
            other_rows=traffic.rows_received + traffic.rows_cached,
            cached_rows=traffic.rows_cached,
        )
