"""A graph on torch tensors answers as DGL's own: types, degrees, edges, formats, subgraphs, blocks."""

import copy
import gc
import pickle
import weakref

import dgl
import pytest
import torch
from torch_graphs import block, heterogeneous, homogeneous, minibatches, on_torch

import manyhop_dgl
from manyhop.errors import InputError, MissingExtraError
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too
from manyhop_dgl_cuda.index import TorchGraphIndex

IDTYPES = [torch.int32, torch.int64]


def same(found, expected):
    """Assert that answers are equal: tensors, in tuples or not, or anything else."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    else:
        assert found == expected


def same_graphs(found, expected):
    assert (found.ntypes, found.canonical_etypes) == (expected.ntypes, expected.canonical_etypes)
    assert found.is_block == expected.is_block
    for t in expected.srctypes:
        assert found.num_src_nodes(t) == expected.num_src_nodes(t)
    for t in expected.dsttypes:
        assert found.num_dst_nodes(t) == expected.num_dst_nodes(t)
    for t in expected.canonical_etypes:
        same(found.edges(etype=t, form="all", order="eid"), expected.edges(etype=t, form="all", order="eid"))


NODES = [3, 17, 3, 0]
QUERIES = {
    "degrees": lambda g: (g.in_degrees(), g.out_degrees(), g.in_degrees(NODES), g.out_degrees(NODES)),
    "edges": lambda g: (g.edges(form="all", order="eid"), g.edges(order="srcdst")),
    "find_edges": lambda g: g.find_edges(torch.tensor([5, 0, 5], dtype=g.idtype)),
    "in_edges": lambda g: [part.sort()[0] for part in g.in_edges(NODES[:2], form="all")],
    "in_edges eid": lambda g: g.in_edges(NODES, form="eid").sort()[0],
    "out_edges eid": lambda g: g.out_edges(NODES, form="eid").sort()[0],
    "predecessors": lambda g: g.predecessors(3).sort()[0],
    "successors": lambda g: g.successors(3).sort()[0],
    "has_nodes": lambda g: g.has_nodes([0, 39, 40]),
    "has_edges": lambda g: (g.has_edges_between(*mixed(g)), g.has_edges_between(3, NODES)),
    "edge_ids": lambda g: [
        t.sort()[0] for t in g.edge_ids(*g.find_edges(torch.tensor(NODES, dtype=g.idtype)), return_uv=True)
    ],
    "adj_tensors": lambda g: (g.adj_tensors("coo"), g.adj_tensors("csr")[0], g.adj_tensors("csc")[0]),
    "adj_external": lambda g: (g.adj_external().to_dense(), g.adj_external(transpose=True).to_dense()),
    "scipy": lambda g: g.adj_external(scipy_fmt="coo").todense().tolist(),
    "idtype": lambda g: (g.idtype, g.int().idtype, g.long().idtype, g.device, g.is_homogeneous),
    "reverse": lambda g: dgl.reverse(g).edges(order="eid"),
    "local": lambda g: g.local_var().clone().edges(order="eid"),
}


def pairs(g, edges):
    return g.find_edges(torch.tensor(edges, dtype=g.idtype))


def mixed(g):
    """Ends of edges, and of what need not be any."""
    src, dst = pairs(g, [5, 0, 7])
    return torch.cat([src, src.flip(0)]), torch.cat([dst, dst])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # of DGL's own matrices
@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("query", QUERIES)
def test_a_homogeneous_graph_answers_as_dgl(query, idtype):
    g = homogeneous(idtype)
    same(QUERIES[query](on_torch(g)), QUERIES[query](g))


def test_the_first_of_several_edges_is_found():
    g = dgl.graph((torch.tensor([1, 0, 1, 1]), torch.tensor([2, 2, 2, 0])))
    t = on_torch(g)
    assert t.edge_ids(torch.tensor([1]), torch.tensor([2])).tolist() == [0]
    same(t.edge_ids([1, 1], [2, 0], return_uv=True), g.edge_ids([1, 1], [2, 0], return_uv=True))
    with pytest.raises(dgl.DGLError):
        t.edge_ids([0], [1])


@pytest.mark.parametrize("idtype", IDTYPES)
def test_types_and_relations_are_those_of_dgl(idtype):
    g = heterogeneous(idtype)
    t = on_torch(g)
    same_graphs(t, g)
    for edge_type in g.canonical_etypes:
        same_graphs(t[edge_type], g[edge_type])
        same(t.in_degrees(etype=edge_type), g.in_degrees(etype=edge_type))
    assert t.metagraph().edges == g.metagraph().edges
    same_graphs(dgl.reverse(t), dgl.reverse(g))
    same_graphs(dgl.edge_type_subgraph(t, ["rates", "fan"]), dgl.edge_type_subgraph(g, ["rates", "fan"]))


@pytest.mark.parametrize("idtype", IDTYPES)
def test_subgraphs_have_the_order_of_dgl(idtype):
    nodes = {"user": torch.tensor([5, 0, 9, 11, 3, 4], dtype=idtype), "film": torch.tensor([7, 1, 2], dtype=idtype)}
    edges = {"follows": torch.tensor([9, 3], dtype=idtype), "fan": torch.tensor([0, 8, 4], dtype=idtype)}
    g = heterogeneous(idtype)
    g.nodes["user"].data["x"] = torch.randn(30, 2)
    t = on_torch(g)
    for part in (
        lambda g: dgl.node_subgraph(g, nodes),
        lambda g: dgl.node_subgraph(g, nodes, relabel_nodes=False),
        lambda g: dgl.edge_subgraph(g, edges),
        lambda g: dgl.edge_subgraph(g, edges, relabel_nodes=False),
        lambda g: dgl.in_subgraph(g, nodes),
        lambda g: dgl.out_subgraph(g, nodes, relabel_nodes=True),
    ):
        found, expected = part(t), part(g)
        same_graphs(found, expected)
        for kind in g.ntypes:
            assert set(found.nodes[kind].data) == set(expected.nodes[kind].data)
            for name, value in expected.nodes[kind].data.items():
                same(found.nodes[kind].data[name], value)
        for kind in g.canonical_etypes:
            same(found.edges[kind].data[dgl.EID], expected.edges[kind].data[dgl.EID])


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("include", [True, False])
def test_blocks_have_the_order_of_dgl(idtype, include):
    g = heterogeneous(idtype)
    seeds = {"user": torch.tensor([4, 9, 1], dtype=idtype)}
    frontier = dgl.in_subgraph(g, seeds)
    found = dgl.to_block(on_torch(frontier), seeds, include_dst_in_src=include)
    expected = dgl.to_block(frontier, seeds, include_dst_in_src=include)
    same_graphs(found, expected)
    for kind in g.ntypes:
        same(found.srcnodes[kind].data[dgl.NID], expected.srcnodes[kind].data[dgl.NID])
    with pytest.raises(InputError, match="Expected dst_nodes and src_nodes to have all nodes"):
        dgl.to_block(on_torch(g), seeds)


def test_graphs_are_changed_and_put_together():
    g = homogeneous()
    t = on_torch(g)
    with graphs_of_cpu_too():
        made = [dgl.add_self_loop(t), dgl.add_edges(t, [0], [1]), dgl.add_nodes(t, 2), dgl.remove_edges(t, [0, 5])]
        made += [dgl.remove_self_loop(dgl.add_self_loop(t)), dgl.remove_nodes(t, [3]), dgl.batch([t, t])]
    assert all(type(graph._graph) is TorchGraphIndex for graph in made)
    expected = [dgl.add_self_loop(g), dgl.add_edges(g, [0], [1]), dgl.add_nodes(g, 2), dgl.remove_edges(g, [0, 5])]
    expected += [dgl.remove_self_loop(dgl.add_self_loop(g)), dgl.remove_nodes(g, [3]), dgl.batch([g, g])]
    for a, b in zip(made, expected, strict=True):
        same_graphs(a, b)


def test_formats_are_made_when_they_are_needed():
    t = on_torch(homogeneous())
    assert t.formats() == {"created": ["coo"], "not created": ["csr", "csc"]}
    t.in_degrees()
    assert t.formats()["created"] == ["coo", "csc"]
    assert t.formats("csc").formats() == {"created": ["csc"], "not created": []}
    assert t.formats(["csr"]).formats() == {"created": ["csr"], "not created": []}
    t.create_formats_()
    assert t.formats()["not created"] == []
    with pytest.raises(InputError, match="some of coo, csr, csc"):
        t.formats("dense")


def test_a_block_keeps_its_columns():
    g = block().formats("csc")
    t = on_torch(g)
    assert t.formats()["created"] == ["csc"]
    same_graphs(t, block())
    ids = torch.tensor([2, 0, 1])
    ordered = dgl.create_block(("csc", (torch.tensor([0, 2, 3]), torch.tensor([1, 0, 2]), ids)), 3, 2)
    assert on_torch(ordered.formats("csc"))._graph.relations[0].csc.edge_ids.tolist() == ids.tolist()
    same_graphs(on_torch(ordered), ordered)


@pytest.mark.parametrize("make", [homogeneous, block, heterogeneous])
def test_graphs_are_copied_saved_and_moved_to_the_cpu(make):
    g = make()
    t = on_torch(g)
    for other in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert type(other._graph) is TorchGraphIndex
        same_graphs(other, g)
    t._graph = t._graph.copy_to(g._graph.ctx)
    assert type(t._graph) is type(g._graph)
    same_graphs(t, g)


def test_a_graph_is_freed_without_the_collector():
    t = on_torch(homogeneous())
    dgl.ops.copy_u_sum(t, torch.randn(40, 2, requires_grad=True)).sum().backward()
    freed = weakref.ref(t._graph.relations[0].csr)
    gc.disable()
    try:
        del t
        assert freed() is None
    finally:
        gc.enable()


def test_what_only_dgl_can_do_is_refused_by_name():
    t = on_torch(homogeneous())
    with pytest.raises(MissingExtraError, match=r"dgl.sample_neighbors needs DGL's C\+\+.*manyhop_dgl.NeighborSampler"):
        dgl.sampling.sample_neighbors(t, [0], 2)
    with pytest.raises(MissingExtraError, match=r"dgl.to_simple needs .* g.to\('cpu'\)"):
        dgl.to_simple(t)
    with pytest.raises(MissingExtraError, match=r"dgl\.shared_memory needs"):
        t.shared_memory("name")
    with pytest.raises(MissingExtraError, match=r"dgl\.array needs .* got a graph on cuda:1"):
        dgl.ndarray.array([1], dgl.ndarray.gpu(1))
    with pytest.raises(AttributeError, match="no attribute 'weather'"):
        _ = t._graph.weather


def test_graphs_are_made_on_torch_tensors():
    g = homogeneous()
    src, dst = g.edges(order="eid")
    with graphs_of_cpu_too():
        made = dgl.graph((src, dst), num_nodes=40)
        columns = dgl.graph(("csc", g.adj_tensors("csc")), num_nodes=40)
        rows = dgl.graph(("csr", g.adj_tensors("csr")), num_nodes=40)
        typed = dgl.heterograph({("a", "r", "b"): (src, dst), ("b", "s", "b"): (dst, dst)})
        blocks = dgl.create_block((src, dst))
    for graph in (made, columns, rows):
        same_graphs(graph, g)
    assert type(typed._graph) is type(blocks._graph) is TorchGraphIndex
    same_graphs(typed, dgl.heterograph({("a", "r", "b"): (src, dst), ("b", "s", "b"): (dst, dst)}))
    assert type(dgl.graph((src, dst))._graph) is dgl.heterograph_index.HeteroGraphIndex


def test_blocks_of_samples_are_on_torch_tensors():
    g = homogeneous()
    g.ndata["x"] = torch.randn(40, 3)
    sampler = manyhop_dgl.NeighborSampler([3, 3], prefetch_node_feats=["x"], seed=0)
    options = {"batch_size": 8, "seed": 0}
    expected = list(manyhop_dgl.DataLoader(g, torch.arange(40), sampler, **options))
    with graphs_of_cpu_too():
        found = list(manyhop_dgl.DataLoader(g, torch.arange(40), sampler, **options))
    for (*ids, blocks), (*own_ids, own) in zip(found, expected, strict=True):
        same(ids, own_ids)
        for a, b in zip(blocks, own, strict=True):
            assert type(a._graph) is TorchGraphIndex
            assert a.formats()["created"] == ["csc"]
            same_graphs(a, b)
            same(a.srcdata[dgl.NID], b.srcdata[dgl.NID])
            same(a.edata[dgl.EID], b.edata[dgl.EID])
        same(blocks[0].srcdata["x"], own[0].srcdata["x"])


def test_blocks_of_graphbolt_are_on_torch_tensors():
    expected = [minibatch.blocks for minibatch in minibatches()]
    with graphs_of_cpu_too():
        found = [minibatch.blocks for minibatch in minibatches()]
    assert len(found) == len(expected) == 5
    for a, b in zip([a for blocks in found for a in blocks], [b for blocks in expected for b in blocks], strict=True):
        assert type(a._graph) is TorchGraphIndex
        same_graphs(a, b)


def test_dgls_transforms_work_through_what_is_there():
    g, t = homogeneous(), on_torch(homogeneous())
    with graphs_of_cpu_too():
        found = [dgl.khop_in_subgraph(t, [3, 8], 2)[0], dgl.add_reverse_edges(t), *dgl.unbatch(dgl.batch([t, t]))]
        typed = dgl.to_homogeneous(on_torch(heterogeneous()))
    expected = [dgl.khop_in_subgraph(g, [3, 8], 2)[0], dgl.add_reverse_edges(g), *dgl.unbatch(dgl.batch([g, g]))]
    for a, b in zip([*found, typed], [*expected, dgl.to_homogeneous(heterogeneous())], strict=True):
        assert type(a._graph) is TorchGraphIndex
        same_graphs(a, b)
