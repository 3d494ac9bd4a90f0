"""How many neighbours of a node count in HGTLoader: PyG's 50, by default."""

import warnings

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from helpers_pyg import all_same
from torch_geometric.data import HeteroData

from manyhop.errors import InputError
from manyhop_pyg import FeatureStore, GraphStore, HGTLoader, HGTSampler

WRITES, WRITTEN, CITES = ("author", "writes", "paper"), ("paper", "written", "author"), ("paper", "cites", "paper")


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
