"""NeighborLoader and HGTLoader on typed data; how many neighbours of a node count in HGTLoader."""

import warnings

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from helpers_pyg import all_same, check_hetero_batch
from torch_geometric.data import HeteroData
from torch_geometric.sampler.base import NumNeighbors

from manyhop.errors import InputError
from manyhop_pyg import (
    FeatureStore,
    GraphStore,
    HGTLoader,
    HGTSampler,
    LinkLoader,
    NeighborLoader,
    NeighborSampler,
    NodeLoader,
)

WRITES = ("author", "writes", "paper")


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_every_row_is_that_of_the_graph(hetero, disjoint, subgraph_type):
    loader = NeighborLoader(
        hetero, [3, 2], "paper", batch_size=7, shuffle=True, disjoint=disjoint, subgraph_type=subgraph_type
    )
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    for batch in loader:
        check_hetero_batch(batch, hetero)
        paper = batch["paper"]
        assert torch.equal(paper.n_id[: paper.batch_size], paper.input_id)
        assert "input_id" not in batch["author"]
        assert batch.name == "typed"
        for t in hetero.node_types:
            assert ("num_sampled_nodes" in batch[t]) == (subgraph_type == "directional")
            if disjoint:
                assert batch[t].batch.numel() == batch[t].num_nodes
        for src, _, dst in hetero.edge_types if disjoint else ():
            row, col = batch[src, _, dst].edge_index
            assert torch.equal(batch[src].batch[row], batch[dst].batch[col])


def test_types_without_samples_are_there(hetero):
    batch = next(iter(NeighborLoader(hetero, [3, 2], ("venue", torch.tensor([1])), batch_size=1)))
    assert batch["venue"].num_sampled_nodes == [1, 0, 0]
    assert batch["paper"].num_sampled_nodes == [0, 0, 0]
    assert batch["paper"].n_id.shape == (0,)
    assert batch["paper"].x.shape == (0, 3)
    assert batch["field"].num_nodes == 0
    assert batch[WRITES].edge_index.shape == (2, 0)
    assert batch[WRITES].num_sampled_edges == [0, 0]
    assert batch[WRITES].edge_attr.shape == (0,)


def test_fanouts_by_edge_type(hetero):
    fanouts = {t: [2, 1] for t in hetero.edge_types}
    fanouts[WRITES] = [0, 0]
    batch = next(iter(NeighborLoader(hetero, fanouts, "paper", batch_size=20)))
    assert batch[WRITES].num_edges == 0
    assert batch["paper", "cites", "paper"].num_edges > 0
    again = NeighborLoader(hetero, NumNeighbors({WRITES: [0, 0]}, default=[2, 1]), "paper", batch_size=20)
    batch = next(iter(again))
    assert batch[WRITES].num_edges == 0
    assert len(again.node_sampler.num_neighbors) == 2


def test_bidirectional(hetero):
    with pytest.warns(UserWarning, match="does not seem to have a reverse edge type"):
        loader = NeighborLoader(hetero, [3, 2], "field", batch_size=2, subgraph_type="bidirectional")
    for batch in loader:
        forth = set(zip(*batch[WRITES].edge_index.tolist(), strict=True))
        back = set(zip(*batch["paper", "rev_writes", "author"].edge_index.flip(0).tolist(), strict=True))
        assert forth == back
        cites = set(zip(*batch["paper", "cites", "paper"].edge_index.tolist(), strict=True))
        assert cites == {(b, a) for a, b in cites}
        assert "edge_attr" not in batch[WRITES]  # an edge may come from the other type
        assert "e_id" not in batch[WRITES]


def test_weights_of_some_types(hetero):
    store = hetero["paper", "cites", "paper"]
    store.edge_weight[::2] = 0
    for batch in NeighborLoader(hetero, [3, 3], "paper", batch_size=7, weight_attr="edge_weight"):
        check_hetero_batch(batch, hetero)
        assert (batch["paper", "cites", "paper"].edge_weight > 0).all()


