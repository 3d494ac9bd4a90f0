"""The engine: order, errors, and that nothing is left behind."""

import contextlib
import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
from pipeline_threads import no_thread_is_left, ours, wait_until  # noqa: F401  # a fixture

from manyhop.errors import InputError
from manyhop.loading.pipeline import Groups, Pipeline, Stats, WorkerPool

WORKERS = [0, 1, 2, 4]
T = TypeVar("T")


def square(batch: int, item: int) -> tuple[int, int]:
    return batch, item * item


@pytest.mark.parametrize("num_workers", WORKERS)
def test_order_does_not_depend_on_the_threads(num_workers: int) -> None:
    def make(batch: int, item: int) -> tuple[int, int]:
        time.sleep(random.random() * 0.004)
        return square(batch, item)

    assert list(Pipeline(range(60), make, num_workers=num_workers)) == [(i, i * i) for i in range(60)]


def test_batches_are_made_in_threads_at_once() -> None:
    together = threading.Barrier(3)

    def make(batch: int, item: int) -> str:
        together.wait(timeout=60)
        return threading.current_thread().name

    names = list(Pipeline(range(6), make, num_workers=3))
    assert set(names) == {"manyhop-0", "manyhop-1", "manyhop-2"}


def test_without_workers_there_is_no_thread_and_nothing_is_made_ahead() -> None:
    made = []
    pipeline = Pipeline(range(5), lambda batch, item: made.append(threading.current_thread()), num_workers=0)
    assert made == []
    next(pipeline)
    assert made == [threading.current_thread()]


@pytest.mark.parametrize(("num_workers", "prefetch"), [(1, 1), (2, 2), (2, 3)])
def test_makes_ahead_but_bounded(num_workers: int, prefetch: int) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    with contextlib.closing(Pipeline(items(), square, num_workers=num_workers, prefetch=prefetch)) as pipeline:
        for delivered in range(1, 10):
            next(pipeline)
            assert wait_until(lambda n=delivered: len(taken) == n + num_workers * prefetch)  # type: ignore[misc]
            time.sleep(0.003)
            assert len(taken) == delivered + num_workers * prefetch


def test_items_are_taken_in_the_callers_thread() -> None:
    seen = set()

    def items() -> Iterator[int]:
        for i in range(20):
            seen.add(threading.current_thread())
            yield i

    list(Pipeline(items(), square, num_workers=2))
    assert seen == {threading.current_thread()}


def grouped(make: Callable[[int, int], T], size: int = 3) -> Groups[int, T]:
    """The same batches, begun in groups."""
    return Groups(lambda batches: [partial(make, *batch) for batch in batches], size)


@pytest.mark.parametrize("make", [square, grouped(square)], ids=["alone", "grouped"])
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("bad", [0, 5])
def test_an_error_of_the_items_comes_at_its_turn(num_workers: int, bad: int, make: Any) -> None:
    def items() -> Iterator[int]:
        yield from range(bad)
        raise ValueError("bad sampler")

    got: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="bad sampler") as caught:
        got.extend(Pipeline(items(), make, num_workers=num_workers))
    assert got == [(i, i * i) for i in range(bad)]
    assert caught.value.failed_batch == (0, bad)  # type: ignore[attr-defined]


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_leaving_the_loop_ends_the_threads_and_frees_the_batches(num_workers: int, in_groups: bool) -> None:
    class Batch:
        pass

    alive: weakref.WeakSet[Batch] = weakref.WeakSet()

    def make(batch: int, item: int) -> Batch:
        b = Batch()
        alive.add(b)
        return b

    for i, _ in enumerate(Pipeline(range(1000), grouped(make) if in_groups else make, num_workers=num_workers)):
        if i == 5:
            break
    del _
    assert wait_until(lambda: not ours() and not alive)


