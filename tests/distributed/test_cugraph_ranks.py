"""Loaders whose ranks sample one graph together, by a stand-in of pylibcugraph: no rank hangs; batches are right."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ENV
from torch_geometric.data import Data, HeteroData

import manyhop
import manyhop_pyg
from manyhop.errors import GraphError, InputError, RankError

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

NUM_NODES, NUM_EDGES = 60, 500


def install():
    import cugraph_stand_in
    import whole_graph_stand_in

    whole_graph_stand_in.install()
    cugraph_stand_in.install()
    return cugraph_stand_in


def make_data():
    generator = torch.Generator().manual_seed(3)
    return Data(
        x=torch.randn(NUM_NODES, 4, generator=generator),
        edge_index=torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=generator),
        edge_attr=torch.arange(NUM_EDGES),
    )


def right(data, batch):
    edges = data.edge_index[:, batch.e_id]
    return (
        torch.equal(batch.n_id[batch.edge_index], edges)
        and torch.equal(batch.x, data.x[batch.n_id])
        and torch.equal(batch.edge_attr, batch.e_id)
        and sum(batch.num_sampled_nodes) == batch.num_nodes
    )


def load(seeds_of_rank, distributed, epochs=2):
    stand_in = install()
    rank, data = manyhop.init(timeout=100).rank, make_data()
    seeds = seeds_of_rank[rank] if not distributed else seeds_of_rank[0]
    options = {"input_nodes": torch.arange(seeds), "batch_size": 4, "num_neighbors": [3, 2], "seed": 1}
    options |= {"shuffle": True, "engine": "cugraph", "distributed": distributed}
    if distributed:
        options["rank_timeout"] = 100.0
    loader = manyhop_pyg.NeighborLoader(data, **options)
    loader._gpu.group_size = 2
    del stand_in.calls[:]
    batches = [batch for _ in range(epochs) for batch in loader]
    found = sorted(int(i) for batch in batches for i in batch.input_id)
    return all(right(data, b) for b in batches), len(batches), found, list(stand_in.calls), loader.placement.summary()


def test_ranks_with_different_numbers_of_seeds_end(launcher):
    results = launcher.run(load, [30, 9], False, env=ENV)
    for (ok, batches, found, _, placement), seeds in zip(results, [30, 9], strict=True):
        assert ok
        assert batches == 2 * -(-seeds // 4)
        assert found == sorted(2 * list(range(seeds)))
        assert "topology: distributed" in placement
    (_, _, _, first, _), (_, _, _, second, _) = results
    assert first == 2 * [16, 14]  # two groups of 2 batches in each call
    assert second == 2 * [9, 0]  # rank 1 takes part without seeds


def test_ranks_that_share_batches(launcher):
    results = launcher.run(load, [30, 30], True, env=ENV)
    assert all(ok for ok, *_ in results)
    assert [batches for _, batches, *_ in results] == [8, 8]
    assert all(calls == [14, 14] or calls == [16, 16] for *_, calls, _ in results)


def several_loaders():
    install()
    rank, data = manyhop.init(timeout=100).rank, make_data()
    options = {"batch_size": 5, "engine": "cugraph", "seed": 1}
    nodes = manyhop_pyg.NeighborLoader(data, [2, 2], input_nodes=torch.arange(40 if rank else 10), **options)
    links = manyhop_pyg.LinkNeighborLoader(
        data, [3], edge_label_index=data.edge_index[:, : 20 if rank else 35], neg_sampling="binary", **options
    )
    batches = 0
    # The ranks take batches of the two in different orders.
    for loader in (nodes, links) if rank else (links, nodes):
        for batch in loader:
            batches += right(data, batch)
    again = manyhop_pyg.NeighborLoader(data, [2, 2], input_nodes=torch.arange(7), **options)
    same = again._gpu.memory._graph is nodes._gpu.memory._graph
    return batches, sum(right(data, b) for b in again), same


def test_ranks_take_loaders_in_any_order(launcher):
    assert launcher.run(several_loaders, env=ENV) == [(2 + 7, 2, True), (8 + 4, 2, True)]


def hetero():
    install()
    rank = manyhop.init(timeout=100).rank
    rng = np.random.default_rng(0)
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(30, 3), torch.randn(20, 3)
    data["a"].num_nodes, data["b"].num_nodes = 30, 20
    for t, (m, n) in {("a", "to", "b"): (30, 20), ("b", "to", "a"): (20, 30), ("a", "in", "a"): (30, 30)}.items():
        pairs = np.stack([rng.integers(0, m, 80), rng.integers(0, n, 80)])
        data[t].edge_index, data[t].w = torch.from_numpy(pairs), torch.rand(80)
    loader = manyhop_pyg.NeighborLoader(
        data, [2, 2], input_nodes=("a", torch.arange(12 + rank)), batch_size=3, weight_attr="w", engine="cugraph"
    )
    checks = []
    for batch in loader:
        for t in data.edge_types:
            ends = torch.stack([batch[t[0]].n_id[batch[t].edge_index[0]], batch[t[2]].n_id[batch[t].edge_index[1]]])
            checks.append(torch.equal(ends, data[t].edge_index[:, batch[t].e_id]))
    return all(checks), len(checks)


def test_types_and_weights(launcher):
    assert launcher.run(hetero, env=ENV) == [(True, 12), (True, 15)]


def fail():
    from manyhop_cugraph.scheduler import Scheduler

    install()
    world, data, errors = manyhop.init(timeout=100), make_data(), []

    def load(**options):
        options = {"input_nodes": torch.arange(8), "batch_size": 2, "engine": "cugraph"} | options
        return manyhop_pyg.NeighborLoader(data, [2], **options)

    links = {"edge_label_index": data.edge_index, "engine": "cugraph", "exclude_true_negatives": True}
    for call in (
        lambda: load().batch([1, 2]),
        lambda: load(engine="dgl"),
        lambda: load(device="cpu"),
        lambda: manyhop_pyg.LinkNeighborLoader(data, [2], **links),
    ):
        try:
            call()
        except InputError as error:
            errors.append(str(error))
    short = Scheduler(timeout=1.0)
    if world.rank == 0:
        try:
            short.drain()
        except RankError as error:
            errors.append(str(error))
    return errors


def test_errors(launcher):
    results = launcher.run(fail, env=ENV)
    for errors in results:
        expected = ["a single batch", "got 'dgl'", "got one on the CPU", "exclude_true_negatives"]
        for error, words in zip(errors, expected, strict=False):
            assert words in error
    assert "within 1 s of each other" in results[0][4]


@pytest.fixture
def stand_in(monkeypatch):
    import cugraph_stand_in
    import whole_graph_stand_in

    monkeypatch.setitem(sys.modules, "pylibcugraph", None)
    for name in ("manyhop.loading.pipeline.gpu", "manyhop.sampling.gpu.edges"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("GPUSampler", "GPUEdgeSampler"):
        monkeypatch.setitem(vars(manyhop.sampling), name, None)
    whole_graph_stand_in.install(monkeypatch.setattr)
    cugraph_stand_in.install(monkeypatch.setattr)
    return cugraph_stand_in


@pytest.mark.parametrize("distributed", [False, True])
def test_one_rank(stand_in, distributed):
    data = make_data()
    loader = manyhop_pyg.NeighborLoader(data, [3, 2], batch_size=7, engine="cugraph", distributed=distributed)
    assert all(right(data, batch) for batch in loader)


def test_a_call_has_room_for_the_next_group(stand_in, monkeypatch):
    from manyhop_cugraph import engine

    monkeypatch.setattr(engine, "EDGES_PER_CALL", 9 * 7 * (3 + 6))
    data = make_data()
    loader = manyhop_pyg.NeighborLoader(data, [3, 2], batch_size=7, engine="cugraph")  # 9 batches, the last of 4
    del stand_in.calls[:]
    assert sum(right(data, batch) for batch in loader) == 9
    assert stand_in.calls == [2 * 4 * 7, 4]


def load_dgl():
    import manyhop_dgl
    from manyhop_dgl.loader import loader as loaders

    stand_in = install()
    loaders.DataLoader._samples_on_gpu, loaders.check_engine = lambda self: True, lambda *_: None
    rank, data = manyhop.init(timeout=100).rank, make_data()
    graph = manyhop_dgl.Graph(tuple(data.edge_index), NUM_NODES)
    graph.ndata["x"] = data.x
    sampler = manyhop_dgl.NeighborSampler([3, 2], prefetch_node_feats=["x"])
    loader = manyhop_dgl.DataLoader(
        graph, torch.arange(20 - 7 * rank), sampler, output="tensors", batch_size=5, engine="cugraph"
    )
    checks = []
    for batch in loader:
        checks.append(torch.equal(batch.node_features["x"], data.x[batch.input_nodes]))
        for block in batch.blocks:
            col = torch.repeat_interleave(torch.diff(block.indptr))
            ends = torch.stack([batch.input_nodes[block.indices], batch.input_nodes[col]])
            checks.append(torch.equal(ends, data.edge_index[:, block.edge_ids]))
    seeds = list(stand_in.calls)
    with pytest.raises(InputError, match="got LaborSpec"):
        manyhop_dgl.DataLoader(graph, torch.arange(20), manyhop_dgl.LaborSampler([3, 2]), engine="cugraph")
    return all(checks), len(checks), loader.placement.topology.place, seeds


def test_loaders_of_dgl(launcher):
    first, second = launcher.run(load_dgl, env=ENV)
    assert first == (True, 4 * 3, "distributed", [20, 20])  # to get ready, and the batches
    assert second == (True, 3 * 3, "distributed", [13, 13])


def load_parts(distributed):
    install()
    world, data = manyhop.init(timeout=100), make_data()
    mine = slice(0, 120) if world.rank == 0 else slice(120, NUM_EDGES)
    edges, features = manyhop_pyg.GraphStore(placement="distributed"), manyhop_pyg.FeatureStore()
    row, col = data.edge_index[:, mine]
    edges.put_edge_index((row, col), edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    options = {"input_nodes": torch.arange(50), "batch_size": 8, "seed": 1, "distributed": distributed}
    loader = manyhop_pyg.NeighborLoader((features, edges), [3, -1], **options)
    checks = []
    for batch in loader:
        checks.append(torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id]))
        checks.append(torch.equal(batch.x, data.x[batch.n_id]))
    try:
        loader.node_sampler.engine.sample(None)
    except GraphError as error:
        return all(checks), len(checks), loader.placement.topology.place, str(error)


@pytest.mark.parametrize("distributed", [False, True])
def test_each_rank_has_a_part_of_the_edges(launcher, distributed):
    results = launcher.run(load_parts, distributed, env=ENV)
    for (ok, checks, place, error), mine in zip(results, (120, 380), strict=True):
        assert ok
        assert checks == 2 * (4 if distributed else 7)
        assert place == "distributed"
        assert f"got {mine} of them" in error


def interleave(distributed):
    stand_in = install()
    rank, data = manyhop.init(timeout=100).rank, make_data()
    options = {"engine": "cugraph", "seed": 1, "distributed": distributed, "num_neighbors": [3, 2]}
    train = manyhop_pyg.NeighborLoader(data, input_nodes=torch.arange(60), batch_size=3, **options)
    validate = manyhop_pyg.NeighborLoader(data, input_nodes=torch.arange(40 + 4 * rank), batch_size=4, **options)
    for loader in (train, validate):
        loader._gpu.group_size = 2
    del stand_in.calls[:]
    checks = [right(data, batch) for both in zip(train, validate, strict=False) for batch in both]
    return all(checks), len(checks), list(stand_in.calls)


def test_loaders_share_calls(launcher):
    results = launcher.run(interleave, False, env=ENV)
    assert [(ok, batches) for ok, batches, _ in results] == [(True, 2 * 10), (True, 2 * 11)]
    (_, _, first), (_, _, second) = results
    assert len(first) == len(second) == 6  # for 6 groups of each loader
    assert first[:2] == second[:2] == [12, 16]  # two groups of the first loader; both of the second
    assert first[2] == second[2] == 2 * (6 + 4), "groups of both loaders"


def leave():
    install()
    rank, data = manyhop.init(timeout=100).rank, make_data()
    options = {"batch_size": 4, "seed": 1, "engine": "cugraph", "distributed": True, "rank_timeout": 20.0}
    loader = manyhop_pyg.NeighborLoader(data, [2], input_nodes=torch.arange(60), **options)
    loader._gpu.group_size = 1
    batches = iter(loader)
    next(batches)
    if rank == 1:
        return ""
    try:
        return sum(1 for _ in batches)
    except RankError as error:
        return str(error)


def test_a_rank_that_leaves_is_an_error_on_the_others(launcher):
    error, _ = launcher.run(leave, env=ENV)
    assert "Expected all ranks to sample with cuGraph within 20 s of each other" in error
    assert "got nothing from rank 1 after a sample by fanouts [2]" in error


def leave_together():
    stand_in = install()
    manyhop.init(timeout=100)
    data = make_data()
    options = {"batch_size": 4, "seed": 1, "engine": "cugraph", "distributed": True, "rank_timeout": 100.0}
    loader = manyhop_pyg.NeighborLoader(data, [2], input_nodes=torch.arange(60), **options)
    loader._gpu.group_size = 1
    del stand_in.calls[:]
    found = 0
    for _ in range(2):
        for _, batch in zip(range(3), loader, strict=False):
            found += right(data, batch)
    return found, sum(right(data, batch) for batch in loader), list(stand_in.calls)


def test_ranks_that_leave_together_go_on(launcher):
    for found, rest, calls in launcher.run(leave_together, env=ENV):
        assert (found, rest) == (6, 8)
        assert calls[:4] == [8] * 4  # what was submitted ahead and never needed was not sampled
