"""Batches that are begun in groups: order, errors, bounds, and what is begun when."""

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from pipeline_threads import wait_until

from manyhop.loading.pipeline import Groups, Pipeline, Stats, WorkerPool

WORKERS = [0, 1, 3]


class Device:
    """Squares, in groups, and what was asked of it when."""

    def __init__(
        self, size: int, bad_begin: int | None = None, bad_complete: int | None = None, in_a_row: int = 1
    ) -> None:
        self.groups = Groups(self.begin, size, in_a_row=lambda: in_a_row)
        self.log: list[tuple[str, Any]] = []
        self.threads: dict[int, set[str]] = {}
        self._bad_begin, self._bad_complete = bad_begin, bad_complete

    def begin(self, batches: Sequence[tuple[int, int]]) -> list[Callable[[], int]]:
        self.log.append(("begin", [batch for batch, _ in batches]))
        if self._bad_begin in [item for _, item in batches]:
            raise ValueError("cannot begin")
        me = threading.current_thread().name
        return [lambda batch=batch, item=item: self._complete(batch, item, me) for batch, item in batches]  # type: ignore[misc]

    def _complete(self, batch: int, item: int, begun_in: str) -> int:
        self.log.append(("complete", batch))
        self.threads.setdefault(batch, set()).update([begun_in, threading.current_thread().name])
        if item == self._bad_complete:
            raise ValueError("cannot complete")
        return item * item

    def begun(self) -> list[list[int]]:
        return [what for kind, what in self.log if kind == "begin"]

    def begun_batches(self) -> list[int]:
        return [batch for batches in self.begun() for batch in batches]

    def completed(self) -> list[int]:
        return [what for kind, what in self.log if kind == "complete"]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_groups_change_neither_order_nor_content(num_workers: int, size: int, count: int) -> None:
    device = Device(size)
    assert list(Pipeline(range(count), device.groups, num_workers=num_workers)) == [i * i for i in range(count)]
    assert sorted(device.begun_batches()) == sorted(device.completed()) == list(range(count))
    assert {len(batches) for batches in device.begun()[:-1]} <= {size}
    assert all(len(names) == 1 for names in device.threads.values())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_next_group_is_begun_before_the_present_one_is_completed(num_workers: int) -> None:
    device = Device(2)
    list(Pipeline(range(8), device.groups, num_workers=num_workers))
    for first in (0, 2, 4):
        assert device.log.index(("begin", [first + 2, first + 3])) < device.log.index(("complete", first))


def test_in_the_caller_one_batch_is_completed_ahead() -> None:
    device = Device(3)
    pipeline = Pipeline(range(20), device.groups)
    assert device.log == []
    for i in range(10):
        assert next(pipeline) == i * i
        assert device.completed() == list(range(i + 2))
        assert len(device.begun_batches()) <= i + 2 + 2 * 3


@pytest.mark.parametrize(("num_workers", "prefetch", "size"), [(1, 2, 4), (2, 2, 2), (2, 1, 5)])
def test_few_batches_are_complete_ahead(num_workers: int, prefetch: int, size: int) -> None:
    device, taken = Device(size), []

    def items() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    with contextlib.closing(Pipeline(items(), device.groups, num_workers=num_workers, prefetch=prefetch)) as pipeline:
        for delivered in range(1, 12):
            next(pipeline)
            ahead = delivered + num_workers * prefetch
            assert wait_until(lambda n=ahead: len(device.completed()) >= n)  # type: ignore[misc]
            time.sleep(0.01)  # more would come now
            assert sorted(device.completed()) == list(range(ahead))
            assert len(taken) <= delivered + num_workers * (prefetch + 2 * size)


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("bad", [0, 4, 7])
@pytest.mark.parametrize("where", ["begin", "complete"])
def test_the_batch_at_fault_fails_alone_at_its_turn(num_workers: int, bad: int, where: str) -> None:
    device = Device(3, **{f"bad_{where}": bad})
    got: list[int] = []
    with pytest.raises(ValueError, match=f"(?s)cannot {where}.*batch {bad} of epoch 0"):
        got.extend(Pipeline(range(20), device.groups, num_workers=num_workers))
    assert got == [i * i for i in range(bad)]


def test_an_interrupt_in_the_caller_does_not_wait_for_its_turn() -> None:
    def begin(batches: Sequence[tuple[int, int]]) -> list[Callable[[], int]]:
        def complete(item: int) -> int:
            if item == 1:
                raise KeyboardInterrupt
            return item

        return [lambda item=item: complete(item) for _, item in batches]  # type: ignore[misc]

    with pytest.raises(KeyboardInterrupt):
        next(Pipeline(range(9), Groups(begin, 2)))


def test_the_caller_completes_some_batches_in_a_row() -> None:
    """As many of a group as it pays, once there is but one ahead; a bad one still comes at its turn."""
    device = Device(4, in_a_row=3, bad_complete=7)
    pipeline = Pipeline(range(20), device.groups)
    completed = []
    for i in range(7):
        assert next(pipeline) == i * i
        completed.append(len(device.completed()))
    assert completed == [3, 3, 4, 7, 7, 7, 8]
    with pytest.raises(ValueError, match=r"(?s)cannot complete.*batch 7 "):
        next(pipeline)


def test_waits_are_counted_without_a_call_for_each_batch() -> None:
    stats = Stats()
    pipeline = Pipeline(range(3), lambda batch, item: item, stats=stats)
    next(pipeline)
    next(pipeline)
    report = stats.report()
    assert report.batches == 2
    assert report.step_s > 0
    assert [(i.batch, i.stage) for i in stats.intervals()] == [(0, "wait"), (0, "step"), (1, "wait")]
    next(pipeline)
    assert next(pipeline, None) is None
    assert [(i.batch, i.stage) for i in stats.intervals()][3:] == [(1, "step"), (2, "wait"), (2, "step")]
    assert stats.report().batches == 3


@pytest.mark.parametrize("where", ["begin", "complete"])
def test_errors_leave_no_cycles(where: str) -> None:
    class Payload:
        pass

    payloads: weakref.WeakSet[Payload] = weakref.WeakSet()

    def fail() -> int:
        payload = Payload()
        payloads.add(payload)
        raise ValueError("no")

    def begin(batches: Sequence[tuple[int, int]]) -> list[Callable[[], int]]:
        if where == "begin" and (len(batches) > 1 or batches[0][0] > 0):
            fail()
        return [fail for _ in batches]

    gc.collect()
    gc.disable()
    try:
        for num_workers in (0, 2):
            pipeline = Pipeline(range(5), Groups(begin, 3), num_workers=num_workers)
            with contextlib.closing(pipeline), pytest.raises(ValueError, match="no"):
                next(pipeline)
            del pipeline
            assert wait_until(lambda: not payloads), num_workers
    finally:
        gc.enable()


def test_a_pool_for_two_epochs() -> None:
    with contextlib.closing(WorkerPool(1, start_ahead=True)) as pool:
        for _ in range(2):
            assert list(Pipeline(range(7), Device(2).groups, num_workers=1, pool=pool)) == [i * i for i in range(7)]


def test_what_comes_before_a_batch_is_part_of_the_step() -> None:
    stats, called = Stats(), []

    def before() -> None:
        begin = time.perf_counter()
        time.sleep(0.001)
        called.append((begin, time.perf_counter()))

    for _ in Pipeline(range(5), Device(2).groups, before=before, stats=stats):
        pass
    steps = [i for i in stats.intervals() if i.stage == "step"]
    assert len(steps) == 5
    assert all(i.start <= begin < end <= i.end for i, (begin, end) in zip(steps, called[1:], strict=True))
