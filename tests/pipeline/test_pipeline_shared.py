"""One pipeline, several threads that ask it for batches."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pipeline_threads import no_thread_is_left  # noqa: F401  # a fixture

from manyhop.loading.pipeline import Groups, Pipeline

WORKERS = [0, 1, 4]


def in_threads(work: Callable[[], Any], count: int = 4) -> list[Any]:
    """What ``work`` returns, or raises, in each of some threads; they have a minute."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == count, "a thread still waits for a batch"
    return results


def slow_items(count: int) -> Iterator[int]:
    for item in range(count):
        time.sleep(1e-4)  # others get their turn while an item is taken
        yield item


def make(batch: int, item: int) -> int:
    time.sleep(1e-4)
    return item


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_each_batch_goes_to_one_thread(num_workers: int, grouped: bool) -> None:
    how: Any = make
    if grouped:
        how = Groups(lambda batches: [lambda item=item: item for _, item in batches], 3)
    pipeline = Pipeline(slow_items(100), how, num_workers=num_workers)
    parts = in_threads(lambda: list(pipeline))
    assert sorted(item for part in parts for item in part) == list(range(100))
    assert all(part == sorted(part) for part in parts)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_one_thread_gets_the_error_and_the_others_go_on(num_workers: int) -> None:
    def fail(batch: int, item: int) -> int:
        if item == 20:
            raise KeyError(item)
        return make(batch, item)

    pipeline = Pipeline(slow_items(100), fail, num_workers=num_workers)
    seen: list[int] = []
    results = in_threads(lambda: seen.extend(pipeline))
    errors = [result for result in results if result is not None]
    assert [type(error) for error in errors] == [KeyError]
    assert errors[0].failed_batch == (0, 20)
    assert sorted(seen) == [i for i in range(100) if i != 20]


def test_closing_wakes_threads_that_wait_for_a_batch() -> None:
    may_end, begun = threading.Event(), threading.Event()

    def wait(batch: int, item: int) -> int:
        begun.set()
        may_end.wait(60)
        return item

    pipeline = Pipeline(range(10), wait, num_workers=1, closing=may_end.set)

    def close() -> None:
        begun.wait(60)
        pipeline.close()

    closer = threading.Thread(target=close)
    closer.start()
    assert in_threads(lambda: list(pipeline)) == [[]] * 4
    closer.join()
