"""Where a graph and its features may come from: stores, SparseTensor, EdgeIndex, other devices."""

import warnings

import numpy as np
import pytest
import torch
import torch_geometric.typing
from helpers_pyg import all_same, check_batch, check_edges
from torch_geometric.data import Data
from torch_geometric.edge_index import EdgeIndex
from torch_geometric.nn import GraphSAGE
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from torch_geometric.transforms import ToSparseTensor

from manyhop.errors import GraphError
from manyhop.loading.pipeline.streams import tensors_in
from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler, NodeLoader

WRITES = ("author", "writes", "paper")

sparse = pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs torch-sparse")


@pytest.mark.parametrize("layouts", [("csr",), ("csr", "coo"), ("coo", "csr", "csc")])
def test_edge_ids_are_positions_in_the_layout_that_is_read(data, layouts):
    """The last of these: CSC before COO before CSR."""
    row, col = data.edge_index
    graph = MyGraphStore()
    for layout in layouts:
        order = torch.argsort({"csr": row, "coo": -row, "csc": col}[layout], stable=True)
        whole = data.edge_index[:, order]
        ends = list(whole)
        if layout != "coo":
            by = 0 if layout == "csr" else 1
            ends[by] = torch.cat([torch.zeros(1).long(), torch.bincount(ends[by], minlength=60).cumsum(0)])
        graph.put_edge_index(tuple(ends), edge_type=None, layout=layout, size=(60, 60))
    features = MyFeatureStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    for batch in NeighborLoader((features, graph), [3, 2], torch.arange(60), batch_size=8):
        check_edges(batch.edge_index, batch.e_id, batch.n_id, batch.n_id, whole)


def test_fractions_of_integer_times():
    """Limits of seeds are rounded into their window: the upper one down, the lower one up."""
    graph = Data(num_nodes=11, edge_index=torch.stack([torch.arange(1, 11), torch.zeros(10).long()]))
    graph.time = torch.arange(10)
    for window, limits, expected in (
        (None, [3.5, 3.0, -0.5], [[0, 1, 2, 3], [0, 1, 2, 3], []]),
        (1.2, [3.5, 3.0, 20.0], [[3], [2, 3], []]),
        (1.0, [3.5, float("inf"), -float("inf")], [[3], [], []]),
    ):
        sampler = NeighborSampler(graph, [-1], time_attr="time", time_window=window)
        loader = NodeLoader(graph, sampler, torch.zeros(3).long(), input_time=torch.tensor(limits), batch_size=1)
        assert [batch.e_id.tolist() for batch in loader] == expected


def test_stores_without_edges():
    with pytest.raises(GraphError, match="holds edges"):
        NeighborLoader((MyFeatureStore(), MyGraphStore()), [2], torch.arange(3))


@sparse
@pytest.mark.parametrize("keep_edge_index", [False, True])
def test_adj_t(data, keep_edge_index):
    plain = data.clone()
    data = ToSparseTensor(attr="edge_weight", remove_edge_index=not keep_edge_index)(data)
    from torch_sparse import SparseTensor

    assert isinstance(data.adj_t, SparseTensor)
    for batch in NeighborLoader(data, [3, 2], batch_size=8, num_workers=2):
        assert isinstance(batch.adj_t, SparseTensor)
        assert ("edge_index" in batch._store) == keep_edge_index
        assert batch.adj_t.sparse_sizes() == (batch.num_nodes, batch.num_nodes)
        dst, src, weight = batch.adj_t.coo()
        assert weight.numel() == batch.e_id.numel()
        whole = torch.zeros(60, 60).index_put((plain.edge_index[1], plain.edge_index[0]), plain.edge_weight, True)
        mine = torch.zeros(60, 60).index_put((batch.n_id[dst], batch.n_id[src]), weight, accumulate=True)
        assert (mine <= whole + 1e-5).all()
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    full = next(iter(NeighborLoader(data, [-1], batch_size=60)))
    dst, src, weight = full.adj_t.coo()
    torch.testing.assert_close(torch.zeros(60, 60).index_put((dst, src), weight, accumulate=True), whole)