@pytest.mark.parametrize("level", ["node", "edge"])
def test_times(hetero, level):
    g = torch.Generator().manual_seed(3)
    if level == "node":
        hetero["paper"].time = torch.randint(0, 9, (40,), generator=g)
        hetero["author"].time = torch.randint(0, 9, (30,), generator=g)
    else:
        for t in (WRITES, ("paper", "cites", "paper")):
            hetero[t].time = torch.randint(0, 9, (hetero[t].num_edges,), generator=g)
    input_time = torch.randint(0, 9, (40,), generator=g)
    loader = NeighborLoader(hetero, [3, 3], "paper", input_time=input_time, time_attr="time", batch_size=7)
    for batch in loader:
        check_hetero_batch(batch, hetero)
        limit = batch["paper"].seed_time
        assert torch.equal(limit, input_time[batch["paper"].input_id])
        for src, rel, dst in hetero.edge_types:
            row, col = batch[src, rel, dst].edge_index
            if level == "node" and "time" in hetero[src]:
                assert (batch[src].time[row] <= limit[batch[dst].batch[col]]).all()
            if level == "edge" and "time" in hetero[src, rel, dst]:
                assert (batch[src, rel, dst].time <= limit[batch[dst].batch[col]]).all()


def test_backward(hetero):
    fanouts = {t: [2, 2] for t in hetero.edge_types}
    sampler = NeighborSampler(hetero, fanouts, sample_direction="backward")
    batch = next(iter(NodeLoader(hetero, sampler, "author", batch_size=5)))
    check_hetero_batch(batch, hetero)
    assert batch[WRITES].num_edges > 0
    assert (batch[WRITES].edge_index[0, : batch[WRITES].num_sampled_edges[0]] < 5).all()


def test_int32_edges(hetero):
    for t in hetero.edge_types:
        hetero[t].edge_index = hetero[t].edge_index.int()
    batch = next(iter(NeighborLoader(hetero, [3, 2], "paper", batch_size=7)))
    assert batch["paper"].n_id.dtype == batch[WRITES].edge_index.dtype == torch.int32
    check_hetero_batch(batch, hetero)


def test_hgt(hetero):
    loader = HGTLoader(hetero, [4, 4], "paper", batch_size=5, shuffle=True, seed=1)
    assert isinstance(loader, torch_geometric.loader.HGTLoader)
    for batch in loader:
        check_hetero_batch(batch, hetero)
        paper = batch["paper"]
        assert torch.equal(paper.n_id[: paper.batch_size], paper.input_id)
        assert paper.num_nodes <= paper.batch_size + 8
        assert batch["author"].num_nodes <= 8
        assert "num_sampled_nodes" not in paper
    again = HGTLoader(hetero, {t: [4, 4] for t in hetero.node_types}, "paper", batch_size=5, shuffle=True, seed=1,
                      num_workers=2)  # fmt: skip
    assert all_same(list(HGTLoader(hetero, [4, 4], "paper", batch_size=5, shuffle=True, seed=1)), list(again))


def test_hgt_refuses_links_times_and_untyped_data(hetero, data):
    sampler = HGTSampler(hetero, [4])
    with pytest.raises(ValueError, match="use LinkNeighborLoader"):
        LinkLoader(hetero, sampler, WRITES)([0])
    with pytest.raises(ValueError, match="has no times"):
        HGTLoader(hetero, [4], "paper", input_time=torch.zeros(40))
    with pytest.raises(ValueError, match="node and edge types"):
        HGTLoader(data, [4], "paper")
    with pytest.raises(ValueError, match="num_samples"):
        HGTLoader(hetero, {"paper": [4]}, "paper")


@pytest.mark.parametrize("fanouts", [[], [2, 2], {}])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_node_types_without_any_edge_type(fanouts, subgraph_type):
    data = HeteroData()
    data["a"].x, data["b"].x = torch.arange(4.0), torch.arange(3.0)
    loader = NeighborLoader(data, fanouts, input_nodes="a", batch_size=3, subgraph_type=subgraph_type)
    first, second = loader
    assert first["a"].n_id.tolist() == first["a"].x.tolist() == [0, 1, 2]
    assert second["a"].n_id.tolist() == [3]
    assert first["b"].n_id.tolist() == first.edge_types == []


WRITTEN, CITES = ("paper", "written", "author"), ("paper", "cites", "paper")


def hubs(n=600):
    """Papers of 300, 51, 50 and 49 authors, some of them twice; one that all papers cite, and random edges."""
    g = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(n).view(-1, 1), torch.arange(400).view(-1, 1)
    paper = torch.repeat_interleave(torch.arange(4), torch.tensor([300, 51, 50, 49]))
    author = torch.cat([torch.arange(280), torch.arange(20), torch.arange(51), torch.arange(50), torch.arange(49)])
    rest = torch.randint(4, n, (1500,), generator=g)
    paper, author = (
        torch.cat([paper, rest]),
        torch.cat([author, torch.arange(400), torch.randint(0, 400, (1100,), generator=g)]),
    )
    order = torch.randperm(paper.numel(), generator=g)
    data[WRITES].edge_index = torch.stack([author[order], paper[order]])
    data[WRITTEN].edge_index = torch.stack([paper, author])
    data[CITES].edge_index = torch.stack([torch.arange(n), torch.full((n,), 5)])
    for t in (WRITES, WRITTEN, CITES):
        data[t].edge_attr = torch.stack([data[t].edge_index[0], data[t].edge_index[1]], dim=1)
    return data


