"""The GraphStore by itself, and loaders over pairs of stores."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers_pyg import check_edges
from torch_geometric.data import Data, EdgeAttr, HeteroData
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.loader import NodeLoader as PyGNodeLoader
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from manyhop.errors import FeatureError, GraphError, InputError
from manyhop_pyg import FeatureStore, GraphStore, HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler

TO = ("a", "to", "b")
BACK = ("b", "back", "a")
ROW, COL = torch.tensor([2, 0, 1, 0, 2]), torch.tensor([1, 3, 0, 1, 3])
BY_COL = torch.tensor([2, 0, 3, 1, 4])
COLPTR = torch.tensor([0, 1, 3, 3, 5])
BY_ROW = torch.tensor([1, 3, 2, 0, 4])
ROWPTR = torch.tensor([0, 2, 3, 5])


@pytest.fixture
def store():
    store = GraphStore()
    store[TO, "coo", False, (3, 4)] = (ROW, COL)
    return store


def same(a, b):
    return all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_get(store):
    attr = EdgeAttr(TO, "coo")
    for got in (
        store[TO, "coo"],
        store[attr],
        store.get_edge_index(attr),
        store.get_edge_index(TO, EdgeLayout.COO, size=(3, 4)),
        store.get_edge_index(edge_type=TO, layout="coo"),
    ):
        assert same(got, (ROW, COL))
    for missing in (EdgeAttr(TO, "csc"), EdgeAttr(BACK, "coo"), EdgeAttr(TO, "coo", size=(4, 4)),
                    EdgeAttr(TO, "coo", is_sorted=True)):  # fmt: skip
        with pytest.raises(KeyError, match="not found"):
            store[missing]
    attrs = store.get_all_edge_attrs()
    assert attrs == [EdgeAttr(TO, "coo", False, (3, 4))]
    attrs[0].layout = "changed"
    assert store.get_all_edge_attrs()[0].layout is EdgeLayout.COO
    attr.size = (3, 4)
    store[attr] = (ROW, COL)
    attr.size = None
    assert store.get_all_edge_attrs()[0].size == (3, 4)
    assert repr(store) == "GraphStore()"


@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
@pytest.mark.parametrize("edge_type", [TO, None])
def test_conversions(layout, edge_type):
    store = GraphStore()
    edges = {"coo": (ROW, COL), "csc": (ROW[BY_COL], COLPTR), "csr": (ROWPTR, COL[BY_ROW])}
    store[edge_type, layout, False, (3, 4)] = edges[layout]

    def get(name, **kwargs):
        out = getattr(store, name)(**kwargs)
        return out if edge_type is None else tuple(x[edge_type] for x in out)

    pairs = set(zip(ROW.tolist(), COL.tolist(), strict=True))
    for again in (False, True, True):
        row, col, perm = get("coo", store=again)
        assert perm is None
        assert set(zip(row.tolist(), col.tolist(), strict=True)) == pairs
        row_csc, colptr, perm = get("csc", store=again)
        assert torch.equal(colptr, COLPTR)
        assert (perm is None) == (layout == "csc")
        if perm is not None:
            assert torch.equal(row[perm], row_csc)
        rowptr, col_csr, perm = get("csr", store=again)
        assert torch.equal(rowptr, ROWPTR)
        assert (perm is None) == (layout == "csr")
        if perm is not None:
            assert torch.equal(col[perm], col_csr)
        assert [a.layout.value for a in store.get_all_edge_attrs()] == [layout]  # edge ids have not changed


def test_stored_conversions_are_forgotten(store):
    first = store.csc(store=True)
    assert store.csc()[0][TO] is first[0][TO]
    store[TO, "coo", False, (3, 4)] = (ROW.roll(1), COL)
    assert not torch.equal(store.csc()[0][TO], first[0][TO])
    store.csc(store=True)
    assert store.remove_edge_index(TO, "coo")
    assert not store.remove_edge_index(TO, "coo")
    assert store.get_all_edge_attrs() == []


def test_several_layouts_and_types(store):
    store[TO, "csc", True, (3, 4)] = (ROW[BY_COL], COLPTR)
    store[BACK, "csr", False, (4, 3)] = (torch.tensor([0, 0, 0, 0, 0]), torch.empty(0, dtype=torch.long))
    assert [(a.edge_type, a.layout.value) for a in store.get_all_edge_attrs()] == [
        (TO, "coo"), (TO, "csc"), (BACK, "csr")
    ]  # fmt: skip
    rows, cols, perms = store.csc()
    assert perms[TO] is None
    assert torch.equal(cols[TO], COLPTR)
    assert rows[BACK].numel() == 0
    assert set(store.coo(edge_types=[BACK])[0]) == {BACK}
    with pytest.raises(ValueError, match="not found in the graph store"):
        store.coo(edge_types=[("a", "x", "b")])
    del store[TO, "csc"]
    assert perms[TO] is None
    assert store.csc()[2][TO] is not None


def test_arrays_and_int32():
    store = GraphStore()
    store[None, "coo", True, (4, 4)] = (ROW[BY_COL].int().numpy(), COL[BY_COL].int().numpy())
    row, col = store[None, "coo"]
    assert row.dtype == col.dtype == torch.int32
    assert store.csc()[2] is None
    shared = np.arange(3)
    store[None, "coo", False, (4, 4)] = (shared, shared)
    assert np.shares_memory(store[None, "coo"][0].numpy(), shared)


@pytest.mark.parametrize(
    ("attr", "edges", "match"),
    [
        ((TO, "coo"), (ROW, COL[:-1]), "as many rows as columns, got 5 and 4"),
        ((TO, "coo"), ROW, "pair of tensors"),
        ((TO, "coo"), (ROW, COL, COL), "pair of tensors"),
        ((TO, "coo"), ("a", "b"), "a tensor or an array of numbers, got a str"),
        ((TO, "coo"), (ROW.float(), COL), "int64 or int32, got torch.float32"),
        ((TO, "coo"), (ROW.view(1, 5), COL.view(1, 5)), r"1-dimensional .*got torch.int64 of shape \[1, 5\]"),
        ((TO, "coo"), (ROW - 1, COL), "ids of at least 0, got -1"),
        ((TO, "coo", False, (2, 4)), (ROW, COL), r"coo edges of \('a', 'to', 'b'\) to have ids in \[0, 2\), got 2"),
        ((TO, "coo", False, (None, 3)), (ROW, COL), r"ids in \[0, 3\), got 3"),
        ((TO, "coo", False, 3), (ROW, COL), r"\(num_src, num_dst\), got 3"),
        ((TO, "coo", False, (3, 4, 5)), (ROW, COL), r"\(num_src, num_dst\)"),
        ((TO, "coo", True), (ROW, COL), "sorted by destination"),
        ((TO, "csc"), (ROW, COL), "rise from 0 to the number of edges, 5, got 1 to 3"),
        ((TO, "csc"), (ROW, torch.tensor([0, 3, 2, 5])), "rise from 0"),
        ((TO, "csc"), (ROW, torch.empty(0, dtype=torch.long)), r"shape \[num_nodes \+ 1\], got \[0\]"),
        ((TO, "csc", True, (3, 5)), (ROW, COLPTR), r"shape \[6\], got \[5\]"),
        ((TO, "csc", True, (2, 4)), (ROW, COLPTR), r"ids in \[0, 2\), got 2"),
        ((TO, "csr", False, (4, 4)), (ROWPTR, COL), r"shape \[5\], got \[4\]"),
        ((TO, "csr", False, (3, 2)), (ROWPTR, COL), r"ids in \[0, 2\), got 3"),
        ((["a", "b"], "coo"), (ROW, COL), r"edge type as \('src', 'rel', 'dst'\)"),
        (("a", "coo"), (ROW, COL), "edge type as"),
    ],
)
def test_bad_edges(attr, edges, match):
    with pytest.raises(GraphError, match=match):
        GraphStore().put_edge_index(edges, *attr)


def test_what_does_not_fit_together(store):
    with pytest.raises(GraphError, match="with an edge type or all without"):
        store[None, "coo"] = (ROW, COL)
    with pytest.raises(GraphError, match="the same edges, got 5 in coo and 4 in csr"):
        store[TO, "csr"] = (torch.tensor([0, 4]), COL[:-1])
    store[TO, "coo"] = (ROW[:-1], COL[:-1])
    store[TO, "csr"] = (torch.tensor([0, 4]), COL[:-1])


def test_copies_and_pickles(store):
    for other in (pickle.loads(pickle.dumps(store)), copy.deepcopy(store)):
        assert same(other[TO, "coo"], (ROW, COL))
        assert other.get_all_edge_attrs() == store.get_all_edge_attrs()


def test_places_of_edges():
    with pytest.raises(InputError, match=r"'distributed'\], got 'mapped'. Edges of a folder stay in its files"):
        GraphStore(placement="mapped")


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
