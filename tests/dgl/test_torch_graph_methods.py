"""Methods of ``DGLGraph`` that are shorter for graphs on torch tensors: the same data, the same errors, fewer calls."""

import dgl
import dgl.function as fn
import pytest
import torch
from torch_graphs import block, heterogeneous, homogeneous, on_torch


def rows(n, *shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(n)) + 0.5


def test_results_are_data_of_the_graph():
    for g in (block(), on_torch(block())):
        g.srcdata["h"], g.dstdata["w"], g.edata["e"] = rows(60, 2), rows(20, 2), rows(200, 1)
        g.update_all(fn.copy_u("h", "m"), fn.sum("m", "y"))
        assert {*g.dstdata} == {"w", "y"}
        g.update_all(fn.u_mul_e("h", "e", "m"), fn.mean("m", "w"))
        g.apply_edges(fn.u_add_v("h", "w", "e"))
        assert {*g.srcdata} == {"h"}
        assert {*g.dstdata} == {"w", "y"}
        assert g.edata["e"].shape == (200, 2)
        assert g.dstdata.pop("y").shape == (20, 2)


def test_graphs_with_further_node_types():
    ends = torch.arange(4), torch.arange(4)
    g = on_torch(dgl.heterograph({("a", "to", "b"): ends}, {"a": 4, "b": 5, "c": 2}))
    g.nodes["a"].data["h"] = rows(4, 3)
    g.update_all(fn.copy_u("h", "m"), fn.sum("m", "y"))
    torch.testing.assert_close(g.nodes["b"].data["y"][:4], rows(4, 3))
    assert not g.nodes["c"].data


def test_one_type_of_several():
    g = on_torch(heterogeneous())
    g.nodes["user"].data["h"] = rows(30, 3)
    g.update_all(fn.copy_u("h", "m"), fn.sum("m", "y"), etype="rates")
    part = g["user", "rates", "film"]
    part.update_all(fn.copy_u("h", "m"), fn.sum("m", "z"))
    torch.testing.assert_close(g.nodes["film"].data["y"], g.nodes["film"].data["z"])
    assert "y" not in g.nodes["user"].data


@pytest.mark.parametrize("make", [block, lambda: on_torch(block())])
def test_wrong_data_are_refused_as_before(make):
    g = make()
    with pytest.raises(dgl.DGLError, match="number of features to match number of nodes"):
        g.srcdata["h"] = rows(59, 2)
    with pytest.raises(dgl.DGLError, match="number of features to match number of edges"):
        g.edata["e"] = rows(20, 2)
    with pytest.raises(dgl.DGLError, match="on device meta to a graph on device cpu"):
        g.srcdata["h"] = torch.empty(60, 2, device="meta")
    g.srcdata["h"], g.dstdata["h"] = rows(60, 2), rows(20, 2)
    with pytest.raises(KeyError, match="absent"):
        g.update_all(fn.copy_u("absent", "m"), fn.sum("m", "y"))
    with pytest.raises(KeyError, match="absent"):
        g.apply_edges(fn.u_add_v("h", "absent", "e"))
    with pytest.raises(dgl.DGLError, match="must be equal to the message field"):
        g.update_all(fn.copy_u("h", "m"), fn.sum("other", "y"))
    assert {*g.dstdata} == {"h"}
    assert not g.edata


def test_a_local_scope_leaves_no_trace():
    g = on_torch(homogeneous())
    x = rows(40, 2)
    g.ndata["x"] = x
    part = g.subgraph(torch.arange(10))  # whose data are gathered when they are read
    for graph, own in ((g, x), (part, x[:10])):
        with graph.local_scope():
            graph.nodes[[1, 2]].data["x"] = torch.zeros(2, 2)
            assert graph.ndata["x"][1].tolist() == [0, 0]
            graph.ndata["y"] = graph.ndata.pop("x")
            graph.edata["z"] = rows(graph.num_edges())
        with pytest.raises(KeyError), graph.local_scope():
            graph.ndata.pop("x").index_select(0, graph.edata["absent"])
        assert torch.equal(graph.ndata["x"], own)
        assert "y" not in graph.ndata
        assert "z" not in graph.edata
