"""One exchange of rows per batch, in the order of the batches, on all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from manyhop.errors import InputError, ManyhopError, RankError
from manyhop.features import BufferPool, RowExchange, RowRequest, Traffic
from manyhop.loading.keys import current_batch
from manyhop.system.failure import text_of
from manyhop.system.ranges import ranged


class SectionEndedError(ManyhopError):
    """The section ended before this step."""


class OrderedSection:
    """Code that threads enter one at a time, as steps ``0, 1, ..., count - 1``, in this order.

    A thread waits until all earlier steps are done. If the body of a step raises an error, or after ``close``, the
    section ends: waiting and later threads get an error.

    Args:
        count: number of steps.
        left: ``left(number)`` is called once if ``close`` ends the section before its last step; ``number`` is the
            first step that was not done. It runs in the thread that closes, or in that of the current step.
    """

    def __init__(self, count: int, left: Callable[[int], None]) -> None:
        # Its lock is reentrant: a finaliser may close the section at any point of this code.
        self._condition = threading.Condition()
        self._count, self._left = count, left
        self._next = 0
        self._busy = self._ended = False

    @contextmanager
    def enter(self, number: int) -> Iterator[None]:
        """Wait until step ``number`` may run, which is the body.

        Raises:
            SectionEndedError: the section has ended.
            InputError: the step is done.
        """
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

    def close(self) -> None:
        """End the section. More calls do nothing."""
        with self._condition:
            if self._ended:
                return
            self._ended = True
            self._condition.notify_all()
            if self._busy:
                return
            self._busy = True
        try:
            self._leave()
        finally:
            self._rest()

    def wait(self) -> None:
        """Wait until no step is running."""
        with self._condition:
            self._condition.wait_for(lambda: not self._busy)

    def _leave(self) -> None:
        if self._next < self._count:
            self._left(self._next)

    def _rest(self) -> None:
        with self._condition:
            self._busy = False
            self._condition.notify_all()


class EpochExchanges:
    """The exchanges of one epoch of a loader. All ranks begin the same epochs."""

    def __init__(self, exchange: RowExchange, epoch: int, count: int) -> None:
        exchange.begin()
        self._exchange, self._epoch = exchange, epoch
        self._section, self._count = OrderedSection(count, self._leave), count
        self._closed = False
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

    def close(self) -> None:
        """Leave the rest of the epoch. A finaliser may call it, in any thread; more calls do nothing.

        From now on, kernels that wait for rows of a failed exchange continue without them. No step of the caller uses
        these rows.
        """
        if not self._closed:
            self._closed = True
            self._section.close()
            self._exchange.released_later = False
            self._exchange.release()

    def finish(self) -> None:
        """Close, and wait for the current exchange."""
        self.close()
        self._section.wait()

    def _leave(self, number: int) -> None:
        with contextlib.suppress(RankError):  # the other ranks have already left
            self._exchange.end((self._epoch, number))
            self._exchange.rest()

    @ranged("exchange")
    def gather(self, number: int, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        """Gather the rows for batch ``number`` of this rank, from 0."""
        with self._section.enter(number):
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
        with contextlib.suppress(Exception), self._section.enter(number):  # if no rank can receive it
            self._exchange.end((self._epoch, number), text_of(error))
            self._exchange.rest()
            raise SectionEndedError


def _count(traffic: Traffic) -> None:
    """Add the traffic of an exchange to the contents of the batch that this thread is making."""
    if (rank_batch := current_batch()) is not None:
        rank_batch.contents.update(
            exchanged_bytes=traffic.bytes_received,
            other_rows=traffic.rows_received + traffic.rows_cached,
            cached_rows=traffic.rows_cached,
        )
