"""Batches on their way through a pipeline: begun in groups, completed one by one."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
T = TypeVar("T")


def _one() -> int:
    return 1


@dataclass(frozen=True)
class Groups(Generic[Item, T]):
    """How several batches are made at once: begun together, on a device that works by itself, and completed one by one.

    Which batches are in a group must make no difference to what is in them.
    """

    begin: Callable[[Sequence[tuple[int, Item]]], Sequence[Callable[[], T]]]
    """``begin([(batch, item), ...])`` begins consecutive batches, without waiting for the device. Returns a function
    for each, which completes it; they are called in order, in the thread that has begun the group. If it fails for a
    group, it is called again for each batch of it."""

    size: int
    """Batches of a group, at least 1."""

    in_a_row: Callable[[], int] = _one
    """How many batches of a group are completed one after the other where the caller does it: code and data that have
    just been used are in the processor's caches, which a training step empties."""


class Flag:
    """Whether a pipeline is closed. Its finaliser refers to nothing else: what makes batches may lead back to it."""

    def __init__(self) -> None:
        self.closed = False
        self._waiting: deque[threading.Lock] = deque()

    def gate(self) -> threading.Lock:
        """A lock that one of the next calls of ``permit`` releases: they release gates in order."""
        gate = threading.Lock()
        gate.acquire()
        self._waiting.append(gate)
        if self.closed:
            self.permit()
        return gate

    def permit(self) -> None:
        """Open the next gate, if there is one."""
        with contextlib.suppress(IndexError):
            self._waiting.popleft().release()

    def close(self) -> None:
        """Close, and open all gates. A finaliser may call it, in any thread."""
        self.closed = True
        while self._waiting:
            self.permit()


class Task(Generic[Item, T]):
    """One batch to be made. ``done`` is a lock that is released when ``value`` or ``error`` is there.

    A thread refers to its task, but never to the pipeline, so that the pipeline can be dropped.
    """

    __slots__ = ("batch", "complete", "done", "error", "gate", "item", "last", "snapshot", "value")

    def __init__(self, batch: int, item: Item | None, snapshot: Any, gate: threading.Lock | None = None) -> None:
        self.batch, self.item, self.snapshot, self.gate = batch, item, snapshot, gate
        self.complete: Callable[[], T] | None = None
        self.value: T | None = None
        self.error: BaseException | None = None
        self.last = False
        """Whether its error leaves no next batch."""
        self.done = threading.Lock()
        self.done.acquire()

    def run(self, flag: Flag) -> None:
        """Complete the batch as soon as it may be complete, unless it has failed."""
        if self.gate is not None:
            self.gate.acquire()
        if not flag.closed and self.error is None and self.complete is not None:
            self._keep(*_attempt(self.complete))
        self.complete = None
        self.done.release()
        del self  # the traceback of the error refers to this frame: no cycle may keep a failed batch alive

    def _keep(self, value: T | None, error: BaseException | None) -> None:
        self.value = value
        if error is not None:  # one that the caller has set meanwhile, weary of waiting, stays
            self.error = error

    def finish(self, finish: Callable[[int, T], T]) -> None:
        """Complete the batch in the calling thread, unless it has failed."""
        if self.error is None:
            try:
                self.value = finish(self.batch, self.value)  # type: ignore[arg-type]
            except Exception as error:
                self.error = error

    def skip(self, error: BaseException | None) -> None:
        """The batch will not be made, nor those after it."""
        self.error, self.last = error, True
        self.done.release()


class Group(Generic[Item, T]):
    """Tasks that are begun at once; what a worker thread runs."""

    def __init__(self, tasks: Sequence[Task[Item, T]], groups: Groups[Item, T], flag: Flag) -> None:
        self.tasks = deque(tasks)
        self._groups, self._flag = groups, flag

    def start(self) -> None:
        """Begin the batches, one at a time if all together fail: the one that is at fault fails alone."""
        if self._flag.closed:
            return
        if not self._begin(list(self.tasks)):
            for task in self.tasks:
                self._begin([task])
            del task  # as above

    def _begin(self, tasks: list[Task[Item, T]]) -> bool:
        """Whether these tasks are begun, or the only one has failed."""
        batches = [(task.batch, task.item) for task in tasks if task.error is None]
        completes, error = _attempt(self._groups.begin, batches) if batches else ((), None)
        if error is None:
            for task, complete in zip(tasks, completes, strict=False):  # none for one without an item, which is last
                task.complete = complete
        elif len(batches) == 1 or not isinstance(error, Exception):
            tasks[0].error = error
        done = error is None or tasks[0].error is not None
        tasks.clear()  # as above
        task = error = None  # type: ignore[assignment]
        return done

    def run(self) -> None:
        """Complete the batches, in order."""
        while self.tasks:
            self.run_one()

    def run_one(self) -> Task[Item, T]:
        """Complete the first batch that is not, and give it away."""
        self.tasks[0].run(self._flag)
        return self.tasks.popleft()

    def skip(self, error: BaseException | None) -> None:
        """The batches will not be made."""
        while self.tasks:
            self.tasks.popleft().skip(error)


def _attempt(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """What a call returns, and what it raises."""
    try:
        return function(*args), None
    except BaseException as error:
        return None, error
