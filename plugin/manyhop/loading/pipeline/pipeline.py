"""The pipeline: prefetches batches in threads, bounded and in order."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic

from manyhop.errors import InputError, RankError
from manyhop.loading.pipeline.stats import Stats
from manyhop.loading.pipeline.workers import Flag, Group, Groups, Item, T, Task, WorkerPool, WorkerThreads
from manyhop.system.failure import failed_batch, note_batch, text_of
from manyhop.system.ranges import ranged


class Pipeline(Iterator[T], Generic[Item, T]):
    """Makes a batch of each item in advance, and yields the batches in the order of the items.

    ``make`` runs in ``num_workers`` threads, on multiple items at once; at most ``num_workers * prefetch`` batches are
    made and not yet received. With ``num_workers=0`` the caller makes each batch itself. Order and content of the
    batches do not depend on ``num_workers``, if ``make`` is a pure function. ``items`` is advanced only in the caller's
    thread, as in torch, so a sampler that draws from torch's default generator is reproducible.

    With ``Groups`` instead of ``make``, a thread (or the caller) begins the next group before it completes the batches
    of the current one, so that the device that works on them never waits for Python; two more groups per thread are
    begun in advance, but at most ``num_workers * prefetch`` batches are complete and not yet received. The caller
    completes one batch in advance.

    Multiple threads may request batches: each batch or error goes to one of them, and all get ``StopIteration`` after
    the last batch.

    An exception of ``make`` or ``finish`` replaces its batch: the next call returns the next batch. After an exception
    of ``items``, an interrupt, a timeout or a RankError no batches follow: the pipeline ends, and more calls raise
    InputError.

    It ends, with its threads, after the last batch, such an error, ``close()``, or when it is dropped (by a ``break``
    in a loop).

    Args:
        items: one item per batch.
        make: ``make(batch, item)`` makes the batch with the given index; or ``Groups``.
        num_workers: number of threads; 0 for none.
        prefetch: prefetched batches per thread.
        epoch: named in errors.
        replay: code for the user that repeats a failed batch; named in errors.
        batch_of: ``batch_of(i, item)`` is the index of the batch of the i-th item (``None`` if the item failed),
            ``i = 0, 1, ...``; default: ``i`` itself.
        timeout: seconds after which waiting for a batch is an error; ``None`` or 0: no limit.
        worker_init: called once in each thread with its index; only without ``pool``.
        pool: threads to use, which continue to run; without it the threads end with the pipeline.
        finish: ``finish(batch, value)`` completes a batch in the caller's thread; ``None``: not needed.
        snapshot: called after each item; its result becomes :attr:`snapshot` with that batch (the state of a sampler,
            for a restart).
        before: called first when a batch is requested; its time counts as the caller's step.
        stats: records waiting, the caller's steps and the contents of received batches.
        contents: returns the arguments of ``Stats.count`` for the batch of an item; ``None``: nothing is counted.
        closing: called when the pipeline closes, before it waits for its threads: wakes those that wait in ``make``.
            May be called repeatedly, and by a finaliser.
    """

    def __init__(
        self,
        items: Iterable[Item],
        make: Callable[[int, Item], T] | Groups[Item, T],
        *,
        num_workers: int = 0,
        prefetch: int = 2,
        epoch: int = 0,
        replay: str = "",
        batch_of: Callable[[int, Item | None], int] | None = None,
        timeout: float | None = None,
        worker_init: Callable[[int], None] | None = None,
        pool: WorkerPool | None = None,
        finish: Callable[[int, T], T] | None = None,
        snapshot: Callable[[], Any] | None = None,
        before: Callable[[], None] | None = None,
        stats: Stats | None = None,
        contents: Callable[[Item], Mapping[str, int]] | None = None,
        closing: Callable[[], None] | None = None,
    ) -> None:
        self.epoch = epoch
        self.lock = threading.RLock()
        self._replay = replay
        self._items: Iterator[Item] | None = iter(items)
        self._taken = 0
        self._batch_of = batch_of or (lambda i, item: i)
        self._last_batch = 0
        self._timeout = timeout or None
        self._snapshot_of = snapshot
        self.snapshot: Any = None
        """Result of ``snapshot()`` for the last batch, which may have failed; ``None``: none yet."""
        self._before = before
        self._stats, self._contents = stats, contents
        self._step_start: float | None = None
        self._tasks: deque[Task[Item, T]] = deque()  # with threads: queued; without: complete
        self._finish = finish
        self._flag = Flag()
        self._pid = os.getpid()
        self._pool = pool
        self._own_pool = pool is None
        self._in_groups = isinstance(make, Groups)
        self._make = make
        if isinstance(make, Groups):
            self._groups = make
        else:
            self._groups = Groups(lambda batches: [partial(make, batch, item) for batch, item in batches], 1)
        if pool is None and num_workers > 0:
            self._pool = WorkerPool(num_workers, worker_init, start_ahead=self._in_groups)
        self._complete = num_workers * prefetch
        self._ahead = self._complete + (2 * num_workers * self._groups.size if self._in_groups else 0)
        self._begun: deque[Group[Item, T]] = deque()  # without threads
        self._closed = False
        self._ended_by: str | None = None
        weakref.finalize(self, self._flag.close).atexit = False
        self._closing = closing
        if closing is not None:
            weakref.finalize(self, closing).atexit = False
        self._fill()

    @property
    def workers(self) -> WorkerThreads | None:
        """The threads that make the batches; ``None``: the caller makes them."""
        return None if self._pool is None else self._pool.workers

    @property
    def closed(self) -> bool:
        """Whether there are no more batches."""
        return self._closed

    def __next__(self) -> T:
        with self.lock:
            task = self._receive()
        del self  # the traceback of an error, which the caller may keep, refers to this frame: no threads may live on
        return _value_of(task)

    def _receive(self) -> Task[Item, T]:
        """Return the task of the next batch, complete or failed."""
        if self._before is not None:
            self._before()
        start = time.perf_counter()
        last_batch, step_start, self._step_start = self._last_batch, self._step_start, None
        if self._closed:
            self._stepped(step_start, start)
            if self._ended_by is not None:  # no end of an epoch, which StopIteration would be
                raise InputError(
                    f"Expected no request for batches after an error that ended the epoch, got one after "
                    f"{self._ended_by}. Begin an epoch, or resume from a state of the loader."
                )
            raise StopIteration
        try:
            task = self._next_here() if self._pool is None else self._next_of_threads()
            if self._flag.closed:  # by another thread
                task = None
            if task is not None and task.error is None and self._finish is not None:
                try:
                    task.value = self._finish(task.batch, task.value)  # type: ignore[arg-type]
                except Exception as error:
                    task.value, task.error = None, error
        except BaseException as error:  # an interrupt while waiting: the threads must not outlive it
            self._close(error)
            raise
        if task is None:
            self._stepped(step_start, start)
            self._close()
            raise StopIteration
        self.snapshot = task.snapshot
        if task.error is not None:
            self._stepped(step_start, start)
            if task.last or not isinstance(task.error, Exception) or isinstance(task.error, RankError):
                self._close(task.error)
            task.error = _as_seen_by_caller(task, self.epoch, self._replay)
            del self  # frames of the error refer to this one
            return task
        self._last_batch = task.batch
        if self._stats is not None:
            self._step_start = time.perf_counter()
            contents = {} if self._contents is None else self._contents(task.item)  # type: ignore[arg-type]
            self._stats.handed((last_batch, step_start, task.batch, start, self._step_start, contents))
        return task

    def _stepped(self, start: float | None, end: float) -> None:
        if self._stats is not None and start is not None:
            self._stats.take_handed()
            self._stats.stepped(self._last_batch, start, end)

    @ranged("wait")
    def _next_of_threads(self) -> Task[Item, T] | None:
        """Return the finished task of the next batch, after queueing its successor; ``None`` after the last."""
        if self._pid != os.getpid():
            self._restart()
        if not self._tasks:
            return None
        task = self._tasks[0]
        if not task.done.acquire(timeout=-1 if self._timeout is None else self._timeout):
            task.error = TimeoutError(
                f"Expected batch {task.batch} within {self._timeout} s, got none. Pass a longer timeout."
            )
            task.last = True
            return task
        if self._flag.closed:
            return None
        self._tasks.popleft()
        self._flag.permit()
        self._fill()
        return task

    def _fill(self) -> None:
        """Queue items, group by group, until enough are in progress."""
        while self._pool is not None and len(self._tasks) + self._groups.size <= max(self._ahead, self._groups.size):
            group = self._take_group()
            if group is None:
                return
            self._tasks.extend(group.tasks)
            self._pool.submit(group)

    @ranged("wait")
    def _next_here(self) -> Task[Item, T] | None:
        """Return the next task without threads: batches are completed on request, those of groups one batch in advance.

        Runs between two training steps, so it must be fast.
        """
        if not self._in_groups:  # the cost of groups matters for tiny batches
            task = self._take(0)
            if task is not None and task.error is None:
                try:
                    task.value = self._make(task.batch, task.item)  # type: ignore[operator, arg-type]
                except BaseException as error:
                    task.error = error
            del self  # the traceback of the error refers to this frame
            return task
        while len(self._tasks) <= 1:
            while len(self._begun) <= 1 and self._begin_here():
                pass
            if not self._begun:
                break
            for _ in range(max(1, self._groups.in_a_row())):
                self._tasks.append(self._begun[0].run_one())
                if not self._begun[0].tasks or self._tasks[-1].error is not None:
                    break
            if not self._begun[0].tasks:
                self._begun.popleft()
            if self._tasks[-1].error is not None:
                if not isinstance(self._tasks[-1].error, Exception):
                    _value_of(self._tasks.pop())  # an interrupt does not wait for its batch
                break
        return self._tasks.popleft() if self._tasks else None

    def _begin_here(self) -> bool:
        """Begin the next group; return whether there is one."""
        group = self._take_group()
        if group is None:
            return False
        self._begun.append(group)
        del group  # the traceback of an error refers to this frame
        self._begun[-1].start()
        return True

    def _take_group(self) -> Group[Item, T] | None:
        """Return the tasks of the next items; ``None`` after the last item."""
        if self._stats is not None:
            self._stats.take_handed()
        tasks: list[Task[Item, T]] = []
        while len(tasks) < self._groups.size and (task := self._take(len(self._tasks) + len(tasks))) is not None:
            tasks.append(task)
            if task.error is not None:
                break
        return Group(tasks, self._groups, self._flag) if tasks else None

    def _take(self, place: int) -> Task[Item, T] | None:
        """Return the task of the next item, which has failed if the item failed; ``None`` after the last item.

        ``place`` is the number of tasks in progress before it.
        """
        if self._items is None:
            return None
        gate = self._flag.gate() if self._pool is not None and place >= self._complete else None
        try:
            item = next(self._items)
            snapshot = None if self._snapshot_of is None else self._snapshot_of()
        except StopIteration:
            self._items = None
            return None
        except Exception as error:
            self._items = None
            task: Task[Item, T] = Task(self._batch_of(self._taken, None), None, None, gate)
            task.error, task.last = error, True
            return task
        batch = self._batch_of(self._taken, item)
        self._taken += 1
        return Task(batch, item, snapshot, gate)

    def _restart(self) -> None:
        """Repeat the unfinished work of the parent's threads, in a forked child."""
        self._pid = os.getpid()
        for old in list(self._tasks):
            self._tasks.popleft()
            task = old
            if old.done.locked():
                task = Task(old.batch, old.item, old.snapshot)
                task.error = old.error  # an error of its item
                assert self._pool is not None
                self._pool.submit(Group([task], self._groups, self._flag))
            self._tasks.append(task)

    def close(self) -> None:
        """End the threads of this pipeline and drop prefetched batches. More calls do nothing."""
        self._close()

    def _close(self, error: BaseException | None = None) -> None:
        """Close; ``error`` is the reason, named in errors of later requests."""
        if error is not None:
            self._ended_by = text_of(error)
        if self._closed:
            return
        self._closed = True
        self._flag.close()
        if self._closing is not None:
            self._closing()
        pool = self._pool
        if self._own_pool and pool is not None:
            pool.close()
        # Threads that waited for a batch are awake; a thread in `make` may need longer than a close may.
        if self.lock.acquire(timeout=WorkerThreads.close_seconds):
            try:
                self._drop()
            finally:
                self.lock.release()

    def _drop(self) -> None:
        self._items = None
        self._tasks.clear()
        while self._begun:
            self._begun.popleft().skip(None)
        pool, self._pool = self._pool, None
        if self._own_pool and pool is not None:
            pool.close()  # another thread may have started new ones before the lock was free


def _value_of(task: Task[Item, T]) -> T:
    """Return the batch of a task, or raise its error."""
    error, task.error = task.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # the traceback refers to this frame: no cycle may keep a failed batch alive
    return task.value  # type: ignore[return-value]


def _as_seen_by_caller(task: Task[Item, T], epoch: int, replay: str) -> BaseException:
    """Return the error of a task with a note, unless it is an interrupt or the fault of other ranks."""
    error = task.error
    assert error is not None
    if not isinstance(error, Exception) or isinstance(error, RankError):
        return error
    if isinstance(error, StopIteration):  # which would end the epoch without a word
        stopped = RuntimeError("Expected a batch, got StopIteration. Raise another exception.")
        stopped.__cause__, error = error, stopped
    if task.item is None and failed_batch(error) is not None:  # the items come from another pipeline, which named it
        return error
    note_batch(error, epoch=epoch, batch=task.batch, replay=replay)
    return error
