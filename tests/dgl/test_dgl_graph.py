"""``manyhop_dgl.Graph``: what training scripts ask of a graph, answered as DGL answers."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch

import manyhop_dgl
from manyhop import files
from manyhop.errors import FeatureError, GraphError, InputError
from manyhop_dgl import Graph
from manyhop_dgl.graph.topology import topology_of

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

ACTS, KNOWS, OF = ("person", "acts", "film"), ("person", "knows", "person"), ("film", "of", "genre")


def edge_lists():
    generator = torch.Generator().manual_seed(3)
    sizes = {"person": 5, "film": 7, "genre": 3}
    counts = {OF: 9, ACTS: 20, KNOWS: 12}
    ends = {
        t: tuple(torch.randint(0, sizes[e], (n,), generator=generator) for e in (t[0], t[2])) for t, n in counts.items()
    }
    return ends, sizes


def both():
    """A DGLGraph and a Graph of the same edges and data, made apart."""
    edges, sizes = edge_lists()
    pair = dgl.heterograph(edges, sizes), Graph(edges, sizes)
    for g in pair:
        g.nodes["film"].data["x"] = torch.arange(14.0).view(7, 2)
        g.nodes["person"].data["x"] = torch.arange(5.0).view(5, 1)
        g.nodes["film"].data["y"] = torch.arange(7)
        g.edges["acts"].data["w"] = torch.arange(20.0)
    return pair


def both_homogeneous():
    g = dgl.rand_graph(6, 20)
    g.ndata["x"] = torch.randn(6, 3)
    return g, Graph.from_dgl(g)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b


QUESTIONS = [
    lambda g: g.ntypes,
    lambda g: g.etypes,
    lambda g: g.canonical_etypes,
    lambda g: g.to_canonical_etype("acts"),
    lambda g: g.to_canonical_etype(KNOWS),
    lambda g: (g.get_ntype_id("genre"), g.get_etype_id("acts"), g.get_etype_id(OF)),
    lambda g: (g.idtype, g.device, g.is_homogeneous, g.is_block),
    lambda g: (g.num_nodes(), g.num_nodes("film"), g.number_of_nodes("genre"), g.num_src_nodes("film")),
    lambda g: (g.num_edges(), g.num_edges("acts"), g.number_of_edges(KNOWS)),
    lambda g: g.nodes("film"),
    lambda g: g.edges(etype="acts"),
    lambda g: g.edges(form="all", etype=KNOWS),
    lambda g: g.edges(form="eid", etype=KNOWS),
    lambda g: g.edges(form="uv", order="srcdst", etype="acts"),
    lambda g: g.find_edges(torch.tensor([19, 0, 3]), "acts"),
    lambda g: g.find_edges([2, 2], etype=OF),
    lambda g: g.in_degrees(etype="acts"),
    lambda g: g.in_degrees(torch.tensor([3, 0]), etype="acts"),
    lambda g: g.in_degrees(3, etype="acts"),
    lambda g: g.out_degrees(etype="acts"),
    lambda g: g.out_degrees([4, 4], etype=OF),
    lambda g: g.out_degrees(0, etype=OF),
    lambda g: g.has_edges_between(*g.find_edges([3, 4], "acts"), etype="acts"),
    lambda g: g.has_edges_between(torch.arange(5).repeat_interleave(7), torch.arange(7).repeat(5), etype="acts"),
    lambda g: g.has_edges_between(0, torch.arange(7), etype="acts"),
    lambda g: g.has_edges_between(1, 1, etype="acts"),
    lambda g: g.nodes["film"].data["x"],
    lambda g: sorted(g.nodes["film"].data.keys()),
    lambda g: g.ndata["x"],
    lambda g: sorted(g.ndata.keys()),
    lambda g: g.edata["w"],
    lambda g: ("x" in g.ndata, "x" in g.nodes["film"].data, "y" in g.nodes["person"].data),
    lambda g: g.int().idtype,
    lambda g: g.int().find_edges([3], "acts"),
    lambda g: g.int().long().in_degrees(etype="acts"),
    lambda g: g.to("cpu").ntypes,
    lambda g: sorted(g.formats()),
]


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_answers_are_dgls(number):
    theirs, ours = both()
    assert same(QUESTIONS[number](theirs), QUESTIONS[number](ours))


ONE = (3, [3], torch.tensor(3), torch.tensor([3]), np.array([3]), np.int64(3))


def test_answers_of_a_graph_without_types():
    theirs, ours = both_homogeneous()
    for ask in (
        lambda g: (g.ntypes, g.canonical_etypes, g.is_homogeneous, g.num_nodes(), g.num_edges()),
        lambda g: (g.nodes(), g.edges(), g.find_edges([5]), g.in_degrees(), g.out_degrees(), g.in_degrees([1, 1])),
        lambda g: (g.ndata["x"], g.nodes["_N"].data["x"], list(g.ndata), list(g.edata), len(g.ndata)),
        lambda g: g.srcnodes() if isinstance(g, dgl.DGLGraph) else g.nodes(),
        *(lambda g, one=one: (g.in_degrees(one), g.out_degrees(one), g.has_edges_between(one, one)) for one in ONE),
    ):
        assert same(ask(theirs), ask(ours))


def test_data_is_set_replaced_and_removed():
    for g in both():
        g.nodes["film"].data["z"] = torch.ones(7)
        g.nodes["film"].data.update({"z": torch.zeros(7), "v": torch.ones(7, 2)})
        assert g.nodes["film"].data.pop("z").sum() == 0
        g.ndata["h"] = {"film": torch.ones(7), "genre": torch.ones(3)}
        assert sorted(g.ndata["h"]) == ["film", "genre"]
        g.ndata.pop("h")
        assert "h" not in g.nodes["genre"].data
        g.edata["k"] = {KNOWS: torch.ones(12)}
        assert g.edges["knows"].data["k"].shape == (12,)
        del g.edges[KNOWS].data["k"]
        assert "k" not in list(g.edata)
        with pytest.raises(KeyError):
            g.nodes["film"].data["k"]
        with pytest.raises(KeyError):
            g.nodes["film"].data.pop("k")
        with g.local_scope():
            g.nodes["film"].data["x"] = torch.zeros(7)
            g.nodes["film"].data.pop("y")
        assert g.nodes["film"].data["x"].shape == (7, 2)
        assert "y" in g.nodes["film"].data
        other = g.local_var()
        other.nodes["film"].data["x"] = torch.zeros(7)
        assert g.nodes["film"].data["x"].shape == (7, 2)


def test_a_name_that_no_type_has():
    """DGL itself gives an empty dictionary here, and says that every name is there."""
    _, g = both()
    assert "w" not in g.ndata
    with pytest.raises(KeyError, match="no type has data 'w'"):
        g.ndata["w"]


def test_data_is_not_copied():
    _, g = both()
    x = torch.zeros(7, 2)
    g.nodes["film"].data["x"] = x
    assert g.nodes["film"].data["x"] is x
    assert Graph.from_dgl(g.to_dgl()).nodes["film"].data["x"].data_ptr() == x.data_ptr()


def test_to_dgl_and_back():
    theirs, ours = both()
    for other in (ours.to_dgl(), ours.int().to_dgl().long(), Graph.from_dgl(theirs), pickle.loads(pickle.dumps(ours))):
        assert other.canonical_etypes == theirs.canonical_etypes
        for t in theirs.canonical_etypes:
            assert same(theirs.edges(etype=t), other.edges(etype=t))
            assert same(dict(theirs.edges[t].data), dict(other.edges[t].data))
        for t in theirs.ntypes:
            assert theirs.num_nodes(t) == other.num_nodes(t)
            assert sorted(theirs.nodes[t].data) == sorted(other.nodes[t].data)
            assert all(same(theirs.nodes[t].data[k], other.nodes[t].data[k]) for k in theirs.nodes[t].data)


def test_copies():
    _, g = both()
    for other in (copy.copy(g), copy.deepcopy(g)):
        assert torch.equal(other.nodes["film"].data["x"], g.nodes["film"].data["x"])
        assert torch.equal(
            topology_of(other, prob="w").graph.csc[ACTS].weight.sort().values, torch.arange(20.0).double()
        )


def test_files(tmp_path):
    """Edges lie in order of destination afterwards, and so does their data."""
    theirs, ours = both()
    ours.save(tmp_path / "g")
    for placement in ("process", "mapped", "shared", "sharded", "auto"):
        g = Graph.open(tmp_path / "g", placement=placement, idtype=torch.int32)
        assert (g.idtype, g.ntypes, g.canonical_etypes) == (torch.int32, theirs.ntypes, theirs.canonical_etypes)
        assert same(g.nodes["film"].data["x"], theirs.nodes["film"].data["x"])
        src, dst = g.edges(etype="acts")
        assert torch.equal(dst, dst.sort().values)
        where = g.edges["acts"].data["w"].long()  # which edge it was
        before = theirs.edges(etype="acts")
        assert torch.equal(src, before[0][where].int())
        assert torch.equal(dst, before[1][where].int())
    with pytest.raises(InputError, match="expected a folder"):
        Graph.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="Expected placement to be one of"):
        Graph.open(tmp_path / "g", placement="moon")
    with pytest.raises(InputError):
        ours.save(tmp_path / "g")
    row = files.open(tmp_path / "g" / "person.acts.film.row.npy").mapped()
    row[0] = 1000
    (tmp_path / "g" / "person.acts.film.row.npy").unlink()
    files.write(tmp_path / "g" / "person.acts.film.row.npy", row)
    with pytest.raises(GraphError, match=r"person\.acts\.film\.row\.npy is damaged"):
        Graph.open(tmp_path / "g")


def test_files_of_a_graph_without_types(tmp_path):
    theirs, ours = both_homogeneous()
    ours.save(tmp_path / "g", crc32=True)
    g = Graph.open(tmp_path / "g", placement="process")
    assert g.is_homogeneous
    assert same(g.ndata["x"], theirs.ndata["x"])
    assert sorted(zip(*(x.tolist() for x in g.edges()), strict=True)) == sorted(
        zip(*(x.tolist() for x in theirs.edges()), strict=True)
    )


def test_numbers_of_nodes():
    assert Graph(([0, 4], [1, 2])).num_nodes() == 5
    assert Graph(([0, 4], [1, 2]), 9).num_nodes() == 9
    assert Graph(([], []), 3).in_degrees().tolist() == [0, 0, 0]
    g = Graph({("b", "r", "a"): ([3], [1])}, {"c": 4, "b": 4, "a": 2})
    assert (g.ntypes, g.num_nodes("c")) == (["a", "b", "c"], 4)
    assert Graph((torch.tensor([0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32))).idtype == torch.int32
    assert Graph(([0], [1]), idtype=torch.int32).idtype == torch.int32


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_a_graph_without_edges(num_nodes, tmp_path):
    theirs, made = dgl.graph(([], []), num_nodes=num_nodes), Graph(([], []), num_nodes)
    theirs.edata["w"], made.edata["w"] = torch.rand(0), torch.rand(0)
    made.save(tmp_path / "g")
    for g in (Graph.from_dgl(theirs), made, Graph.from_dgl(made.to_dgl()), Graph.open(tmp_path / "g")):
        assert (g.num_nodes(), g.num_edges()) == (num_nodes, 0)
        assert same(g.edges(), theirs.edges())
        assert same(g.out_degrees(), theirs.out_degrees())
        assert same((g.in_degrees([]), *g.find_edges([])), (torch.empty(0, dtype=torch.int64),) * 3)
        assert g.has_edges_between([], []).tolist() == []
        for how in ({}, {"prob": "w"}, {"edge_dir": "out"}):
            assert topology_of(g, **how).graph.csc["_N", "_E", "_N"].num_edges == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Graph({("a", "b"): ([0], [1])}), InputError, "source type, relation, destination type"),
        (lambda: Graph(([0, 1], [1])), GraphError, r"\[2\] and \[1\]"),
        (lambda: Graph(([0.5], [1.0])), GraphError, "int64 or int32"),
        (lambda: Graph(([0, 9], [1, 1]), 5), GraphError, r"in \[0, 5\), got 9"),
        (lambda: Graph(([0, -1], [1, 1])), GraphError, "got -1"),
        (lambda: Graph(torch.zeros(3)), GraphError, "sources, destinations"),
        (lambda: Graph({ACTS: ([0], [1])}, 3), InputError, r"num_nodes as \{node type: number\}"),
        (lambda: Graph({ACTS: ([0], [1])}, {"person": 1}), GraphError, "unknown node type 'film'"),
        (lambda: Graph(([0], [1]), -1), InputError, "0 or more"),
        (lambda: Graph(([0], [1]), idtype=torch.int16), InputError, "int32 or torch.int64"),
        (lambda: Graph(([0], [1]), placement="moon"), InputError, "placement"),
        (lambda: Graph(([0], [1]), rank_timeout=3), InputError, "rank_timeout"),
        (lambda: Graph.from_dgl([]), InputError, "DGLGraph"),
        (lambda: Graph.from_dgl(Graph(([0], [1]))), InputError, "Expected a DGLGraph, got Graph"),
        (lambda: manyhop_dgl.share(3), InputError, "function that loads a graph"),
    ],
)
def test_graphs_that_make_no_sense(make, error, message):
    with pytest.raises(error, match=message):
        make()


def set_film(value):
    def do(g):
        g.nodes["film"].data["x"] = value

    return do


@pytest.mark.parametrize(
    ("do", "error", "message"),
    [
        (
            set_film(torch.ones(6)),
            FeatureError,
            "'x' of the nodes of type 'film' to have 7 rows",
        ),
        (set_film(torch.tensor(1.0)), FeatureError, r"got shape \[\]"),
        (set_film([1.0] * 7), FeatureError, "as a tensor, got a list"),
        (set_film(torch.ones(7, 2).to_sparse()), FeatureError, "dense"),
        (set_film(torch.nested.nested_tensor([torch.ones(2)] * 7, layout=torch.jagged)), FeatureError, "dense"),
        (set_film(torch.ones(7, device="meta")), FeatureError, "on the CPU, like the graph, got it on meta"),
        (lambda g: g.nodes["film"].data.update({3: torch.ones(7)}), InputError, "as a string"),
        (lambda g: g.ndata.update({"x": torch.ones(7)}), FeatureError, r"Expected \{type: tensor\}"),
        (lambda g: g.ndata.update({"x": {"flim": torch.ones(7)}}), InputError, "Unknown node type 'flim'"),
        (lambda g: g.nodes["flim"], InputError, "Unknown node type 'flim'"),
        (lambda g: g.nodes(), InputError, "as the graph has several"),
        (lambda g: g.edges["likes"], InputError, "Unknown edge type 'likes'"),
        (lambda g: g.edges[("film", "acts", "film")], InputError, "Unknown edge type"),
        (lambda g: g.in_degrees(), InputError, "as the graph has several"),
        (lambda g: g.in_degrees([7], etype="acts"), InputError, r"in \[0, 7\), got 7"),
        (lambda g: g.in_degrees([0.5], etype="acts"), InputError, "1-dimensional tensor of integers"),
        (lambda g: g.in_degrees(torch.ones(7, dtype=torch.uint8), etype="acts"), InputError, "a dtype of masks"),
        (lambda g: g.find_edges([20], etype="acts"), InputError, r"in \[0, 20\), got 20"),
        (lambda g: g.has_edges_between([0, 1], [0, 1, 2], etype="acts"), InputError, "as many sources"),
        (lambda g: g.edges(form="x", etype="acts"), InputError, "form 'uv'"),
        (lambda g: g.formats("dense"), InputError, "among 'coo'"),
        (lambda g: g.to("cuda:0"), InputError, r"pass device='cuda:0' to DataLoader"),
        (lambda g: g.put_rows("x", torch.ones(7), begin=0, ntype="film"), InputError, "belongs to this process"),
        (lambda g: g.put_rows("x", torch.ones(7), begin=-1, ntype="film"), InputError, "0 or more"),
        (lambda g: g.put_rows("x", torch.ones(7), begin=0, ntype="film", etype="of"), InputError, "either"),
        (lambda g: g.update_all, AttributeError, r"no 'update_all'.*g.to_dgl\(\)"),
        (lambda g: g.edge_subgraph, AttributeError, r"g.to_dgl\(\)"),
        (lambda g: g._secret, AttributeError, "no attribute '_secret'"),
    ],
)
def test_uses_that_make_no_sense(do, error, message):
    _, g = both()
    with pytest.raises(error, match=message):
        do(g)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to pin memory for")
def test_pinning_needs_a_gpu():
    _, g = both()
    assert not g.is_pinned()
    with pytest.raises(InputError, match="CUDA"):
        g.pin_memory_()
    assert g.unpin_memory_() is g


def test_a_relation_that_several_types_have():
    g = Graph({("a", "r", "b"): ([0], [0]), ("b", "r", "a"): ([0], [0])})
    with pytest.raises(InputError, match="Ambiguous edge type"):
        g.in_degrees(etype="r")
    assert g.in_degrees(etype=("b", "r", "a")).tolist() == [1]


def look(graphs, results):
    seen = []
    for g in graphs:
        table = topology_of(g, prob="w").graph.csc["_N", "_E", "_N"]
        seen.append((table.row.tolist(), table.weight.tolist(), g.ndata["x"].sum().item()))
        g.ndata["x"][0] = -1  # the memory is the parent's
    results.put(seen)


def test_spawned_processes_see_the_same_memory():
    g = dgl.rand_graph(50, 400).int()
    g.ndata["x"], g.edata["w"] = torch.ones(50), torch.rand(400)
    g.create_formats_()
    ours = Graph.from_dgl(g)
    ours.ndata["x"] = torch.ones(50)
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=look, args=([g, ours], results))
    process.start()
    seen = results.get()
    process.join()
    for graph, (row, weight, total) in zip([g, ours], seen, strict=True):
        table = topology_of(graph, prob="w").graph.csc["_N", "_E", "_N"]
        assert (table.row.tolist(), table.weight.tolist(), total) == (row, weight, 50.0)
        assert graph.ndata["x"][0] == -1
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_edges_changed_in_place(dtype):
    """The stored form is int32 ids in order of destination, which were not copied."""
    src, dst = torch.tensor([1, 2, 3, 0], dtype=dtype), torch.arange(4, dtype=dtype)
    g = Graph((src, dst))
    src.fill_(2**31 - 1)  # out of range
    assert manyhop_dgl.sample_tensors(g, [0], [2]).input_nodes.tolist() == [0, 1]
    assert g.edges()[0].tolist() == [1, 2, 3, 0]
