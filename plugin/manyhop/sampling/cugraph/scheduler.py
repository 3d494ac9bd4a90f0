"""Which call of cuGraph comes next: an order that all ranks agree on, whatever each of them wants to sample.

A call takes all ranks, and holds Python's lock until it returns, so no rank may enter one that another rank does not.
Before, ranks meet over gloo, which waits with a limit and without the lock: each says which engine it wants, and how
many calls it needs. They then make the same calls, in the same order; a rank without seeds for one takes part with
none. All work is in the thread that asks for samples: another thread would compete with that one for the lock, and with
its collectives for their order.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from manyhop import world
from manyhop.errors import RankError


class Caller(Protocol):
    """What makes one kind of call."""

    @property
    def name(self) -> int:
        """The same on all ranks, and that of no other caller; above 0."""
        ...

    def call(self, work: Any) -> Any:
        """Call cuGraph, together with all ranks; ``None``: without seeds."""
        ...


class Scheduler:
    """The calls of one run. All ranks make it.

    Args:
        timeout: seconds to wait for the other ranks at each round.
    """

    def __init__(self, *, timeout: float) -> None:
        self._timeout, self._lock = timeout, threading.RLock()
        self._callers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._size, self._group = world.current_size(), None
        if self._size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def add(self, caller: Caller) -> None:
        """Have a caller take part where other ranks want it. All ranks add the same ones."""
        self._callers[caller.name] = caller

    def run(self, caller: Caller, works: Sequence[Any]) -> list[Any]:
        """Make a call for each of ``works``, and take part in what other ranks want meanwhile.

        Raises:
            RankError: other ranks did not come in time, or have other engines.
        """
        with self._lock:
            if self._size == 1:
                return [caller.call(work) for work in works]
            results, _ = self._round(caller.name, works)
            return results

    def drain(self) -> None:
        """Take part in the calls of the others until all ranks do no more than that.

        Raises:
            RankError: as above.
        """
        with self._lock:
            while self._size > 1 and self._round(0, ())[1]:
                pass

    def _round(self, name: int, works: Sequence[Any]) -> tuple[list[Any], bool]:
        """Make the calls that all ranks want now. Return the results of ours, and whether anyone wanted any."""
        every = self._meet(name, len(works))
        results = []
        for wanted in sorted({other for other, _ in every} - {0}):
            caller = self._callers.get(wanted)
            if caller is None:
                raise RankError(
                    "Expected all ranks to make the same loaders with engine='cugraph', got one whose fanouts or graph "
                    "this rank has no loader for. Make all loaders on all ranks, with the same arguments."
                )
            for i in range(max(count for other, count in every if other == wanted)):
                mine = wanted == name and i < len(works)
                result = caller.call(works[i] if mine else None)
                if mine:
                    results.append(result)
        return results, any(other for other, _ in every)

    def _meet(self, name: int, count: int) -> list[tuple[int, int]]:
        """Return what each rank wants: the name of a caller, and a number of calls; 0: nothing."""
        import torch.distributed as dist

        mine = torch.tensor([name, count])
        every = [torch.empty_like(mine) for _ in range(self._size)]
        try:
            dist.all_gather(every, mine, group=self._group)
        except RuntimeError as error:
            raise RankError(
                f"Expected all ranks to sample with cuGraph within {self._timeout:g} s of each other, got not all of "
                f"them: {error}. Take batches on all ranks, to the end of an epoch or equally many."
            ) from error
        return [(int(other), int(number)) for other, number in every]


_scheduler: Scheduler | None = None


def scheduler(*, timeout: float) -> Scheduler:
    """Return the scheduler of the run, made when first asked for. All ranks of the run call it."""
    global _scheduler
    if _scheduler is None:
        world.init(timeout=timeout)
        _scheduler = Scheduler(timeout=timeout)
        world.at_shutdown(_forget)
    return _scheduler


def _forget() -> None:
    global _scheduler
    _scheduler = None
