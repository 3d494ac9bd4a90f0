"""Tasks of a pipeline, and the threads that run them, for one epoch or for all epochs of a loader."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar

import torch

from manyhop.errors import InputError

_EXIT_SECONDS = 5.0


class WorkerThreads:
    """The threads of a pool and their queue. Threads refer to this, never to the pool, so a pool can be dropped."""

    close_seconds: ClassVar[float] = 2.0
    """Seconds that closing waits: a batch needs milliseconds, and one that hangs must not block the error that reports
    it. Raise it on a machine on which threads wait longer for a core."""

    def __init__(self, num_workers: int, worker_init: Callable[[int], None] | None, start_ahead: bool) -> None:
        self._start_ahead = start_ahead
        # SimpleQueue may be used from finalisers, which run in any thread at any point; a Condition may not.
        self.queue: SimpleQueue[Group[Any, Any] | None] = SimpleQueue()
        self.stopping = False
        self.pid = os.getpid()
        self._inits = [worker_init] * num_workers
        self._init_error: BaseException | None = None
        self.threads = [
            threading.Thread(target=self._work, args=(i,), name=f"manyhop-{i}", daemon=True) for i in range(num_workers)
        ]

    def start(self) -> None:
        """Start the threads, each limited to itself: torch's operators must not start a team of threads in each."""
        # torch.set_num_threads acts on the calling thread and new threads, so the number is restored once all workers
        # have called it.
        limited: SimpleQueue[None] = SimpleQueue()
        before = torch.get_num_threads()
        self._limited = limited
        _running.add(self)
        try:
            for thread in self.threads:
                thread.start()
            for _ in self.threads:
                limited.get()
        finally:
            torch.set_num_threads(before)

    def _work(self, worker: int) -> None:
        torch.get_num_threads()  # makes torch set up this thread, which would undo a limit set before
        torch.set_num_threads(1)
        self._limited.put(None)
        self._init_thread(worker)
        present: Group[Any, Any] | None = None
        ended = False
        while not ended or present is not None:
            following: Group[Any, Any] | None = None  # an idle thread must not hold the last task
            if not ended:
                with contextlib.suppress(Empty):
                    following = self.queue.get(block=present is None)
                    ended = following is None
            if following is not None and (self.stopping or self._init_error is not None):
                following.skip(self._init_error)
                following = None
            if following is not None:
                following.start()
                if not self._start_ahead:
                    following.run()
                    following = None
            if present is not None:
                present.run()
            present = following

    def _init_thread(self, worker: int) -> None:
        # Each thread removes its copy: the user's function may refer to the pool, which could then never be dropped
        # while the threads run.
        init = self._inits.pop()
        if init is not None:
            try:
                init(worker)
            except BaseException as error:
                self._init_error = error

    def stop(self) -> None:
        """Signal the threads to end; does not wait. May run in any thread, and repeatedly."""
        self.stopping = True
        if self.pid == os.getpid():
            for _ in self.threads:
                self.queue.put(None)

    def join(self, deadline: float) -> None:
        """Wait until the threads have ended or ``deadline`` (of ``time.monotonic``) has passed."""
        if self.pid != os.getpid():
            return
        for thread in self.threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


_running: weakref.WeakSet[WorkerThreads] = weakref.WeakSet()


def end_workers(pools: Iterable[WorkerThreads], *, timeout: float | None = None) -> None:
    """End threads, and wait for them. Their pools start new ones when they are used again.

    Args:
        pools: the threads of some pools.
        timeout: seconds to wait at most for all of them; ``None``: ``WorkerThreads.close_seconds``.
    """
    pools = list(pools)
    for workers in pools:
        workers.stop()
    deadline = time.monotonic() + (WorkerThreads.close_seconds if timeout is None else timeout)
    for workers in pools:
        workers.join(deadline)


@atexit.register
def _end_all() -> None:
    """End all threads before the interpreter does: a daemon thread inside torch would abort the process."""
    end_workers(_running, timeout=_EXIT_SECONDS)


