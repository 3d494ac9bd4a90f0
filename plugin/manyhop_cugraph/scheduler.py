"""Calls of cuGraph: which requests share one, and in which order, so that all ranks agree.

A call takes all ranks and holds Python's lock until it returns, so no rank may enter one that another rank does not.
Before, ranks meet over gloo, which waits with a limit and without the lock: each gives the engine that it wants to
sample with, and how many calls it needs. They then make the same calls, in the same order; a rank without seeds for one
takes part with none.

Requests wait until one of them is needed. Its last call then also serves others that wait for the same engine, of
whatever loader, as far as their seeds fit on every rank. All work is in the thread that needs samples: another thread
would compete with that one for the lock, and with its collectives for their order.
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
    """What makes one kind of call."""

    @property
    def name(self) -> int:
        """The same on all ranks, and that of no other caller; above 0."""
        ...

    @property
    def title(self) -> str:
        """Describes it in errors."""
        ...

    @property
    def capacity(self) -> int:
        """The largest size of the works of a call."""
        ...

    def size(self, work: Any) -> int:
        """Return the share of a work in the capacity."""
        ...

    def call(self, works: Sequence[Any]) -> list[Any]:
        """Call cuGraph once, together with all ranks, and return the result of each work; no works: without seeds."""
        ...


class Submission:
    """Works that wait for their calls; created by :meth:`Scheduler.submit`. Dropping it withdraws them."""

    def __init__(self, scheduler: Scheduler, caller: Caller, works: Sequence[Any], number: int) -> None:
        self.caller, self.works, self.number = caller, works, number
        self.outcome: list[Any] | Exception | None = None
        """The result of each work, or why there is none; ``None``: they wait."""
        self._scheduler = scheduler

    @property
    def size(self) -> int:
        """Share of all works in the capacity of a call."""
        return sum(map(self.caller.size, self.works))

    def results(self) -> list[Any]:
        """Return the result of each work, after their calls, which all ranks create together.

        Raises:
            RankError: other ranks did not come in time, or have other engines.
        """
        if self.outcome is None:
            self._scheduler.run(self)
        assert self.outcome is not None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class _Want(NamedTuple):
    """What a rank wants in a round."""

    name: int
    """Of a caller; 0: nothing."""
    calls: int
    """How many it needs for the submission that is needed."""
    reach: int
    """Up to which submission the last of them has room, counted from the one that is needed."""


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
        """Let a caller join the calls of other ranks. All ranks add the same ones."""
        self._callers[caller.name] = caller

    def submit(self, caller: Caller, works: Sequence[Any]) -> Submission:
        """Let works wait for calls, none of them larger than the capacity but where it is one that cannot be cut.

        Ranks that are in step submit in the same order.
        """
        with self._lock:
            self._submitted += 1
            submission = Submission(self, caller, works, self._submitted)
            self._waiting.append(weakref.ref(submission))
            return submission

    def run(self, needed: Submission) -> None:
        """Make the calls of a submission, and take part in what other ranks want meanwhile.

        Raises:
            RankError: other ranks did not come in time, or have other engines.
        """
        with self._lock:
            if needed.outcome is not None:  # from another thread meanwhile
                return
            waiting = self._same_caller(needed)
            every = self._meet(_Want(needed.caller.name, len(needed.works), self._reach(needed, waiting)), needed)
            reach = needed.number + min(want.reach for want in every if want.name == needed.caller.name)
            served = [needed, *(other for other in waiting if other.number <= reach)]
            try:
                for name in sorted({want.name for want in every} - {0}):
                    self._call(name, every, served if name == needed.caller.name else [])
            except Exception as error:
                for submission in served:  # no batch is sampled again, without the other ranks
                    if submission.outcome is None:
                        submission.outcome = error
                raise

    def drain(self) -> None:
        """Take part in the calls of the others until all ranks do no more than that.

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
        """Return the submissions that wait for the same caller, in their order, without the one that is needed."""
        there = [(reference, reference()) for reference in self._waiting]
        self._waiting = [reference for reference, other in there if other is not None and other.outcome is None]
        every = (other for _, other in there if other is not None and other.outcome is None and other is not needed)
        return [other for other in every if other.caller is needed.caller]

    def _reach(self, needed: Submission, waiting: Sequence[Submission]) -> int:
        """Return up to which submission the last call of the one that is needed has room, counted from that one.

        Ranks in step have to serve the same submissions, or one would wait for a round that others do not need. So
        they take the least of this number, of which submissions that only one of them still has are no part.
        """
        caller = needed.caller
        room = caller.capacity - caller.size(needed.works[-1]) if needed.works else -1  # no call, no room
        for other in waiting:
            room -= other.size
            if room < 0:
                return other.number - 1 - needed.number
        return self._submitted - needed.number

    def _call(self, name: int, every: Sequence[_Want], served: Sequence[Submission]) -> None:
        """Make the calls of one caller that ranks want; ``served``: the submission of this rank, and what joins it."""
        caller = self._callers.get(name)
        if caller is None:
            raise RankError(
                "Expected all ranks to make the same loaders with engine='cugraph', got one whose fanouts or graph "
                "this rank has no loader for. Make all loaders on all ranks, with the same arguments."
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
        """Return what each rank wants."""
        if self._size == 1:
            return [want]
        import torch.distributed as dist

        self._rounds += 1
        title = _END if needed is None else needed.caller.title
        mine = torch.tensor(want)
        every = [torch.empty_like(mine) for _ in range(self._size)]
        store = control.store()
        try:
            store.set(f"{self._key}/{self._rank}", f"{self._rounds} {title}")
            dist.all_gather(every, mine, group=self._group)
        except RuntimeError as error:
            raise RankError(
                f"Expected all ranks to sample with cuGraph within {self._timeout:g} s of each other, got "
                f"{self._absent(store)}, while this rank asks for {title} ({error}). Take batches on all ranks, to the "
                "end of an epoch or equally many."
            ) from error
        return [_Want(*map(int, other.tolist())) for other in every]

    def _absent(self, store: Any) -> str:
        """Describe the ranks that have not come to this round, by what they wanted last."""
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
    """Return the scheduler of the run, made when first requested. All ranks of the run call it."""
    global _scheduler
    if _scheduler is None:
        world.init(timeout=timeout)
        _scheduler = Scheduler(timeout=timeout)
        world.at_shutdown(_forget)
    return _scheduler


def drain(*, timeout: float) -> None:
    """Help other ranks until none has batches to sample. All ranks call it."""
    scheduler(timeout=timeout).drain()


def _forget() -> None:
    global _scheduler
    _scheduler = None
