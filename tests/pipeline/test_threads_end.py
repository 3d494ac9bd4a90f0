"""Threads end with their iterator, without the garbage collector: after an epoch, a break and errors that are kept."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pipeline_threads import ours, wait_until

from manyhop.errors import RankError
from manyhop.loading.pipeline import Groups, Pipeline

EDGES = torch.arange(60).repeat(2), torch.arange(60).roll(1).repeat(2)


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


def pyg(fail: Switch, **options: Any) -> Any:
    data = pytest.importorskip("torch_geometric.data").Data(edge_index=torch.stack(EDGES), x=torch.rand(60, 2))
    manyhop_pyg = pytest.importorskip("manyhop_pyg")
    loader = manyhop_pyg.NeighborLoader(data, [2], batch_size=1, transform=fail, num_workers=2, **options)
    return iter(loader)


def pyg_in_caller(fail: Switch) -> Any:
    return pyg(fail, filter_per_worker=False)


def dgl(fail: Switch) -> Any:
    manyhop_dgl = pytest.importorskip("manyhop_dgl")  # with which any dgl can be imported
    graph = pytest.importorskip("dgl").graph(EDGES)

    class Sampler(manyhop_dgl.NeighborSampler):  # type: ignore[misc, name-defined]
        def sample(self, *args: Any, **kwargs: Any) -> Any:
            return fail(super().sample(*args, **kwargs))

    return iter(manyhop_dgl.DataLoader(graph, torch.arange(60), Sampler([2]), batch_size=1, num_workers=2))


def graphbolt(fail: Switch) -> Any:
    gb = pytest.importorskip("manyhop_dgl.graphbolt")
    graph = gb.fused_csc_sampling_graph(torch.arange(0, 121, 2), EDGES[0])
    items = gb.ItemSet(torch.arange(60), names="seeds")
    pipe = gb.ItemSampler(items, batch_size=1).sample_neighbor(graph, [2]).transform(fail)
    return iter(gb.DataLoader(pipe, num_workers=2, persistent_workers=False))


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    assert wait_until(lambda: not ours())
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("make", [made, finished, grouped, failing_items, pyg, pyg_in_caller, dgl, graphbolt])
@pytest.mark.parametrize("end", ["epoch", "break", "error"])
def test_threads_end_with_the_iterator(make: Any, end: str, collector_off: None) -> None:
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


def test_an_error_of_ranks_keeps_no_iterator(collector_off: None) -> None:
    def make(batch: int, item: int) -> int:
        raise RankError("rank 1 failed", ranks=(1,))

    pipeline = Pipeline(range(5), make, num_workers=1)
    with contextlib.suppress(RankError):
        next(pipeline)
    gone = weakref.ref(pipeline)
    del pipeline
    assert gone() is None
