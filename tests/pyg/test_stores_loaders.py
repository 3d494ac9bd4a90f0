"""Loaders over (FeatureStore, GraphStore): ours, PyG's test doubles, and PyG's data objects as stores."""

import copy

import pytest
import torch
from helpers_pyg import check_edges
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader as PyGNodeLoader
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from manyhop.errors import FeatureError
from manyhop_pyg import FeatureStore, GraphStore, HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler

NAMES = ("x", "y", "train_mask", "edge_attr", "edge_weight", "time", "edge_time")


def homogeneous_stores(data, features, graph, layout="coo"):
    for name in NAMES:
        features[None, name, None] = data[name]
    graph[None, "coo", False, (60, 60)] = tuple(data.edge_index)
    if layout != "coo":
        row, col, _ = getattr(graph, layout)()
        for attr in graph.get_all_edge_attrs():
            graph.remove_edge_index(attr)
        graph[None, layout, False, (60, 60)] = (row, col)
    return features, graph


def typed_stores(data, features, graph):
    for store in data.node_stores:
        for name in store:
            if name != "num_nodes":
                features[store._key, name, None] = store[name]
    for store in data.edge_stores:
        sizes = (data[store._key[0]].num_nodes, data[store._key[2]].num_nodes)
        graph.put_edge_index(tuple(store.edge_index), store._key, "coo", False, sizes)
        for name in store:
            if name != "edge_index":
                features.put_tensor(store[name], group_name=store._key, attr_name=name, index=None)
    return features, graph


STORES = [(FeatureStore, GraphStore), (MyFeatureStore, MyGraphStore)]


@pytest.mark.parametrize("kinds", STORES)
def test_nodes(data, kinds):
    stores = homogeneous_stores(data, kinds[0](), kinds[1]())
    ids = torch.arange(60)
    ours = NeighborLoader(stores, [4, 3], ids, batch_size=16, shuffle=True, seed=3)
    for got, want in zip(ours, NeighborLoader(data, [4, 3], ids, batch_size=16, shuffle=True, seed=3), strict=True):
        for name in (*NAMES, "n_id", "e_id", "edge_index", "input_id"):
            assert torch.equal(got[name], want[name]), name
        assert got.num_nodes == want.num_nodes
        assert got.batch_size == want.batch_size
        assert got.num_sampled_edges == want.num_sampled_edges


def test_pyg_data_as_a_pair_of_stores(hetero):
    options = {"num_neighbors": [4, 3], "input_nodes": ("paper", torch.arange(40)), "batch_size": 16, "seed": 3}
    want = next(iter(NeighborLoader(hetero, **options)))
    got = next(iter(NeighborLoader((hetero, hetero), **options)))
    for name in ("x", "y", "n_id"):
        assert torch.equal(got["paper"][name], want["paper"][name])


@pytest.mark.parametrize("layout", ["csc", "csr"])
def test_edge_ids_are_positions_in_the_layout(data, layout):
    features, graph = homogeneous_stores(data, FeatureStore(), GraphStore(), layout)
    row, col, _ = graph.coo()
    for batch in NeighborLoader((features, graph), [4, 3], torch.arange(60), batch_size=16):
        check_edges(batch.edge_index, batch.e_id, batch.n_id, batch.n_id, torch.stack([row, col]))
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_conversions_that_are_stored_keep_edge_ids(data):
    stores = homogeneous_stores(data, FeatureStore(), GraphStore())
    stores[1].csc(store=True)
    batch = next(iter(NeighborLoader(stores, [4, 3], torch.arange(60), batch_size=16)))
    check_edges(batch.edge_index, batch.e_id, batch.n_id, batch.n_id, data.edge_index)
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


def test_as_many_edges_as_nodes(data):
    features, graph = FeatureStore(), GraphStore()
    edge_index = data.edge_index[:, :60]
    graph[None, "coo", False, (60, 60)] = tuple(edge_index)
    features[None, "x", None] = data.x
    features[None, "edge_attr", None] = data.x * 2
    batch = next(iter(NeighborLoader((features, graph), [-1], torch.arange(20), batch_size=20)))
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.edge_attr, 2 * data.x[batch.e_id])


@pytest.mark.parametrize("time_attr", ["time", "edge_time"])
def test_times_and_weights(data, time_attr):
    stores = homogeneous_stores(data, FeatureStore(), GraphStore())
    common = {"num_neighbors": [3, 3], "input_nodes": torch.arange(60), "batch_size": 20, "seed": 1}
    timed = common | {"input_time": torch.full((60,), 9), "time_attr": time_attr}
    for options in (timed, common | {"weight_attr": "edge_weight"}):
        for got, want in zip(NeighborLoader(stores, **options), NeighborLoader(data, **options), strict=True):
            assert torch.equal(got.e_id, want.e_id)
            assert torch.equal(got.time, want.time)


