"""Threads end with their iterator, without the garbage collector: after an epoch, a break and errors that are kept."""

import contextlib
import weakref
from typing import Any

import pytest
from pipeline_threads import collector_off, ours, wait_until  # noqa: F401  # a fixture

from manyhop.errors import RankError
from manyhop.loading.pipeline import Groups, Pipeline


class Switch:
    """A function of the user, which fails from some point on."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self, value: Any) -> Any:
        if self.on:
            raise ValueError("of the user")
        return value


def made(fail: Switch) -> Pipeline[int, int]:
    return Pipeline(range(1000), lambda batch, item: fail(item), num_workers=2)


def finished(fail: Switch) -> Pipeline[int, int]:
    return Pipeline(range(1000), lambda batch, item: item, finish=lambda batch, item: fail(item), num_workers=2)


def grouped(fail: Switch) -> Pipeline[int, int]:
    def begin(batches: Any) -> Any:
        return [lambda item=item: fail(item) for _, item in batches]

    return Pipeline(range(1000), Groups(begin, 3), num_workers=2)


def failing_items(fail: Switch) -> Pipeline[int, int]:
    return Pipeline(map(fail, range(1000)), lambda batch, item: item, num_workers=2)


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("make", [made, finished, grouped, failing_items])
@pytest.mark.parametrize("end", ["epoch", "break", "error"])
def test_threads_end_with_the_iterator(make: Any, end: str) -> None:
    fail = Switch()
    iterator = make(fail)
    kept = None
    try:
        next(iterator)
        if end == "epoch":
            for _ in iterator:
                pass
        fail.on = end == "error"
        while fail.on:
            next(iterator)
    except ValueError as error:
        kept = error  # in this frame, to which its traceback leads
    assert (kept is not None) == (end == "error")
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None or make is failing_items  # such an error ends the iterator
    assert wait_until(lambda: not ours(), 10)


@pytest.mark.usefixtures("collector_off")
def test_an_error_of_ranks_keeps_no_iterator() -> None:
    def make(batch: int, item: int) -> int:
        raise RankError("rank 1 failed", ranks=(1,))

    pipeline = Pipeline(range(5), make, num_workers=1)
    with contextlib.suppress(RankError):
        next(pipeline)
    gone = weakref.ref(pipeline)
    del pipeline
    assert gone() is None
