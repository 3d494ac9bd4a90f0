"""``topology_of``: what samplers read of a DGLGraph or a Graph, and when it is made again."""

import gc
import multiprocessing
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import manyhop_dgl
from manyhop.errors import GraphError
from manyhop.graph import PlacedGraph
from manyhop_dgl.graph import topology as topology_
from manyhop_dgl.graph.topology import topology_of
from manyhop_dgl.samplers.plan import Plan

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

KINDS = ["csc", "csr", "coo", "ours"]


def as_kind(g, kind):
    return manyhop_dgl.Graph.from_dgl(g) if kind == "ours" else g.formats(kind)


def hetero(idtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    sizes = {"film": 7, "genre": 3, "person": 5}

    def edges(src, dst, n):
        return tuple(torch.randint(0, sizes[t], (n,), generator=generator).to(idtype) for t in (src, dst))

    return dgl.heterograph(
        {
            ("person", "acts", "film"): edges("person", "film", 20),
            ("person", "knows", "person"): edges("person", "person", 12),
            ("film", "of", "genre"): edges("film", "genre", 9),
            ("genre", "none", "film"): edges("genre", "film", 0),
        },
        num_nodes_dict=sizes,
    )


def edges_of(csc):
    """``{edge id: (src, dst)}``."""
    col = torch.repeat_interleave(torch.diff(csc.colptr))
    perm = torch.arange(csc.num_edges) if csc.perm is None else csc.perm
    return {e: (r, c) for e, r, c in zip(perm.tolist(), csc.row.tolist(), col.tolist(), strict=True)}


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("kind", KINDS)
def test_edges_under_their_ids(kind, edge_dir, idtype):
    g = hetero(idtype)
    topology = topology_of(as_kind(g, kind), edge_dir=edge_dir)
    assert topology.index_dtype == idtype
    assert not topology.weighted
    assert list(topology.graph.num_nodes.items()) == [(t, g.num_nodes(t)) for t in g.ntypes]
    assert list(topology.edge_types) == g.canonical_etypes
    assert list(topology.edge_types.values()) == list(topology.graph.csc)
    for edge_type, ours in topology.edge_types.items():
        src, dst = (ids.tolist() for ids in g.edges(etype=edge_type))
        ends = (src, dst) if edge_dir == "in" else (dst, src)
        assert ours == (edge_type if edge_dir == "in" else edge_type[::-1])
        assert edges_of(topology.graph.csc[ours]) == dict(enumerate(zip(*ends, strict=True)))


def test_the_order_within_a_column_is_dgls():
    """Full fanouts then give DGL's own blocks, edge by edge."""
    g = dgl.rand_graph(30, 300)
    table = topology_of(g).graph.csc[g.canonical_etypes[0]]
    pointer, row, edge_id = g.adj_tensors("csc")
    assert torch.equal(table.colptr, pointer)
    assert torch.equal(table.row.long(), row)
    assert torch.equal(table.perm.long(), edge_id)


def test_tables_with_int32_ids_are_not_copied():
    g = dgl.rand_graph(30, 300).int()
    (table,) = topology_of(g).graph.csc.values()
    _, row, edge_id = g.adj_tensors("csc")
    assert (table.row.data_ptr(), table.perm.data_ptr()) == (row.data_ptr(), edge_id.data_ptr())


def test_positions_that_are_ids_need_no_table():
    pointer, row = torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1])
    for ids in (torch.empty(0, dtype=torch.int64), torch.arange(3)):
        (table,) = topology_of(dgl.graph(("csc", (pointer, row, ids)))).graph.csc.values()
        assert table.perm is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_weights_by_edge_id(kind, edge_dir):
    g = as_kind(hetero(), kind)
    acts, knows = ("person", "acts", "film"), ("person", "knows", "person")
    g.edges[acts].data["w"] = torch.rand(20)
    g.edges[knows].data["w"] = torch.rand(12, 1, dtype=torch.float64)
    plain, topology = topology_of(g, edge_dir=edge_dir), topology_of(g, edge_dir=edge_dir, prob="w")
    assert topology.weighted
    for edge_type, ours in topology.edge_types.items():
        table, bare = topology.graph.csc[ours], plain.graph.csc[ours]
        assert table.row is bare.row
        assert table.colptr is bare.colptr
        assert table.perm is bare.perm
        if edge_type not in (acts, knows):
            assert table.weight is None
            continue
        weight = g.edges[edge_type].data["w"].view(-1).double()
        assert torch.equal(table.weight, weight[table.perm.long()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("name", ["prob", "mask"])
def test_masks_leave_ids_alone(kind, edge_dir, name):
    g = as_kind(hetero(), kind)
    acts = ("person", "acts", "film")
    g.edges[acts].data["m"] = torch.arange(20) % 3 != 0
    plain, topology = topology_of(g, edge_dir=edge_dir), topology_of(g, edge_dir=edge_dir, **{name: "m"})
    assert not topology.weighted
    ours = topology.edge_types[acts]
    expected = {e: ends for e, ends in edges_of(plain.graph.csc[ours]).items() if e % 3 != 0}
    assert edges_of(topology.graph.csc[ours]) == expected
    assert int(topology.graph.csc[ours].colptr[-1]) == len(expected) == 13
    for edge_type in set(plain.graph.csc) - {ours}:
        assert topology.graph.csc[edge_type] is plain.graph.csc[edge_type]


def test_a_mask_of_nothing_and_of_everything():
    g = dgl.rand_graph(5, 20)
    g.edata["none"], g.edata["all"] = torch.zeros(20, dtype=torch.bool), torch.ones(20, dtype=torch.bool)
    (nothing,) = topology_of(g, mask="none").graph.csc.values()
    assert (nothing.num_edges, nothing.colptr.tolist()) == (0, [0] * 6)
    (whole,), (plain,) = topology_of(g, mask="all").graph.csc.values(), topology_of(g).graph.csc.values()
    assert edges_of(whole) == edges_of(plain)


@pytest.mark.parametrize("kind", ["csc", "ours"])
def test_made_once_and_again_after_changes(kind):
    g = as_kind(dgl.rand_graph(10, 40), kind)
    g.edata["w"] = torch.rand(40)
    first = topology_of(g, prob="w")
    assert topology_of(g, prob="w") is first
    assert topology_of(g, edge_dir="out") is topology_of(g, edge_dir="out")
    g.edata["w"][3] = 0  # in place
    second = topology_of(g, prob="w")
    assert second is not first
    assert float(second.graph.csc["_N", "_E", "_N"].weight.min()) == 0
    g.edata["w"] = g.edata["w"] * 2  # replaced
    third = topology_of(g, prob="w")
    assert torch.equal(third.graph.csc["_N", "_E", "_N"].weight, second.graph.csc["_N", "_E", "_N"].weight * 2)
    g.edata["other"] = torch.rand(40)  # of no concern
    assert topology_of(g, prob="w") is third
    g.edata.pop("w")
    with pytest.raises(GraphError, match="got a graph without any"):
        topology_of(g, prob="w")


@pytest.mark.parametrize("kind", ["csc", "ours"])
def test_tables_go_with_their_graph(kind):
    g = as_kind(dgl.rand_graph(10, 40), kind)
    kept = weakref.ref(topology_of(g, edge_dir="out"))
    del g
    gc.collect()
    assert kept() is None


def test_plans_go_with_their_sampler():
    """Their memory, and on a GPU the edges."""

    def plans():
        gc.collect()
        return sum(isinstance(found, Plan) for found in gc.get_objects())

    g, before = dgl.rand_graph(10, 40), plans()
    sampler = manyhop_dgl.NeighborSampler([2])
    sampler.sample(g, torch.arange(3))
    list(manyhop_dgl.DataLoader(g, torch.arange(3), sampler, output="tensors", num_workers=1))
    assert plans() == before + 1
    del sampler
    assert plans() == before


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_process_forked_while_a_thread_builds():
    g = dgl.rand_graph(10, 40)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(topology_._lock.acquire).result()
        child = multiprocessing.get_context("fork").Process(target=topology_of, args=(g,))
        child.start()
        child.join(120)
        pool.submit(topology_._lock.release).result()
    exit_code = child.exitcode
    if exit_code is None:
        child.kill()
    assert exit_code == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.rand(39), r"\[40\] or \[40, 1\], got a tensor torch.float32 \[39\]"),
        (torch.zeros(40, dtype=torch.complex64), "real weights"),
    ],
)
def test_weights_that_make_no_sense(data, message):
    g = dgl.rand_graph(10, 40)
    g._edge_frames[0]._columns["w"] = dgl.frame.Column(data)  # DGL itself would refuse some
    with pytest.raises(GraphError, match=message):
        topology_of(g, prob="w")


