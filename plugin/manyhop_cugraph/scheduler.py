"""Schedule of cuGraph's calls: groups requests and agrees on an order with all ranks.

A call involves all ranks and holds the GIL until it returns, so all ranks must enter it. They first meet over gloo,
which waits with a limit and without the GIL, and exchange the engine that each rank needs and its number of calls. Then
all ranks make the same calls in the same order, some of them without seeds.

Requests wait until one of them is needed. Its last call also serves other requests for the same engine, from any
loader, if their seeds fit on every rank. The thread that needs samples does all the work: a second thread would compete
for the GIL and for the order of collectives.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch

from manyhop.errors import RankError
from manyhop.ranks import control, world

_numbers = itertools.count()  # all ranks create schedulers in the same order
_END = "the end of an epoch"


class Caller(Protocol):
    """Makes calls for works, which have a ``size``."""

    name: int
    """Unique positive number of the caller, equal on all ranks."""
    title: str
    """Describes it in errors."""
    capacity: int
    """Largest total size of the works of a call, unless it is a single work."""

    def call(self, works: Sequence[Any]) -> list[Any]:
        """Call cuGraph once, together with all ranks, and return the result of each work; no works: without seeds."""


class Submission:
    """Works that wait for their calls. Ranks in step submit in the same order. Dropping it withdraws them."""

    def __init__(self, scheduler: Scheduler, caller: Caller, works: Sequence[Any]) -> None:
        self.caller, self.works, self._scheduler = caller, works, scheduler
        self.outcome: list[Any] | Exception | None = None
        """Result of each work, or the error; ``None``: they wait."""
        self.number = 0
        """Position in the order of submissions."""
        scheduler.submit(self)

    def results(self) -> list[Any]:
        """Return the result of each work. All ranks make the calls together.

        Raises:
            RankError: a rank did not arrive in time, or has different engines.
        """
        if self.outcome is None:
            self._scheduler.run(self)
        assert self.outcome is not None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class _Want(NamedTuple):
    """A rank's request in a round."""

    name: int
    """Number of the caller; 0: none."""
    calls: int
    """Number of calls for the needed submission."""
    reach: int
    """Number of later submissions that the last call can also serve."""