@sparse
def test_adj(data):
    from torch_sparse import SparseTensor

    row, col = data.edge_index
    graph = Data(x=data.x, adj=SparseTensor(row=row, col=col, value=data.edge_weight, sparse_sizes=(60, 60)))
    full = next(iter(NeighborLoader(graph, [-1], batch_size=60)))
    src, dst, weight = full.adj.coo()
    weights = [torch.zeros(60, 60).index_put((row, col), data.edge_weight, accumulate=True)]
    weights += [torch.zeros(60, 60).index_put((src, dst), weight, accumulate=True)]
    torch.testing.assert_close(*weights)


@sparse
@pytest.mark.parametrize("name", ["adj", "adj_t"])
def test_edge_ids_are_positions_in_the_sparse_tensor(data, name):
    from torch_sparse import SparseTensor

    ends = data.edge_index if name == "adj" else data.edge_index.flip(0)
    graph = Data(num_nodes=60, **{name: SparseTensor(row=ends[0], col=ends[1], sparse_sizes=(60, 60))})
    order = torch.sort(ends[0] * 60 + ends[1], stable=True).indices  # by the tensor's rows, then by its columns
    whole = data.edge_index[:, order]
    loader = NeighborLoader(graph, [3, 2], batch_size=8, seed=1)
    plain = NeighborLoader(Data(num_nodes=60, edge_index=whole), [3, 2], batch_size=8, seed=1)
    major = 0 if name == "adj" else 1
    for batch, same in zip(loader, plain, strict=True):
        assert torch.equal(batch.e_id, same.e_id)
        check_edges(same.edge_index, batch.e_id, batch.n_id, batch.n_id, whole)
        row, col, _ = batch[name].coo()
        ours = torch.stack([row, col] if name == "adj" else [col, row])
        by_ends = torch.argsort(same.edge_index[major] * 60 + same.edge_index[1 - major])
        assert torch.equal(ours, same.edge_index[:, by_ends])  # the tensor sorts its entries, e_id stays


@sparse
def test_typed_adj_t(hetero):
    del hetero["author", "writes", "paper"].edge_attr
    data = ToSparseTensor(attr=None)(hetero)
    batch = next(iter(NeighborLoader(data, [-1], "paper", batch_size=40)))
    adj_t = batch[WRITES].adj_t
    assert adj_t.sparse_sizes() == (batch["paper"].num_nodes, batch["author"].num_nodes)
    assert adj_t.nnz() == 120


def test_torch_sparse_layouts_are_refused(data):
    data.adj_t = torch.eye(60).to_sparse()
    with pytest.raises(GraphError, match="ToSparseTensor on the batch"):
        NeighborLoader(data, [2])


@pytest.mark.parametrize("sort_order", [None, "col"])
def test_edge_index_class(data, sort_order):
    expected = list(NeighborLoader(data.sort(sort_by_row=False), [3], batch_size=8, seed=1))
    order = data.sort(sort_by_row=False)
    order.edge_index = EdgeIndex(order.edge_index, sparse_size=(60, 60), sort_order=sort_order)
    batches = list(NeighborLoader(order, [3], batch_size=8, seed=1, num_workers=1))
    assert all(b.edge_index.validate().is_sorted_by_col for b in batches)
    assert all(b.edge_index.sparse_size() == (b.num_nodes, b.num_nodes) for b in batches)
    for batch in batches:
        batch.edge_index = batch.edge_index.as_tensor()
    assert all_same(expected, batches)
    batch = next(iter(LinkNeighborLoader(order, [3], batch_size=8)))
    assert batch.edge_label_index.shape == (2, 8)
    assert batch.edge_index.validate().is_sorted_by_col


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("more", [{}, {"replace": True}, {"sample_direction": "backward"}, {"keep_orig_edges": True}])
def test_edge_index_keeps_what_holds(data, subgraph_type, disjoint, more):
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(60, 60))
    more, seeds = dict(more), torch.tensor([3, 8, 3, 55, 21, 8] * 3)  # duplicates are rows of their own
    keeps = more.pop("keep_orig_edges", False)
    sampler = NeighborSampler(data, [3, 2, -1], subgraph_type=subgraph_type, disjoint=disjoint, **more)
    sampler.keep_orig_edges = keeps
    for batch in NeighborLoader(data, [], seeds, neighbor_sampler=sampler, batch_size=9):
        edge_index = batch.edge_index.validate()
        assert edge_index.is_sorted_by_row if more.get("sample_direction") else edge_index.is_sorted_by_col
        assert edge_index.is_undirected == (subgraph_type == "bidirectional")


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("pad", [None, "auto"])
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
def test_edge_index_of_types(hetero, subgraph_type, pad):
    plain = ("paper", "has", "field")
    for edge_type in hetero.edge_types:
        if edge_type != plain:
            hetero[edge_type].edge_index = EdgeIndex(hetero[edge_type].edge_index)
    loader = NeighborLoader(hetero, [3, 2], "paper", batch_size=9, subgraph_type=subgraph_type, pad=pad)
    for batch in loader:
        for edge_type in hetero.edge_types:
            if edge_type == plain:
                assert type(batch[edge_type].edge_index) is torch.Tensor
                continue
            edge_index = batch[edge_type].edge_index.validate()
            assert edge_index.sparse_size() == (batch[edge_type[0]].num_nodes, batch[edge_type[2]].num_nodes)
            assert edge_index.is_sorted_by_col
            assert not edge_index.is_undirected