@pytest.mark.filterwarnings("ignore:.*quantized")
def test_weights_without_numbers_in_memory():
    g = dgl.rand_graph(10, 40)
    for odd in (torch.rand(40).to_sparse(), torch.quantize_per_tensor(torch.rand(40), 1.0, 0, torch.quint8)):
        g._edge_frames[0]._columns["w"] = dgl.frame.Column(odd)
        with pytest.raises(GraphError, match="'w' as a dense tensor on the CPU"):
            topology_of(g, prob="w")


@pytest.mark.parametrize("kind", ["csc", "ours"])
def test_a_new_loader_notices_weights_that_numpy_has_written(kind):
    g = as_kind(dgl.rand_graph(20, 60), kind)
    g.edata["w"] = torch.ones(60)
    sampler = manyhop_dgl.NeighborSampler([2], prob="w")

    def loader():
        return manyhop_dgl.DataLoader(g, torch.arange(20), sampler)

    loader()
    before = topology_of(g, prob="w")
    loader()
    assert topology_of(g, prob="w") is before
    g.edata["w"].numpy()[7] = 3.0
    loader()
    (csc,) = topology_of(g, prob="w").graph.csc.values()
    assert torch.equal(csc.weight.sort().values, g.edata["w"].double().sort().values.to(csc.weight.dtype))


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edges_wait_for_their_reader(few_are_many, request, edge_dir):
    """Where a GPU may come to sample, edges are grouped when and where they are read."""
    edges = tuple(torch.randint(0, 200, (2, 3000), generator=torch.Generator().manual_seed(0)))
    expected = topology_of(manyhop_dgl.Graph(edges, num_nodes=200), edge_dir=edge_dir).graph
    request.getfixturevalue("gpu_in_reach")
    g = manyhop_dgl.Graph(edges, num_nodes=200)
    graph = topology_of(g, edge_dir=edge_dir).graph
    if edge_dir == "in":
        assert not graph.is_made
        placed = PlacedGraph.of(graph, torch.device("cpu"), "device").graph
        assert not graph.is_made
        assert all(map(torch.equal, placed.tables(), expected.tables()))
    assert all(map(torch.equal, graph.tables(), expected.tables()))
    assert g.num_edges() == 3000