@pytest.mark.parametrize("kinds", STORES)
def test_types(hetero, kinds):
    stores = typed_stores(hetero, kinds[0](), kinds[1]())
    options = {"num_neighbors": [3, 3], "input_nodes": ("paper", torch.arange(40)), "batch_size": 8, "seed": 1}
    for got, want in zip(NeighborLoader(stores, **options), NeighborLoader(hetero, **options), strict=True):
        for edge_type in hetero.edge_types:
            for name in ("edge_index", "e_id", "edge_attr", "edge_weight"):
                assert (name in got[edge_type]) == (name in want[edge_type])
                if name in want[edge_type]:
                    assert torch.equal(got[edge_type][name], want[edge_type][name])
        for node_type in ("paper", "author"):
            for name in ("x", "y", "n_id"):
                if name in want[node_type]:
                    assert torch.equal(got[node_type][name], want[node_type][name])
        assert got["paper"].batch_size == 8
    assert next(iter(HGTLoader(stores, [8, 8], ("paper", torch.arange(40)), batch_size=4)))["paper"].batch_size == 4


@pytest.mark.parametrize("kinds", STORES)
def test_links(hetero, kinds):
    stores = typed_stores(hetero, kinds[0](), kinds[1]())
    writes = ("author", "writes", "paper")
    options = {"num_neighbors": [3, 3], "edge_label_index": writes, "neg_sampling": "binary", "batch_size": 8}
    for got, want in zip(
        LinkNeighborLoader(stores, seed=1, **options), LinkNeighborLoader(hetero, seed=1, **options), strict=True
    ):
        for name in ("edge_label_index", "edge_label", "edge_attr", "e_id"):
            assert torch.equal(got[writes][name], want[writes][name])


def test_custom_class_and_pyg_loader(data):
    class Mine(HeteroData):
        pass

    features, graph = FeatureStore(), GraphStore()
    features["a", "x", None] = data.x
    graph[("a", "to", "a"), "coo", False, (60, 60)] = tuple(data.edge_index)
    sampler = NeighborSampler((features, graph), [3, 3])
    for loader in (NeighborLoader((features, graph), [3, 3], ("a", torch.arange(60)), custom_cls=Mine, batch_size=8),
                   PyGNodeLoader((features, graph), sampler, ("a", torch.arange(60)), custom_cls=Mine,
                                 batch_size=8)):  # fmt: skip
        batch = next(iter(loader))
        assert type(batch) is Mine
        assert torch.equal(batch["a"].x, data.x[batch["a"].n_id])


def test_replaced_features_are_noticed(data):
    stores = homogeneous_stores(data, FeatureStore(), GraphStore())
    loader = NeighborLoader(stores, [4], torch.arange(60), batch_size=16, num_workers=1)
    stores[0].update_tensor(data.x + 1, None, "x", None)
    del stores[0][None, "y"]
    batch = next(iter(loader))
    assert torch.equal(batch.x, data.x[batch.n_id] + 1)
    assert "y" not in batch


def test_data_as_its_own_store(data):
    data = Data(x=data.x, edge_index=data.edge_index)
    batches = list(NeighborLoader((data, data), [3, 2], torch.arange(60), batch_size=8, seed=1))
    expected = list(NeighborLoader(data, [3, 2], torch.arange(60), batch_size=8, seed=1))
    assert all(torch.equal(a.x, b.x) for a, b in zip(batches, expected, strict=True))


@pytest.mark.parametrize("typed", [False, True])
def test_stores_that_give_other_rows_than_those_asked_for(data, hetero, typed):
    class Short(MyFeatureStore):
        def _get_tensor(self, attr):
            rows = super()._get_tensor(attr)
            return rows if attr.index is None else rows[:-1]

    stores = (typed_stores if typed else homogeneous_stores)(hetero if typed else data, Short(), MyGraphStore())
    loader = NeighborLoader(stores, [3], ("paper", torch.arange(9)) if typed else torch.arange(9), batch_size=9)
    with pytest.raises(FeatureError, match=r"Expected the Short to give a row of '\w+' of .* for each of \d+ ids, got"):
        list(loader)


def test_fresh_attrs_of_the_batch(data):
    stores = homogeneous_stores(data, FeatureStore(), GraphStore())
    before = copy.deepcopy(stores[0].get_all_tensor_attrs())
    list(NeighborLoader(stores, [4], torch.arange(60), batch_size=16))
    assert stores[0].get_all_tensor_attrs() == before