def everything(data, **kwargs):
    """One batch that has all nodes."""
    return next(iter(HGTLoader(data, [10_000] * 6, ("paper", None), batch_size=600, **kwargs)))


@pytest.mark.parametrize(("limit", "expected"), [({}, 50), ({"max_neighbors": 7}, 7), ({"max_neighbors": None}, None)])
def test_no_node_has_more_edges_of_a_type(limit, expected):
    data = hubs()
    batch = everything(data, seed=1, **limit)
    for t, store in zip(batch.edge_types, batch.edge_stores, strict=True):
        degree = torch.bincount(data[t].edge_index[1], minlength=data[t[2]].num_nodes)[batch[t[2]].n_id]
        got = torch.bincount(store.edge_index[1], minlength=degree.numel())
        assert torch.equal(got, degree if expected is None else degree.clamp(max=expected))
        ends = torch.stack([batch[t[0]].n_id[store.edge_index[0]], batch[t[2]].n_id[store.edge_index[1]]], dim=1)
        assert torch.equal(store.edge_attr, ends)
        assert torch.equal(data[t].edge_attr[store.e_id], ends)


def test_stores_give_the_same_batches():
    data = hubs()
    stores = FeatureStore(), GraphStore()
    for store in data.node_stores:
        stores[0][store._key, "x", None] = store.x
    for t, store in zip(data.edge_types, data.edge_stores, strict=True):
        stores[1][t, "coo", False, (data[t[0]].num_nodes, data[t[2]].num_nodes)] = tuple(store.edge_index)
    for t in data.edge_types:
        del data[t].edge_attr
    args = {"num_samples": [40, 40], "input_nodes": ("paper", torch.arange(40)), "batch_size": 8, "seed": 3}
    ours, theirs = list(HGTLoader(data, **args)), list(HGTLoader(stores, **args))
    for a, b in zip(ours, theirs, strict=True):
        for t in data.edge_types:
            assert torch.equal(a[t].edge_index, b[t].edge_index)
            assert torch.equal(a[t].e_id, b[t].e_id)
    again = list(HGTLoader(data, **args, num_workers=2))
    assert all_same(ours, again)


@pytest.mark.parametrize("limit", [0, -1, 1025, 2.5, "50", True])
def test_limits_that_make_no_sense(limit):
    for make in (HGTLoader, HGTSampler):
        args = (hubs(), [4], "paper") if make is HGTLoader else (hubs(), [4])
        with pytest.raises(InputError, match="Expected max_neighbors as an integer from 1 to 1024, got"):
            make(*args, max_neighbors=limit)


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="torch-sparse is not installed")
@pytest.mark.parametrize(("num_samples", "size"), [([0], 60), ([60, 60], 60), ([10_000] * 3, 600)])
def test_as_many_edges_as_in_pyg(num_samples, size):
    """On average, by type; exactly where all nodes are there."""
    data, seeds = hubs(), ("paper", torch.arange(size).repeat(8))
    for t in data.edge_types:
        del data[t].edge_attr  # PyG gives cut columns the ids of other edges
    ours = list(HGTLoader(data, num_samples, seeds, batch_size=size, seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        torch.manual_seed(0)
        theirs = list(torch_geometric.loader.HGTLoader(data, num_samples, seeds, batch_size=size))
    for t in data.edge_types:
        a, b = ([batch[t].edge_index[1] for batch in batches] for batches in (ours, theirs))
        mean, expected = (torch.tensor([x.numel() for x in batches], dtype=torch.float64) for batches in (a, b))
        spread = (mean.var(unbiased=True) + expected.var(unbiased=True)) / len(mean)
        assert (mean.mean() - expected.mean()).abs() <= 4.5 * spread.sqrt() + 1e-9, t
        most = [max((int(x.bincount().max()) for x in batches if x.numel()), default=0) for batches in (a, b)]
        assert max(most) <= 50
        if size == 600:
            assert most[0] == most[1]
            assert set(mean.tolist()) == set(expected.tolist())