@pytest.mark.parametrize("own_pool", [True, False])
def test_what_makes_the_batches_may_own_the_pipeline(own_pool: bool) -> None:
    class Loader:
        def __init__(self) -> None:
            self.pool = None if own_pool else WorkerPool(2, self.init)
            init = self.init if own_pool else None
            self.pipeline = Pipeline(range(1000), self.make, num_workers=2, pool=self.pool, worker_init=init)

        def init(self, worker: int) -> None:
            pass

        def make(self, batch: int, item: int) -> int:
            return item

    loader = Loader()
    next(loader.pipeline)
    gone = weakref.ref(loader)
    del loader

    def collected() -> bool:
        gc.collect()
        return gone() is None

    assert wait_until(collected)
    assert wait_until(lambda: not ours())


def test_close_is_idempotent_joins_and_ends_the_iteration() -> None:
    pipeline = Pipeline(range(100), square, num_workers=2)
    next(pipeline)
    pipeline.close()
    pipeline.close()
    assert not ours()
    assert list(pipeline) == []


def test_timeout_names_the_batch() -> None:
    begun, release = threading.Event(), threading.Event()

    def make(batch: int, item: int) -> int:
        if item == 2:
            begun.set()
            release.wait()
        return item

    pipeline = Pipeline(range(9), make, num_workers=1, prefetch=3, timeout=0.05, closing=release.set)
    assert begun.wait(60)  # the batches before are there: however slow the machine is, nobody waits for them
    assert [next(pipeline), next(pipeline)] == [0, 1]
    with pytest.raises(TimeoutError, match=r"Expected batch 2 within 0\.05 s"):
        next(pipeline)
    with pytest.raises(InputError, match="after TimeoutError"):
        next(pipeline)


@pytest.mark.parametrize("make", [square, grouped(square, 4)], ids=["alone", "grouped"])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_snapshots_belong_to_the_batch_handed_out(num_workers: int, make: Any) -> None:
    state = 0

    def items() -> Iterator[int]:
        nonlocal state
        for i in range(10):
            state = i + 1
            yield i

    with contextlib.closing(Pipeline(items(), make, num_workers=num_workers, snapshot=lambda: state)) as pipeline:
        assert pipeline.snapshot is None
        for i, _ in enumerate(pipeline):
            assert pipeline.snapshot == i + 1


def test_an_error_of_worker_init_reaches_the_caller() -> None:
    def init(worker: int) -> None:
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        list(Pipeline(range(30), square, num_workers=2, worker_init=init))


@pytest.mark.parametrize("make", [square, grouped(square, 4)], ids=["alone", "grouped"])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_batches_are_finished_in_the_caller(num_workers: int, make: Any) -> None:
    threads, stats = set(), Stats(num_workers)
    finished: list[tuple[float, float]] = []

    def finish(batch: int, value: tuple[int, int]) -> tuple[int, int]:
        threads.add(threading.current_thread())
        begin = time.perf_counter()
        time.sleep(0.002)
        finished.append((begin, time.perf_counter()))
        return batch, -value[1]

    pipeline = Pipeline(range(10), make, num_workers=num_workers, finish=finish, stats=stats)
    assert list(pipeline) == [(i, -i * i) for i in range(10)]
    assert threads == {threading.current_thread()}
    waits = [i for i in stats.intervals() if i.stage == "wait"]
    assert [i.batch for i in waits] == list(range(10))
    assert all(i.start <= begin < end <= i.end for i, (begin, end) in zip(waits, finished, strict=True))
    assert stats.report().waited_s >= 10 * 0.002


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_error_while_finishing_names_the_batch(num_workers: int) -> None:
    def finish(batch: int, value: tuple[int, int]) -> tuple[int, int]:
        return batch, value[1] // (3 - batch)

    pipeline = Pipeline(range(10), square, num_workers=num_workers, finish=finish, epoch=2)
    assert [next(pipeline)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="batch 3 of epoch 2"):
        next(pipeline)
    assert len(list(pipeline)) == 6