class Scheduler:
    """The calls of one run. All ranks create it.

    Args:
        timeout: seconds to wait for the other ranks at each round.
    """

    def __init__(self, *, timeout: float) -> None:
        self._timeout, self._lock = timeout, threading.RLock()
        self._callers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._waiting: list[weakref.ref[Submission]] = []
        self._submitted = self._rounds = 0
        self._key = f"cugraph/{next(_numbers)}"
        self._rank, self._size, self._group = world.current_rank(), world.current_size(), None
        if self._size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def add(self, caller: Caller) -> None:
        """Register a caller. All ranks register the same callers."""
        self._callers[caller.name] = caller

    def submit(self, submission: Submission) -> None:
        """Let a submission wait for calls."""
        with self._lock:
            self._submitted += 1
            submission.number = self._submitted
            self._waiting.append(weakref.ref(submission))

    def run(self, needed: Submission) -> None:
        """Make the calls of a submission, and join the calls of other ranks.

        Raises:
            RankError: a rank did not arrive in time, or has different engines.
        """
        with self._lock:
            if needed.outcome is not None:  # a different thread has made them
                return
            waiting = self._same_caller(needed)
            every = self._meet(_Want(needed.caller.name, len(needed.works), self._reach(needed, waiting)), needed)
            reach = needed.number + min(want.reach for want in every if want.name == needed.caller.name)
            served = [needed, *(other for other in waiting if other.number <= reach)]
            try:
                for name in sorted({want.name for want in every} - {0}):
                    self._call(name, every, served if name == needed.caller.name else [])
            except Exception as error:
                for submission in served:  # sampling again would need all ranks
                    if submission.outcome is None:
                        submission.outcome = error
                raise

    def drain(self) -> None:
        """Join the calls of other ranks until no rank needs any.

        Raises:
            RankError: as above.
        """
        with self._lock:
            while self._size > 1:
                every = self._meet(_Want(0, 0, 0), None)
                wanted = sorted({want.name for want in every} - {0})
                if not wanted:
                    return
                for name in wanted:
                    self._call(name, every, [])

    def _same_caller(self, needed: Submission) -> list[Submission]:
        """Return other submissions that wait for the same caller, in their order."""
        there = [other for reference in self._waiting if (other := reference()) is not None and other.outcome is None]
        self._waiting = [weakref.ref(other) for other in there]
        return [other for other in there if other.caller is needed.caller and other is not needed]

    def _reach(self, needed: Submission, waiting: Sequence[Submission]) -> int:
        """Return the number of later submissions that the last call of the needed one can also serve.

        Ranks in step must serve the same submissions, so they use the minimum of this number.
        """
        room = needed.caller.capacity - needed.works[-1].size if needed.works else -1  # no call, no room
        for other in waiting:
            room -= sum(work.size for work in other.works)
            if room < 0:
                return other.number - 1 - needed.number
        return self._submitted - needed.number

    def _call(self, name: int, every: Sequence[_Want], served: Sequence[Submission]) -> None:
        """Make the requested calls of one caller. ``served``: this rank's submission, and others that join it."""
        caller = self._callers.get(name)
        if caller is None:
            raise RankError(
                "Expected all ranks to create the same loaders with engine='cugraph', got fanouts or a graph for "
                "which this rank has no loader. Create all loaders on all ranks, with the same arguments."
            )
        calls = [[work] for work in served[0].works] if served else []
        if calls:
            calls[-1] += [work for other in served[1:] for work in other.works]
        most = max(want.calls for want in every if want.name == name)
        found = [result for i in range(most) for result in caller.call(calls[i] if i < len(calls) else [])]
        results = iter(found)
        for submission in served:
            submission.outcome = list(itertools.islice(results, len(submission.works)))

    def _meet(self, want: _Want, needed: Submission | None) -> list[_Want]:
        """Return the request of each rank."""
        if self._size == 1:
            return [want]
        import torch.distributed as dist

        self._rounds += 1
        title = _END if needed is None else needed.caller.title
        mine = torch.tensor(want, device="cpu")
        every = [torch.empty_like(mine) for _ in range(self._size)]
        store = control.store()
        try:
            store.set(f"{self._key}/{self._rank}", f"{self._rounds} {title}")
            dist.all_gather(every, mine, group=self._group)
        except RuntimeError as error:
            raise RankError(
                f"Expected all ranks to sample with cuGraph within {self._timeout:g} s of each other, got "
                f"{self._absent(store)}, while this rank requests {title} ({error}). Iterate on all ranks, to the "
                "end of an epoch or for the same number of batches."
            ) from error
        return [_Want(*map(int, other.tolist())) for other in every]

    def _absent(self, store: Any) -> str:
        """Describe the last requests of the ranks that have not arrived at this round."""
        absent = []
        for rank in set(range(self._size)) - {self._rank}:
            key = f"{self._key}/{rank}"
            try:
                rounds, _, title = store.get(key).decode().partition(" ") if store.check([key]) else ("0", "", "")
            except RuntimeError:  # the store has ended with its process
                return "no answer"
            if int(rounds) < self._rounds:
                absent.append(f"nothing from rank {rank}" + (f" after {title}" if title else ""))
        return " and ".join(absent) or "no answer"


_scheduler: Scheduler | None = None


def scheduler(*, timeout: float) -> Scheduler:
    """Return the scheduler of the run, created by the first call. All ranks of the run call it."""
    global _scheduler
    if _scheduler is None:
        world.init(timeout=timeout)
        _scheduler = Scheduler(timeout=timeout)
        world.at_shutdown(_forget)
    return _scheduler


def drain(*, timeout: float) -> None:
    """Join the calls of other ranks until no rank has batches to sample. All ranks call it."""
    scheduler(timeout=timeout).drain()


def _forget() -> None:
    global _scheduler
    _scheduler = None