class WorkerPool:
    """A fixed number of threads that run the tasks of pipelines, first come, first served.

    They are called ``manyhop-0``, ``manyhop-1``, ... They start with the first task, and end when the pool is closed,
    dropped, or the interpreter exits. A forked child starts new threads. A copy or a pickle is a pool of the same size
    that is not started.

    Args:
        num_workers: number of threads, at least 1.
        worker_init: called once in each thread, before its first task, with its index ``0 .. num_workers - 1``. Its
            error becomes that of all tasks.
        start_ahead: a thread starts the next task, if there is one, before it runs the current one.

    Raises:
        InputError: ``num_workers`` is below 1.
    """

    def __init__(
        self,
        num_workers: int,
        worker_init: Callable[[int], None] | None = None,
        *,
        start_ahead: bool = False,
    ) -> None:
        if num_workers < 1:
            raise InputError(f"Expected num_workers of at least 1 for a pool, got {num_workers}. Pass 1 or more.")
        self.num_workers = num_workers
        self.start_ahead = start_ahead
        self._args = (num_workers, worker_init)
        self._workers: WorkerThreads | None = None

    @property
    def workers(self) -> WorkerThreads | None:
        """The current threads, if they are started. They do not refer to the pool."""
        return self._workers

    def submit(self, group: Group[Any, Any]) -> None:
        """Queue some tasks; start the threads if there are none in this process."""
        workers = self._workers
        if workers is None or workers.stopping or workers.pid != os.getpid():
            workers = self._workers = WorkerThreads(*self._args, self.start_ahead)
            weakref.finalize(self, workers.stop).atexit = False
            workers.start()
        for task in group.tasks:
            task.done.acquire()
        workers.queue.put(group)

    def close(self) -> None:
        """End the threads and wait for them (two seconds at most: a longer task ends on its own)."""
        workers, self._workers = self._workers, None
        if workers is not None:
            end_workers([workers])

    def __reduce__(self) -> tuple[Any, tuple[int, Callable[[int], None] | None]]:
        return partial(WorkerPool, start_ahead=self.start_ahead), self._args


Item = TypeVar("Item")
T = TypeVar("T")


@dataclass(frozen=True)
class Groups(Generic[Item, T]):
    """Functions for batches that begin together, on an asynchronous device, and are completed one by one.

    The contents of a batch must not depend on its group.
    """

    begin: Callable[[Sequence[tuple[int, Item]]], Sequence[Callable[[], T]]]
    """``begin([(batch, item), ...])`` begins consecutive batches, without waiting for the device. Returns for each a
    function that completes it; they are called in order, in the same thread. If it fails for a group, it is called
    again for each of its batches."""

    size: int
    """Batches of a group, at least 1."""

    in_a_row: Callable[[], int] = lambda: 1
    """Returns how many batches of a group the caller completes in a row, while their code and data are in the
    processor's caches, which a training step empties."""


class Flag:
    """Whether a pipeline is closed. Its finaliser refers to this alone, since batches may refer to the pipeline."""

    def __init__(self) -> None:
        self.closed = False
        self._waiting: deque[threading.Lock] = deque()

    def gate(self) -> threading.Lock:
        """Return a lock that one of the next calls of ``permit`` releases: they release gates in order."""
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


@dataclass(slots=True, eq=False)
class Task(Generic[Item, T]):
    """One batch to be made.

    A thread refers to its task, but never to the pipeline, so that the pipeline can be dropped.
    """

    batch: int
    item: Item | None
    snapshot: Any
    gate: threading.Lock | None = None
    done: threading.Lock = field(default_factory=threading.Lock)
    """A pool holds it until ``value`` or ``error`` is set."""
    complete: Callable[[], T] | None = None
    value: T | None = None
    error: BaseException | None = None
    last: bool = False
    """Whether no batch follows its error."""

    def run(self, flag: Flag) -> None:
        """Complete the batch as soon as its gate opens, unless it has failed."""
        if self.gate is not None:
            self.gate.acquire()
        if not flag.closed and self.error is None and self.complete is not None:
            self._keep(*_attempt(self.complete))
        self.complete = None
        self._release()
        del self  # the traceback of the error refers to this frame: no cycle may keep a failed batch alive

    def _keep(self, value: T | None, error: BaseException | None) -> None:
        self.value = value
        if error is not None:  # an error that the caller has set, after a timeout, remains
            self.error = error

    def skip(self, error: BaseException | None) -> None:
        """Mark the batch, and all later ones, as not made."""
        self.error, self.last = error, True
        self._release()

    def _release(self) -> None:
        if self.done.locked():
            self.done.release()


class Group(Generic[Item, T]):
    """Tasks that begin together; the work of a thread."""

    def __init__(self, tasks: Sequence[Task[Item, T]], groups: Groups[Item, T], flag: Flag) -> None:
        self.tasks = deque(tasks)
        self._groups, self._flag = groups, flag

    def start(self) -> None:
        """Begin the batches, one at a time if all together fail: only the faulty one fails."""
        if self._flag.closed:
            return
        if not self._begin(list(self.tasks)):
            for task in self.tasks:
                self._begin([task])
            del task  # as above

    def _begin(self, tasks: list[Task[Item, T]]) -> bool:
        """Begin these tasks; return whether they have begun, or the only one has failed."""
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
        """Complete the first remaining batch, and return its task."""
        self.tasks[0].run(self._flag)
        return self.tasks.popleft()

    def skip(self, error: BaseException | None) -> None:
        """Mark the batches as not made."""
        while self.tasks:
            self.tasks.popleft().skip(error)


def _attempt(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    try:
        return function(*args), None
    except BaseException as error:
        return None, error
