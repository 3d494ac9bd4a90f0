"""``manyhop_dgl.Graph`` made by several ranks together, or by one of each node for all of them."""

import re
from importlib.util import find_spec

import pytest
import torch

import manyhop
from manyhop.errors import FeatureError, GraphError, ManyhopError, RankError
from manyhop.features import ShardedRows
from manyhop.memory.mapped_files import identity
from manyhop.ranks import control
from manyhop_dgl import Graph, share
from manyhop_dgl.graph.topology import topology_of

FOUR = [0, 0, 1, 1]
KIND = ("user", "rates", "film")


def parts(world_size):
    """Edges and data of every rank; the last but one has none."""
    draw = torch.Generator().manual_seed(0)
    counts = [40 + rank if rank != world_size - 2 else 0 for rank in range(world_size)]
    edges = [(torch.randint(0, 30, (n,), generator=draw), torch.randint(0, 50, (n,), generator=draw)) for n in counts]
    return edges, [torch.rand(n, generator=draw) for n in counts], torch.randn(50, 3, generator=draw), counts


def whole(world_size):
    edges, weights, x, _ = parts(world_size)
    g = Graph({KIND: tuple(torch.cat(ends) for ends in zip(*edges, strict=True))}, {"user": 30, "film": 50})
    g.edata["w"] = torch.cat(weights)
    g.nodes["film"].data["x"] = x
    return g


def tables(g, **how):
    ((_, table),) = topology_of(g, **how).graph.csc.items()
    return [t for t in (table.colptr, table.row, table.perm, table.weight, table.alias) if t is not None]


def make_together(placement):
    world = manyhop.init()
    edges, weights, x, counts = parts(world.world_size)
    g = Graph({KIND: edges[world.rank]}, {"user": 30, "film": 50}, placement=placement, rank_timeout=100.0)
    g.put_rows("w", weights[world.rank], begin=sum(counts[: world.rank]), etype="rates")
    cuts = [0, 10, 10, 45, 50]
    g.put_rows("x", x[cuts[world.rank] : cuts[world.rank + 1]], begin=cuts[world.rank], ntype="film")
    g.nodes["film"].data["z"] = x * 2
    expected = whole(world.world_size)
    for how in ({}, {"prob": "w"}, {"edge_dir": "out"}):
        assert all(map(torch.equal, tables(g, **how), tables(expected, **how)))
    assert all(map(torch.equal, g.find_edges([0, 99], KIND), expected.find_edges([0, 99], KIND)))
    data = g.nodes["film"].data
    assert torch.equal(g.edata["w"], expected.edata["w"])
    problem = ""
    try:
        data["short"] = x[:49] if world.rank == 1 else x
    except ManyhopError as error:
        problem = type(error).__name__
    if placement == "sharded":
        mine = slice(0, 25) if world.node == 0 else slice(25, 50)
        assert isinstance(data["x"], ShardedRows)
        assert torch.equal(data["x"].rows, x[mine])
        assert torch.equal(data["z"].rows, x[mine] * 2)
        return data["x"].shape, identity(data["x"].rows), problem
    assert torch.equal(data["x"], x)
    assert torch.equal(data["z"], x * 2)
    return data["x"].shape, identity(data["x"]), problem


def test_parts_of_ranks(launcher, two_nodes):
    for placement in ("shared", "sharded"):
        results = launcher.run(make_together, placement, node_of=FOUR, nodes=two_nodes)
        assert [shape for shape, _, _ in results] == [(50, 3)] * 4
        memory = [name for _, name, _ in results]
        assert memory[0] == memory[1] != memory[2] == memory[3]
        assert None not in memory
        assert all(problem for _, _, problem in results)


def load():
    print("loaded here")
    return whole(4)


def make_once(how):
    import dgl

    world = manyhop.init()
    if how == "graph":
        g = share(load)
    elif how == "file":
        g = share(whole(4))
    else:
        g = share(lambda: load().to_dgl())
        assert isinstance(g, dgl.DGLGraph)
        assert torch.equal(g.edata["w"], whole(4).edata["w"])
        control.exchange("all have the graph", {}, timeout=60.0)  # a rank that ends takes its copy along
        return [identity(g.nodes["film"].data["x"])], None
    expected = whole(4)
    names = []
    for options in ({}, {"prob": "w"}, {"edge_dir": "out"}):
        found = tables(g, **options)
        assert all(map(torch.equal, found, tables(expected, **options)))
        names += [identity(table) for table in found]
    control.exchange("tables are compared", {}, timeout=60.0)  # they live as long as a rank uses them
    g.edata["mine"] = torch.full((g.num_edges(),), float(world.rank))  # of this rank only
    return [*names, identity(g.nodes["film"].data["x"])], float(tables(g, prob="mine")[3][0])


def test_one_copy_per_node(launcher):
    for how in ("graph", "file", "dgl") if find_spec("dgl") else ("graph", "file"):
        ranks = launcher.start(make_once, how)
        results = ranks.wait()
        assert [r.exit_code for r in results] == [0, 0], [(r.error, r.output) for r in results]
        (first, mine), (second, yours) = (r.value for r in results)
        assert first == second
        assert None not in first
        if how != "dgl":
            assert (mine, yours) == (0.0, 1.0)
        assert sum("loaded here" in r.output for r in results) == (0 if how == "file" else 1)


def open_sharded(folder):
    g = Graph.open(folder, placement="sharded")
    expected = whole(4)
    x, w = g.nodes["film"].data["x"], g.edata["w"]
    assert isinstance(x, ShardedRows)
    world = manyhop.init()
    assert torch.equal(x.rows, expected.nodes["film"].data["x"][slice(0, 25) if world.node == 0 else slice(25, 50)])
    assert torch.equal(w.sort().values, expected.edata["w"].sort().values)
    for refuse in (g.to_dgl, lambda: g.save(f"{folder}-{world.rank}")):
        with pytest.raises(FeatureError, match="spread"):
            refuse()
    return identity(w), tables(g)[1].tolist()


def test_a_folder_spread_over_nodes(launcher, two_nodes, tmp_path):
    whole(4).save(tmp_path / "g")
    results = launcher.run(open_sharded, str(tmp_path / "g"), node_of=FOUR, nodes=two_nodes)
    assert results[0] == results[1]
    assert None is not results[0][0] != results[2][0] is not None
    assert results[0][1] == results[2][1] == tables(Graph.open(tmp_path / "g"))[1].tolist()


def other_types():
    kind = KIND if manyhop.init().rank == 0 else ("user", "hates", "film")
    try:
        Graph({kind: ([0], [1])}, {"user": 3, "film": 3}, placement="shared", rank_timeout=8.0)
    except RankError as error:
        return str(error)


def make_with_all_edges(counts):
    """Each rank gives the first edges of the same list, so many."""
    edges = torch.arange(12).view(2, 6)[:, : counts[manyhop.init().rank]]
    try:
        return Graph((edges[0], edges[1]), 12, placement="shared", rank_timeout=100.0).num_edges()
    except GraphError as error:
        return str(error)


@pytest.mark.parametrize(
    ("counts", "found"), [([6, 6], "of the edges of .* got the same 6 on ranks 0 and 1"), ([6, 0], 6)]
)
def test_edges_that_all_ranks_give(launcher, counts, found):
    for seen in launcher.run(make_with_all_edges, counts, node_of=[0, 1]):
        assert seen == found if isinstance(found, int) else re.search(found, seen)


def test_ranks_that_make_other_graphs(launcher):
    assert all("hates" in text or "rates" in text for text in launcher.run(other_types))