def test_edge_index_of_unknown_samplers_has_no_order(data, hetero):
    data.edge_index = EdgeIndex(data.edge_index)
    flipped = {"transform_sampler_output": lambda out: setattr(out, "col", out.col.flip(0)) or out}
    batch = next(iter(NeighborLoader(data, [3, 2], batch_size=9, **flipped)))
    assert isinstance(batch.edge_index, EdgeIndex)
    assert batch.edge_index.sort_order is None
    for edge_type in hetero.edge_types:
        hetero[edge_type].edge_index = EdgeIndex(hetero[edge_type].edge_index)
    for batch in HGTLoader(hetero, [5, 5], "paper", batch_size=9):
        assert all(batch[t].edge_index.validate().sort_order is None for t in hetero.edge_types)


def test_models_on_batches_with_edge_index(data):
    data = data.sort(sort_by_row=False)
    expected = next(iter(NeighborLoader(data, [3, 2], batch_size=8, seed=1)))
    data.edge_index = EdgeIndex(data.edge_index)
    batch = next(iter(NeighborLoader(data, [3, 2], batch_size=8, seed=1)))
    assert [tensor.numel() for tensor in tensors_in(batch.edge_index)] == [expected.edge_index.numel()]
    model = GraphSAGE(4, 8, 2)
    for counts in (
        {},
        {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges},
    ):
        out = model(batch.x, batch.edge_index, **counts)[:8]
        assert torch.allclose(out, model(expected.x, expected.edge_index)[:8], atol=1e-6)


def test_features_elsewhere(data):
    """The meta device stands for another one: indices follow the features."""
    data.x = data.x.to("meta")
    batch = next(iter(NeighborLoader(data, [3], batch_size=8)))
    assert batch.x.device.type == "meta"
    assert batch.x.shape == (batch.num_nodes, 4)
    assert batch.y.device.type == "cpu"


def test_data_that_is_shared_later(data):
    """Sharing moves memory, also that of a topology that uses the user's tensors."""
    data = data.sort(sort_by_row=False)
    data.edge_index = data.edge_index.int()
    loader = NeighborLoader(data, [3, 2], batch_size=8, num_workers=2)
    list(loader)
    data.share_memory_()
    loader.node_sampler.topology.graph.csc["_N", "_E", "_N"].row.share_memory_()
    for batch in loader:
        check_batch(batch, data)


def test_arrays_that_may_not_be_written_to(data):
    """Seeds of a mapped file, or of pandas: torch has no such tensors, and would warn of them."""
    seeds = np.arange(20)
    seeds.setflags(write=False)
    pairs = np.stack([seeds, seeds[::-1]])
    pairs.setflags(write=False)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader = NeighborLoader(data, [3], seeds, input_time=seeds, time_attr="time", input_id=seeds, batch_size=20)
            links = LinkNeighborLoader(data, [3], pairs, edge_label=seeds, batch_size=20)
            (batch,), (link,) = loader, links
            single = loader.batch(seeds[:3], input_time=seeds[:3])
    finally:
        torch.set_warn_always(always)
    assert batch.n_id[:20].tolist() == batch.input_id.tolist() == batch.seed_time.tolist() == list(range(20))
    assert link.n_id[link.edge_label_index].tolist() == pairs.tolist()
    assert single.n_id[:3].tolist() == [0, 1, 2]
