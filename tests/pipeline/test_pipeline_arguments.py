"""Statistics of a pipeline, and pools."""

import pickle
import time

import pytest

from manyhop.errors import InputError
from manyhop.loading.pipeline import Pipeline, Stats, WorkerPool


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stats_are_recorded(num_workers: int) -> None:
    stats = Stats(num_workers)

    def make(batch: int, item: int) -> int:
        start = time.perf_counter()
        time.sleep(0.002)
        stats.record(batch, "sample", start, time.perf_counter())
        stats.count(seeds=8, edges=100, nodes=50, gathered_bytes=1000)
        return item

    for _ in Pipeline(range(10), make, num_workers=num_workers, stats=stats):
        time.sleep(0.004)
    report = stats.report()
    assert (report.batches, report.seeds, report.edges, report.nodes, report.gathered_bytes) == (
        10,
        80,
        1000,
        500,
        10000,
    )
    assert report.sample_s >= 0.02
    assert report.step_s >= 0.04
    assert report.waited_s >= (0.02 if num_workers == 0 else 0.0)
    at = {(i.stage, i.batch): i for i in stats.intervals()}
    for batch in range(10):  # it waits until the batch is made, works on it, and asks for the next one
        sample, wait, step = (at[stage, batch] for stage in ("sample", "wait", "step"))
        assert sample.end <= wait.end <= step.start <= step.end - 0.004
        assert batch == 9 or step.end <= at["wait", batch + 1].start


def test_a_pool_needs_threads() -> None:
    with pytest.raises(InputError, match="at least 1"):
        WorkerPool(0)


def test_a_pool_is_pickled_as_its_recipe() -> None:
    pool = WorkerPool(2, print)
    copy = pickle.loads(pickle.dumps(pool))
    assert (copy.num_workers, copy._args) == (2, (2, print))
