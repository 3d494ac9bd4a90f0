"""Pools of threads: kept, shared, dropped, and in forked children."""

import os
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Iterator

import pytest
import torch
from pipeline_threads import no_thread_is_left, ours, wait_until  # noqa: F401  # a fixture

from manyhop.errors import InputError
from manyhop.loading.pipeline import Pipeline, WorkerPool, end_workers


def square(batch: int, item: int) -> tuple[int, int]:
    return batch, item * item


def test_a_pool_keeps_its_threads_over_epochs() -> None:
    calls: list[int] = []
    pool = WorkerPool(2, calls.append)
    assert not ours()
    threads = set()
    for epoch in range(4):
        threads |= set(Pipeline(range(10), lambda b, i: threading.get_ident(), num_workers=2, pool=pool, epoch=epoch))
        assert len(ours()) == 2
    for _ in Pipeline(range(1000), square, num_workers=2, pool=pool):
        break
    assert list(Pipeline(range(3), square, num_workers=2, pool=pool)) == [(i, i * i) for i in range(3)]
    assert len(threads) <= 2
    pool.close()
    assert not ours()
    assert sorted(calls) == [0, 1]


def test_a_pool_whose_threads_were_ended_starts_others() -> None:
    calls: list[int] = []
    pool = WorkerPool(2, calls.append)
    assert pool.workers is None
    pipeline = Pipeline(range(1000), square, num_workers=2, pool=pool)
    assert next(pipeline) == (0, 0)
    assert pipeline.workers is pool.workers is not None
    pipeline.close()
    end_workers([pool.workers])
    assert not ours()
    assert list(Pipeline(range(3), square, num_workers=2, pool=pool)) == [(i, i * i) for i in range(3)]
    pool.close()
    assert sorted(calls) == [0, 0, 1, 1]


def test_two_pipelines_share_a_pool() -> None:
    pool = WorkerPool(2)
    a, b = (Pipeline(range(20), square, num_workers=2, pool=pool) for _ in range(2))
    assert list(zip(a, b, strict=True)) == [((i, i * i),) * 2 for i in range(20)]
    pool.close()


def test_dropping_the_owner_of_a_pool_ends_its_threads() -> None:
    class Loader:
        def __init__(self) -> None:
            self.pool = WorkerPool(2)

        def make(self, batch: int, item: int) -> int:
            return item

        def epoch(self) -> Pipeline[int, int]:
            return Pipeline(range(10), self.make, num_workers=2, pool=self.pool)

    loader = Loader()
    assert list(loader.epoch()) == list(loader.epoch()) == list(range(10))
    gone = weakref.ref(loader)
    del loader
    # The threads must not keep the last batch's work, and with it the loader, alive: no garbage collection here.
    assert wait_until(lambda: gone() is None)
    assert wait_until(lambda: not ours())


def test_worker_threads_do_not_start_teams_of_their_own() -> None:
    before = torch.get_num_threads()
    assert set(Pipeline(range(9), lambda b, i: torch.get_num_threads(), num_workers=2)) == {1}
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("own_pool", [True, False])
def test_a_forked_child_goes_on_with_threads_of_its_own(own_pool: bool) -> None:
    def make(batch: int, item: int) -> int:
        time.sleep(0.01)
        return item

    pool = None if own_pool else WorkerPool(2)
    pipeline = Pipeline(range(20), make, num_workers=2, pool=pool, timeout=60)
    assert [next(pipeline) for _ in range(5)] == list(range(5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
        pid = os.fork()
    if pid == 0:
        os._exit(0 if list(pipeline) == list(range(5, 20)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(pipeline) == list(range(5, 20))
    if pool is not None:
        pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_knows_what_failed_before_a_thread_came_to_it() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise KeyError("no more")

    pipeline = Pipeline(items(), lambda batch, item: time.sleep(0.2) or item, num_workers=1, timeout=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
        pid = os.fork()
    if pid == 0:
        try:
            list(pipeline)
        except KeyError:
            os._exit(0)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    pipeline.close()


def test_a_pool_needs_threads() -> None:
    with pytest.raises(InputError, match="num_workers of at least 1"):
        WorkerPool(0)


def test_a_pool_is_pickled_as_its_recipe() -> None:
    copy = pickle.loads(pickle.dumps(WorkerPool(2, print)))
    assert (copy.num_workers, copy._args) == (2, (2, print))
