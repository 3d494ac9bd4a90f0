"""Loaders over tensors that are spread over nodes: the batches of one process, in order, and nobody left waiting."""

import time

import pytest
import torch
from faults import fail_in_step
from rank_loaders import digest, graph, typed_graph

import manyhop
from manyhop.errors import InputError, RankError
from manyhop_pyg import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler, NodeLoader

FOUR = [0, 0, 1, 1]


def part_of(tensor, rank, world_size):
    begin, end = (len(tensor) * r // world_size for r in (rank, rank + 1))
    return tensor[begin:end], slice(begin, end)


def put(features, edges, name, group, tensor, parts):
    if parts is None:
        features.put_tensor(tensor, group_name=group, attr_name=name, index=None)
    else:
        part, index = part_of(tensor, *parts)
        features.put_tensor(part, group_name=group, attr_name=name, index=index)


def stores(typed, placement="process", parts=None, **kwargs):
    """The graph of ``rank_loaders`` as stores; ``parts``: rank and number of ranks, if each puts a part."""
    data = typed_graph() if typed else graph()
    features = FeatureStore(placement=placement, **kwargs)
    edges = GraphStore(placement="process" if parts is None else "shared")
    for store in data.node_stores if typed else [data._store]:
        for name, value in store.items():
            if name not in ("edge_index", "edge_attr", "weight"):
                put(features, edges, name, store._key, value, parts)
    if not typed:
        put(features, edges, "edge_attr", None, data.edge_attr, parts)
    for store in data.edge_stores:
        kind = store._key
        size = (data[kind[0]].num_nodes, data[kind[2]].num_nodes) if typed else (data.num_nodes, data.num_nodes)
        edge_index = store.edge_index
        if parts is not None:
            edge_index = torch.stack([part_of(row, *parts)[0] for row in edge_index])
        edges.put_edge_index(edge_index, edge_type=kind, layout="coo", size=size)
    return features, edges


def make(kind, placement="process", parts=None, store={}, batch_size=8, **kwargs):  # noqa: B006
    if kind == "hetero":
        data = stores(True, placement, parts, **store)
        return NeighborLoader(data, [3, 2], "paper", batch_size=9, shuffle=True, seed=5, **kwargs)
    data = stores(False, placement, parts, **store)
    if kind == "node":
        return NeighborLoader(data, [3, 2], batch_size=batch_size, shuffle=True, seed=5, **kwargs)
    pairs = graph().edge_index[:, :61]
    return LinkNeighborLoader(data, [3, 2], pairs, neg_sampling="binary", batch_size=8, shuffle=True, seed=5, **kwargs)


def run_epochs(kind, workers, in_parts, cache, kwargs):
    world = manyhop.init()
    parts = (world.rank, world.world_size) if in_parts else None
    loader = make(
        kind, "sharded", parts, {"cache": cache, "rank_timeout": 100.0}, distributed=True, num_workers=workers,
        rank_timeout=100.0, **kwargs,
    )  # fmt: skip
    epochs = [[digest(batch) for batch in loader] for _ in range(2)]
    of_epochs = loader.stats()
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    return epochs, of_epochs, loader.stats(of_epochs).exchanged_bytes


@pytest.mark.parametrize(
    ("kind", "node_of", "workers", "in_parts", "cache", "kwargs"),
    [
        ("node", [0, 1], 0, True, 0.0, {}),
        ("node", FOUR, 3, True, 0.2, {}),
        ("node", FOUR, 2, False, 400, {"filter_per_worker": False}),
        ("link", FOUR, 2, False, 0.1, {}),
        ("hetero", [0, 1], 2, True, 300, {"persistent_workers": True}),
        ("hetero", [0, 1, 1], 0, False, 0.05, {}),
    ],
)
def test_batches_are_those_of_one_process(launcher, two_nodes, kind, node_of, workers, in_parts, cache, kwargs):
    alone = make(kind)
    expected = [[digest(batch) for batch in alone] for _ in range(2)]
    seen = launcher.run(run_epochs, kind, workers, in_parts, cache, kwargs, node_of=node_of, nodes=two_nodes)
    W = len(node_of)
    for epoch in range(2):
        got = [seen[i % W][0][epoch][i // W] for i in range(len(expected[epoch]))]
        assert got == expected[epoch]
    for epochs, stats, of_one in seen:
        assert stats.exchanged_bytes > 0
        assert of_one <= 2.5 * stats.exchanged_bytes / (2 * len(epochs[0]))  # what is made ahead does not count
        assert (stats.cache_hit_rate > 0.02) == (cache > 0)


def without_times():
    """Times may come with each call of the sampler, so a cache cannot be filled when the loader is made."""
    manyhop.init()
    data = graph()
    data.edge_time = torch.arange(data.num_edges)
    sampler = NeighborSampler(data, [2], time_attr="edge_time")
    options = {"distributed": True, "rank_timeout": 100.0}
    loader = NodeLoader(stores(False, "sharded", cache=0.1, rank_timeout=100.0), sampler, batch_size=8, **options)
    try:
        next(iter(loader))
    except (InputError, RankError) as error:
        return str(error)


def test_a_cache_is_not_filled_without_times(launcher):
    assert any("pass input_time" in message for message in launcher.run(without_times, node_of=[0, 1]))


def one_rank_alone():
    manyhop.init()
    data = stores(False, "sharded")
    try:
        NeighborLoader(data, [2], batch_size=8)
    except InputError as error:
        return str(error)


def test_a_loader_of_one_rank_is_refused(launcher):
    for message in launcher.run(one_rank_alone, node_of=[0, 1]):
        assert "Expected distributed=True" in message


def test_one_process_needs_no_exchange():
    for placement in ("shared", "sharded"):
        loader, expected = make("node", placement), make("node")
        assert [digest(b) for b in loader] == [digest(b) for b in expected]
        assert loader.stats().exchanged_bytes == 0
    manyhop.shutdown()


def leave_and_go_on(workers, batches):
    world = manyhop.init()
    loader = make("node", "sharded", distributed=True, num_workers=workers, rank_timeout=100.0)
    for number, _ in enumerate(loader):
        if number == batches[world.rank]:
            break
        time.sleep(0.02 * world.rank)
    began = time.monotonic()
    try:
        second = [digest(batch) for batch in loader]
    except RankError as error:
        return str(error), error.ranks, time.monotonic() - began
    return second


@pytest.mark.parametrize("workers", [0, 2])
def test_all_ranks_may_leave_an_epoch_at_the_same_batch(launcher, workers):
    loader = make("node")
    iter(loader)
    expected = [digest(batch) for batch in loader]
    seen = launcher.run(leave_and_go_on, workers, [1, 1], node_of=[0, 1])
    assert [seen[i % 2][i // 2] for i in range(len(expected))] == expected


def fail_in(where, workers):
    world = manyhop.init()
    rank = world.rank

    def step(value, here):
        if where == here and rank == 1:
            calls.append(here)
            if len(calls) == 3:
                raise KeyError("wrong")
        return value

    def transform(batch):
        return step(batch, "transform")

    def after_sampling(out):
        return step(out, "sampling")

    calls = []
    hooks = {"transform": transform, "transform_sampler_output": after_sampling}
    how = {"distributed": True, "num_workers": workers, "rank_timeout": 100.0, "batch_size": 2}
    loader = make("node", "sharded", store={"cache": 0.0}, **how, **hooks)
    began = time.monotonic()
    try:
        for _ in loader:
            time.sleep(0.01)
    except (KeyError, RankError) as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return None


@pytest.mark.parametrize(("where", "workers"), [("sampling", 0), ("sampling", 2), ("transform", 2)])
def test_a_batch_that_fails_is_an_error_on_all_ranks(launcher, where, workers):
    seen = launcher.run(fail_in, where, workers, node_of=[0, 1])
    assert seen[1][0] == "KeyError"
    assert seen[0][0] in ("RankError", "ExchangeEndedError")
    assert "rank 1" in seen[0][1]
    assert seen[0][2] < 60, "before any timeout"


def step_wrongly(what, timeout=100.0, workers=0):
    """Rank 1's step fails or takes too long, or it breaks out of its loop too early."""
    rank = manyhop.init().rank
    loader = make("node", "sharded", distributed=True, rank_timeout=timeout, batch_size=2, num_workers=workers)
    for number, _ in enumerate(loader):
        if number == 2 and rank == 1:
            if what == "sleep":
                time.sleep(1000)
            if fail_in_step(what):
                return
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_that_an_exchange_waits_for_in_vain_is_named(launcher, workers):
    ranks = launcher.start(step_wrongly, "sleep", 8.0, workers, node_of=[0, 1])
    ranks.wait_for_exit(0)
    ranks.kill(1)
    error = ranks.wait()[0].error
    assert error.startswith("RankError: ")
    assert "rank 1 did not come" in error
    assert "Last known of rank 1: 3 batches of epoch 0 received, in its step at test_exchange_loaders.py:" in error
    assert "pass a larger rank_timeout=" in error
