"""The watch of one loader: its loop reports progress, and learns of ranks that fail."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from manyhop.errors import InputError, RankError
from manyhop.ranks import world
from manyhop.ranks.watch.detector import LoopStatus, reason
from manyhop.ranks.watch.monitor import Loop, Monitor, activity, of_run


def _do_nothing() -> None:
    """Do nothing: no rank waits for the iteration."""


class Watch:
    """Watches the other ranks for one loader. All ranks create the watches of their loaders in the same order.

    A daemon thread per process publishes the states of its loops about once a second. Once a rank is known to be lost,
    ``Iteration.requested`` raises an error. If this rank waits for it in a collective, which cannot be interrupted, the
    process ends, with a message on stderr and status 1. A living rank may be late for any time.

    Args:
        timeout: seconds that ranks wait for each other in the loader's own collectives. A rank is lost if it sends no
            heartbeat for that time, at most a minute (or a tenth of it, if that is longer).

    Raises:
        InputError: ``timeout`` is not positive.
    """

    def __init__(self, name: str, *, timeout: float) -> None:
        if not timeout > 0:
            raise InputError(f"Expected a rank_timeout of more than 0 seconds, got {timeout}.")
        self._monitor: Monitor | None = None
        self._loop = Loop(0, name, timeout)
        if not world.init().is_alone:
            self._monitor = of_run()
            self._loop = self._monitor.add(name, timeout)
            weakref.finalize(self, self._loop.drop).atexit = False

    def begin(
        self,
        epoch: int,
        leave: Callable[[], None] = _do_nothing,
        rows_under_way: Callable[[], bool] | None = None,
    ) -> Iteration:
        """Begin an iteration over the loader, and leave the previous one if it is not done.

        Args:
            epoch: number of the epoch.
            leave: ends the exchanges of this iteration; called if other ranks are at fault.
            rows_under_way: a method that returns whether rows of a returned batch are still being received.

        Raises:
            InputError: the loader's run has ended.
            RankError: a rank did not finish the previous iteration, or has ended its program.
        """
        loop, monitor = self._loop, self._monitor
        if monitor is not None and monitor.over:
            raise InputError(
                f"{loop.name}: expected no epoch after manyhop.shutdown() or dist.destroy_process_group(), which ended "
                "the ranks' records of each other. Create a new loader."
            )
        if loop.status.inside:
            loop.leave("left")
        loop.thread = threading.get_ident()
        loop.rows_under_way = weakref.WeakMethod(rows_under_way) if rows_under_way is not None else lambda: None
        loop.status = LoopStatus(loop.status.iteration + 1, epoch, 0, "making", loop.status.ends)
        iteration = Iteration(self, loop, monitor)
        iteration.check(leave)
        return iteration


class Iteration:
    """One iteration over a watched loader. Its methods assign a few attributes, and do nothing after its end."""

    __slots__ = ("_loop", "_monitor", "_number", "_watch")

    def __init__(self, watch: Watch, loop: Loop, monitor: Monitor | None) -> None:
        self._watch = watch  # an iterator may outlive its loader
        self._loop, self._monitor, self._number = loop, monitor, loop.status.iteration

    def requested(self, leave: Callable[[], None] = _do_nothing) -> None:
        """Record that the caller requests a batch, which exists.

        ``leave`` is called if other ranks are at fault.

        Raises:
            RankError: naming the rank at fault.
        """
        loop = self._loop
        number, epoch, received, phase, ends = loop.status
        if number == self._number and phase != "out":
            loop.status = LoopStatus(number, epoch, received, "making", ends)
            activity.count += 1
            if loop.trouble:
                self.check(leave)

    def received(self) -> None:
        """Record that the caller has received its batch and begins its step."""
        loop = self._loop
        number, epoch, received, phase, ends = loop.status
        if number == self._number and phase == "making":
            loop.status = LoopStatus(number, epoch, received + 1, "step", ends)
            loop.thread = threading.get_ident()
            activity.count += 1

    def ended(self) -> None:
        """Record that the epoch has no more batches."""
        loop = self._loop
        number, epoch, received, phase, ends = loop.status
        if number == self._number and phase != "out":
            loop.status = LoopStatus(number, epoch, received, "out", ends)
            loop.done = (number, received)
            activity.count += 1

    def left(self) -> None:
        """Record that the iterator was dropped or closed. A finaliser may call it, in any thread."""
        self._end("left")

    def failed(self, error: BaseException) -> None:
        """Record that a batch failed on this rank."""
        kind, text, ranks = reason(error, "failed")
        self._end(kind, text.removeprefix(f"{self._loop.name}: "), ranks)

    def reason(self) -> RankError | None:
        """Return the error of a rank that has left, if it is reported within some seconds."""
        if self._monitor is None or self._loop.status.iteration != self._number:
            return None
        fault = self._monitor.deeper_fault(self._loop, float("inf"))
        return None if fault is None else RankError(f"{self._loop.name}: {fault.text}", ranks=fault.ranks)

    def explained(self, error: RankError, *, late: bool) -> RankError | None:
        """Return an error that explains a failed collective of the loader; ``None`` if ``error`` says it all.

        Heartbeats tell the rank at fault from ranks that followed it or are in a long step. If ``error`` does not name
        a single rank, waits some seconds for them.

        Args:
            error: error of the collective.
            late: whether ranks may only be late.
        """
        if self._monitor is None or self._loop.status.iteration != self._number:
            return None
        received = self._loop.status.received
        fault = self._monitor.fault(self._loop, received, self._monitor.suspicion)
        if len(error.ranks) != 1 and (fault is None or fault.has_deeper_reason):
            fault = self._monitor.deeper_fault(self._loop, received)
        if fault is not None and fault.ranks and fault.kind != "idle":
            return RankError(f"{self._loop.name}: {fault.text}", ranks=fault.ranks)
        if not error.ranks:
            return None
        known = self._monitor.known(self._loop, error.ranks[0])
        remedy = "Look for its error; it may have run out of memory."
        if late:
            remedy = "If it is only late (evaluation, saving), pass a larger rank_timeout=."
        return RankError(f"{error} Last known of rank {error.ranks[0]}: {known}. {remedy}", ranks=error.ranks)

    def check(self, leave: Callable[[], None] = _do_nothing) -> None:
        """Raise RankError if a rank is reported to be at fault.

        If a rank has only left, waits some seconds for its reason, after ``leave``: ranks in an exchange would
        otherwise report this one as late.
        """
        if self._monitor is None or self._loop.status.iteration != self._number:
            return
        received = self._loop.status.received
        fault = self._monitor.fault(self._loop, received)
        if fault is not None:
            leave()
            if fault.has_deeper_reason:
                fault = self._monitor.deeper_fault(self._loop, received) or fault
            self._end("followed", fault.text, fault.ranks)
            raise RankError(f"{self._loop.name}: {fault.text}", ranks=fault.ranks)

    def _end(self, kind: str, text: str = "", ranks: tuple[int, ...] = ()) -> None:
        if self._loop.status.iteration == self._number and self._loop.status.inside:
            self._loop.leave(kind, text, ranks)
            if self._monitor is not None:
                self._monitor.wake()
