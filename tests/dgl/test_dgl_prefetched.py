"""What a sampler prefetches: looked up for each batch, and the same object as long as nothing of it changes."""

import pytest
import torch
from test_dgl_loader_tensors import graph

from manyhop.errors import FeatureError
from manyhop_dgl import NeighborSampler
from manyhop_dgl.loader.tensors import Prefetched


@pytest.fixture(params=["plain", "ours"])
def g(request):
    return graph(request.param)


def sampler(**options):
    return NeighborSampler([2], prefetch_node_feats=["x"], **options)


def test_nothing_changes(g):
    prefetched = Prefetched(g, sampler(prefetch_labels=["y"], prefetch_edge_feats=["w"]))
    data = prefetched.data()
    assert [(entry.part, entry.name) for entry in data.entries] == [("nodes", "x"), ("outputs", "y"), ("edges", "w")]
    assert all(value is own for value, own in zip(data.values, (g.ndata["x"], g.ndata["y"], g.edata["w"]), strict=True))
    assert data.is_complete
    assert prefetched.data() is prefetched.all_data() is data
    g.ndata["x"].add_(1)  # which the version of the tensor tells
    g.ndata["other"] = torch.zeros(g.num_nodes())
    assert prefetched.data() is data
    del g.edata["w"]
    g.edata["w"] = data.values[2]
    assert prefetched.data() is data


def test_data_are_replaced_and_removed(g):
    prefetched = Prefetched(g, sampler())
    before = prefetched.data()
    g.ndata["x"] = g.ndata["x"].clone()
    data = prefetched.data()
    assert data is not before
    assert data.values[0] is g.ndata["x"]
    x = g.ndata.pop("x")
    assert (prefetched.data().entries, prefetched.data().is_complete) == ([], False)
    with pytest.raises(FeatureError, match="Expected 'x' among the node data"):
        prefetched.all_data()
    g.ndata["x"] = x
    assert prefetched.all_data().values[0] is x


def test_data_of_a_scope(g):
    prefetched = Prefetched(g, sampler())
    before = prefetched.data()
    with g.local_scope():
        g.ndata["x"] = torch.zeros(g.num_nodes(), 2)
        assert prefetched.data().values[0].shape == (g.num_nodes(), 2)
    assert prefetched.data().values[0] is before.values[0]


def test_names_change_in_place(g):
    own = sampler()
    prefetched = Prefetched(g, own)
    assert [entry.name for entry in prefetched.data().entries] == ["x"]
    own.prefetch_node_feats.append("y")
    assert [entry.name for entry in prefetched.data().entries] == ["x", "y"]
    own.prefetch_node_feats = {g.ntypes[0]: ["y"]}
    assert [entry.name for entry in prefetched.data().entries] == ["y"]
    own.prefetch_node_feats[g.ntypes[0]][0] = "x"
    assert [entry.name for entry in prefetched.data().entries] == ["x"]
    own.prefetch_node_feats = ("y", "x")
    assert [entry.name for entry in prefetched.data().entries] == ["y", "x"]


def test_rows_of_a_dgl_graph_are_replaced():
    g = graph("plain")
    g.ndata["x"].requires_grad_()
    prefetched = Prefetched(g, sampler())
    before = prefetched.data()
    g.nodes[[1, 2]].data["x"] = torch.zeros(2, g.ndata["x"].shape[1])  # DGL makes another tensor of the same column
    data = prefetched.data()
    assert data is not before
    assert data.values[0] is g.ndata["x"]
