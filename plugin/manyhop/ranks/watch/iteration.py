"""The side of a loader: its loop reports its state to the watch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from manyhop.errors import InputError, RankError
from manyhop.ranks import world
from manyhop.ranks.watch import monitor as monitors
from manyhop.ranks.watch.heartbeat import reason
from manyhop.ranks.watch.monitor import Loop, Monitor


def _do_nothing() -> None:
    """Stand for an iteration that no rank waits for."""


class Watch:
    """Watches the other ranks for one loader. All ranks make the watches of their loaders in the same order.

    A daemon thread per process publishes the states of its loops about once a second. As soon as it is known that
    another rank cannot deliver its share, ``Iteration.requested`` raises. Where this rank waits in a collective for a
    rank that is gone, nothing can be raised: then the process is ended, with a message on stderr and status 1. A rank
    that is there may take as long as it wants, whatever others wait for.

    Args:
        name: of the loader, for messages.
        timeout: seconds that ranks wait for each other in the loader's own collectives. Without a heartbeat for as
            long, at most a minute (or a tenth of it, if that is more), a rank counts as gone.

    Raises:
        InputError: for a timeout that is not positive.
    """

    def __init__(self, name: str, *, timeout: float) -> None:
        if not timeout > 0:
            raise InputError(f"Expected a rank_timeout of more than 0 seconds, got {timeout}.")
        self._monitor: Monitor | None = None
        self._loop = Loop(0, name, timeout)
        if not world.init().is_alone:
            self._monitor = monitors.of_run()
            self._loop = self._monitor.add(name, timeout)
            weakref.finalize(self, self._loop.drop).atexit = False

    def begin(
        self,
        epoch: int,
        leave: Callable[[], None] = _do_nothing,
        rows_under_way: Callable[[], bool] | None = None,
    ) -> Iteration:
        """Begin an iteration over the loader; the previous one has been left if it is not done.

        Args:
            epoch: its number.
            leave: ends what other ranks may wait for in this iteration; called if they are at fault.
            rows_under_way: a method that tells whether rows of a batch that was handed out have not come yet.

        Raises:
            InputError: the run that the loader was made in has ended.
            RankError: another rank did not finish the iteration before, or has ended its program.
        """
        loop, monitor = self._loop, self._monitor
        if monitor is not None and monitor.over:
            raise InputError(
                f"{loop.name}: expected no epoch after manyhop.shutdown() or dist.destroy_process_group(), which ended "
                "the ranks' records of each other. Make the loader anew."
            )
        if loop.at[3] != "out":
            loop.leave("left")
        loop.thread = threading.get_ident()
        loop.rows_under_way = weakref.WeakMethod(rows_under_way) if rows_under_way is not None else lambda: None
        loop.at = (loop.at[0] + 1, epoch, 0, "making")
        iteration = Iteration(self, loop, monitor)
        iteration.check(leave)
        return iteration


class Iteration:
    """One iteration over a watched loader. Cheap: the calls of a step assign a few attributes.

    Once it has ended, in whatever way, or a later one has started, its calls do nothing.
    """

    __slots__ = ("_loop", "_monitor", "_number", "_watch")

    def __init__(self, watch: Watch, loop: Loop, monitor: Monitor | None) -> None:
        self._watch = watch  # a loader may be dropped while its iterator is in use
        self._loop, self._monitor, self._number = loop, monitor, loop.at[0]

    def requested(self, leave: Callable[[], None] = _do_nothing) -> None:
        """Note that the caller requests a batch, and that this epoch has one more.

        Args:
            leave: as of :meth:`Watch.begin`.

        Raises:
            RankError: a rank is at fault; names it.
        """
        loop = self._loop
        number, epoch, received, phase = loop.at
        if number == self._number and phase != "out":
            loop.at = (number, epoch, received, "making")
            monitors.moved()
            if loop.trouble:
                self.check(leave)

    def received(self) -> None:
        """Note that the caller has its batch: its step begins."""
        loop = self._loop
        number, epoch, received, phase = loop.at
        if number == self._number and phase == "making":
            loop.at = (number, epoch, received + 1, "step")
            loop.thread = threading.get_ident()
            monitors.moved()

    def ended(self) -> None:
        """Note that the epoch has no more batches."""
        loop = self._loop
        number, epoch, received, phase = loop.at
        if number == self._number and phase != "out":
            loop.at = (number, epoch, received, "out")
            loop.done = (number, received)
            monitors.moved()

    def left(self) -> None:
        """Note that the iterator was dropped or closed. A finaliser may call it, in any thread, after an end."""
        self._end("left")

    def failed(self, error: BaseException) -> None:
        """Note that a batch failed on this rank."""
        kind, text, ranks = reason(error, "failed")
        self._end(kind, text.removeprefix(f"{self._loop.name}: "), ranks)

    def reason(self) -> RankError | None:
        """Return why another rank has left, if that is reported within some seconds."""
        if self._monitor is None or self._loop.at[0] != self._number:
            return None
        fault = self._monitor.deeper_fault(self._loop, float("inf"))
        return None if fault is None else RankError(f"{self._loop.name}: {fault.text}", ranks=fault.ranks)

    def explained(self, error: RankError, *, late: bool) -> RankError | None:
        """Return the error of ranks that did not come to a collective of the loader, or why they did not.

        Ranks that follow the one at fault do not come either, nor those that are in a long step: the heartbeats tell
        who was first. They are waited for some seconds if ``error`` does not name a single rank. ``None``: they tell
        nothing else than ``error``.

        Args:
            error: of the collective.
            late: whether ranks may only be late.
        """
        if self._monitor is None or self._loop.at[0] != self._number:
            return None
        fault = self._monitor.fault_now(self._loop, suspicious=True)
        if len(error.ranks) != 1 and (fault is None or fault.has_deeper_reason):
            fault = self._monitor.deeper_fault(self._loop, self._loop.at[2])
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
        """Raise if a rank is reported to be at fault.

        If a rank just left, there may be a deeper reason, which is waited for some seconds: after ``leave``, as ranks
        that wait for this one meanwhile would take it for late.
        """
        if self._monitor is None or self._loop.at[0] != self._number:
            return
        fault = self._monitor.fault_now(self._loop)
        if fault is not None:
            leave()
            if fault.has_deeper_reason:
                fault = self._monitor.deeper_fault(self._loop, self._loop.at[2]) or fault
            error = RankError(f"{self._loop.name}: {fault.text}", ranks=fault.ranks)
            self._end("followed", fault.text, fault.ranks)
            raise error

    def _end(self, kind: str, text: str = "", ranks: tuple[int, ...] = ()) -> None:
        if self._loop.at[0] == self._number and self._loop.at[3] != "out":
            self._loop.leave(kind, text, ranks)
            if self._monitor is not None:
                self._monitor.wake()
