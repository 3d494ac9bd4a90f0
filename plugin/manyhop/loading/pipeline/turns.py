"""Threads that work on several batches at once go through one door in the order of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from manyhop.errors import InputError, ManyhopError


class TurnsEndedError(ManyhopError):
    """A turn that will not come, as the turns have ended before."""


class Turns:
    """Turns ``0, 1, ..., count - 1``, one thread at a time, in this order.

    Whoever waits for a turn gets it when all before are over. Turns end early if the body of one raises, or by
    ``close``: then nobody goes through any more, and those who wait get an error.

    Args:
        count: how many turns there are.
        left: ``left(number)`` is called once if ``close`` ends the turns before the last one; ``number`` is the first
            that did not happen. It runs in the thread that closes or, if a turn is under way then, in that of the turn.
    """

    def __init__(self, count: int, left: Callable[[int], None]) -> None:
        # Its lock lets the thread in that has it already: a finaliser may close the turns at any point of this code.
        self._condition = Condition()
        self._count, self._left = count, left
        self._next = 0
        self._busy = self._ended = False

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Wait for a turn; the body is the turn.

        Raises:
            TurnsEndedError: the turns have ended.
            InputError: the turn is over.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ended or (self._next >= number and not self._busy))
            if self._ended:
                raise TurnsEndedError(f"Expected turn {number} to come, but the turns ended at {self._next}.")
            if self._next > number:
                raise InputError(
                    f"Expected one exchange per batch, got a second one for batch {number}. Ask for all rows at once."
                )
            self._busy = True
        try:
            yield
            self._next += 1
            if self._ended:  # closed meanwhile
                self._leave()
        except BaseException:
            self._ended = True
            raise
        finally:
            self._rest()

    def close(self) -> None:
        """End the turns. Further calls do nothing."""
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
        """Wait until no turn is under way."""
        with self._condition:
            self._condition.wait_for(lambda: not self._busy)

    def _leave(self) -> None:
        if self._next < self._count:
            self._left(self._next)

    def _rest(self) -> None:
        with self._condition:
            self._busy = False
            self._condition.notify_all()
