"""Which threads of pipelines are there; shared by the tests of pipelines."""

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


def ours() -> list[threading.Thread]:
    """Threads of pipelines; those that share the copying of a gather stay, by design."""
    names = [(t, t.name) for t in threading.enumerate()]
    return [t for t, name in names if name.startswith("manyhop") and not name.startswith("manyhop-gather")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert wait_until(lambda: not ours()), ours()  # of tests before
    yield
    assert wait_until(lambda: not ours()), ours()


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    assert wait_until(lambda: not ours())
    gc.disable()
    yield
    gc.enable()
