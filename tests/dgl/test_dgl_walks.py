"""DGL's random walks and samplers of PinSAGE: arguments and results are DGL's, what is drawn is the reference's."""

import dgl
import pytest
import torch

import manyhop_dgl
from manyhop.errors import GraphError, InputError
from manyhop.sampling import BatchKey, ReferenceWalkSampler, WalkRequest
from manyhop_dgl.graph.topology import topology_of
from manyhop_dgl.samplers.walks import walk, walk_spec


@pytest.fixture
def graph():
    g = torch.Generator().manual_seed(1)
    graph = dgl.graph(tuple(torch.randint(0, 17, (2, 60), generator=g)), num_nodes=20)  # 17 to 19 have no edges
    graph.edata["w"] = torch.rand(60, 1, generator=g) * (torch.rand(60, 1, generator=g) < 0.8)
    return graph


def typed(idtype=torch.int64):
    g = torch.Generator().manual_seed(2)
    users, items = torch.randint(0, 8, (30,), generator=g), torch.randint(0, 12, (30,), generator=g)
    edges = {("user", "likes", "item"): (users, items), ("item", "by", "user"): (items, users)}
    edges["user", "knows", "user"] = (torch.arange(6), torch.arange(6) + 1)
    return dgl.heterograph(edges, {"user": 8, "item": 12}, idtype=idtype)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_results_are_as_dgls(idtype):
    g, path = typed(idtype), ["knows", ("user", "likes", "item"), "by"]
    dgl.seed(4)
    traces, eids, types = manyhop_dgl.random_walk(g, torch.arange(8), metapath=path, return_eids=True)
    theirs = dgl.sampling.random_walk(g, torch.arange(8, dtype=idtype), metapath=path, return_eids=True)
    for ours, other in zip((traces, eids, types), theirs, strict=True):
        assert ours.dtype == other.dtype == idtype
        assert ours.shape == other.shape
    assert torch.equal(types, theirs[2])
    for t, step in enumerate(path):
        taken = eids[:, t] >= 0
        assert torch.equal(taken, traces[:, t + 1] >= 0)
        src, dst = g.find_edges(eids[taken, t], etype=step)
        assert torch.equal(src, traces[taken, t])
        assert torch.equal(dst, traces[taken, t + 1])
    dgl.seed(4)
    again = manyhop_dgl.random_walk(g, list(range(8)), metapath=path)
    assert len(again) == 2
    assert torch.equal(again[0], traces)


def test_a_path_without_choice_is_dgls():
    ring = dgl.graph((torch.arange(5), (torch.arange(5) + 1) % 5))
    nodes = torch.tensor([0, 3, 3])
    for restart in (None, *torch.eye(3)):  # the walk ends before that step
        for ours, theirs in zip(
            manyhop_dgl.random_walk(ring, nodes, length=3, restart_prob=restart, return_eids=True),
            dgl.sampling.random_walk(ring, nodes, length=3, restart_prob=restart, return_eids=True),
            strict=True,
        ):
            assert torch.equal(ours, theirs)
    ours = manyhop_dgl.node2vec_random_walk(ring, nodes, 2.0, 0.5, 4, return_eids=True)
    assert all(map(torch.equal, ours, dgl.sampling.node2vec_random_walk(ring, nodes, 2.0, 0.5, 4, return_eids=True)))
    assert torch.equal(manyhop_dgl.node2vec_random_walk(ring, nodes, 2.0, 0.5, 4), ours[0])


@pytest.mark.parametrize("options", [{"p": 0.5, "q": 3.0}, {"restart_prob": torch.tensor([0, 0.5, 0.2, 0.0])}], ids=str)
def test_as_the_reference(graph, options):
    topology, nodes, key = topology_of(graph, edge_dir="out", prob="w"), torch.arange(200) % 20, BatchKey(5, 0, 2)
    restart = options.get("restart_prob")
    bias = {name: x for name, x in options.items() if name != "restart_prob"}
    spec = walk_spec(topology, ["_E"] * 4, restart, **bias, edge_ids=True)
    assert spec.weighted
    expected = ReferenceWalkSampler(topology.graph, spec).sample(WalkRequest(key=key, start=nodes))
    walks = walk(topology, spec, nodes, key)
    assert torch.equal(walks.node, expected.node)
    assert torch.equal(walks.edge_id, expected.edge_id)
    taken = walks.edge_id[walks.edge_id >= 0]
    assert bool((graph.edata["w"][taken] > 0).all())


def test_a_graph_without_dgl(graph):
    src, dst = graph.edges()
    own = manyhop_dgl.Graph((src, dst), num_nodes=20)
    walks = manyhop_dgl.node2vec_random_walk(own, [0, 1, 2], 0.5, 2.0, 6)
    u, v = walks[:, :-1][walks[:, 1:] >= 0], walks[:, 1:][walks[:, 1:] >= 0]
    assert bool(graph.has_edges_between(u, v).all())


def test_pinsage_where_all_is_visited_is_dgls():
    """Without a choice of edges, the visits are certain: DGL's sampler has the same neighbours."""
    g = dgl.heterograph(
        {("user", "likes", "item"): ([0, 1, 2], [0, 0, 1]), ("item", "by", "user"): ([0, 1], [2, 0])},
        {"user": 4, "item": 2},
    )
    seeds = torch.tensor([0, 1, 1, 3])
    found = [module.PinSAGESampler(g, "user", "item", 3, 0.0, 5, 2)(seeds) for module in (manyhop_dgl, dgl.sampling)]
    assert isinstance(manyhop_dgl.PinSAGESampler(g, "user", "item", 3, 0.0, 5, 2), dgl.sampling.PinSAGESampler)
    assert all(map(torch.equal, found[0].edges(), found[1].edges()))
    assert torch.equal(found[0].edata["weights"], found[1].edata["weights"])
    assert found[0].num_nodes() == 4
    assert found[0].canonical_etypes == found[1].canonical_etypes


def test_visits_are_counted(graph):
    sampler = manyhop_dgl.RandomWalkNeighborSampler(graph, 2, 0.3, 8, 3, weight_column="n", seed=7)
    g = sampler(torch.tensor([4, 2]))
    topology = topology_of(graph, edge_dir="out")
    spec = walk_spec(topology, ["_E"] * 2, torch.tensor([0.0, 0.3]))
    node = walk(topology, spec, torch.tensor([4, 2]).repeat_interleave(8), BatchKey(7, 0, 0)).node[:, 1:].reshape(2, -1)
    for seed, visited in zip((4, 2), node, strict=True):
        counts = sorted(((int((visited == v).sum()), v) for v in range(20) if v in visited), reverse=True)[:3]
        src, _, eid = g.in_edges(seed, form="all")
        assert sorted(zip(g.edata["n"][eid].tolist(), src.tolist(), strict=True), reverse=True) == counts
    again = manyhop_dgl.RandomWalkNeighborSampler(graph, 2, 0.3, 8, 3, seed=7)(torch.tensor([4, 2]))
    assert all(map(torch.equal, g.edges(), again.edges()))


def test_install():
    pinsage = dgl.sampling.pinsage
    walks = dgl.sampling.random_walk
    manyhop_dgl.install()
    try:
        assert dgl.sampling.random_walk is pinsage.random_walk is manyhop_dgl.random_walk
        sampler = dgl.sampling.PinSAGESampler(typed(), "user", "item", 2, 0.5, 4, 3)
        assert type(sampler) is manyhop_dgl.PinSAGESampler
        dgl.seed(3)
        first = sampler(torch.arange(8)).edges()
        dgl.seed(3)
        assert all(map(torch.equal, first, sampler(torch.arange(8)).edges()))
    finally:
        manyhop_dgl.uninstall()
    assert dgl.sampling.random_walk is walks


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, t: manyhop_dgl.random_walk(g, [0]), InputError, "either metapath or length"),
        (lambda g, t: manyhop_dgl.random_walk(g, [0], length=0), InputError, "length to be an integer of at least 1"),
        (lambda g, t: manyhop_dgl.random_walk(t, [0], length=2), InputError, "a graph of one edge type"),
        (lambda g, t: manyhop_dgl.random_walk(t, [0], metapath="likes"), InputError, "metapath as a list"),
        (lambda g, t: manyhop_dgl.random_walk(t, [0], metapath=["likes"] * 2), InputError, "each step to begin where"),
        (lambda g, t: manyhop_dgl.random_walk(t, [0], metapath=["hates"]), InputError, "Unknown edge type 'hates'"),
        (lambda g, t: manyhop_dgl.random_walk(g, [20], length=2), InputError, r"in \[0, 20\), got 20"),
        (lambda g, t: manyhop_dgl.random_walk(g, [0], length=2, prob="x"), GraphError, "edge data 'x'"),
        (lambda g, t: manyhop_dgl.random_walk(g, [0], length=2, restart_prob=1.5), InputError, "from 0 to 1"),
        (
            lambda g, t: manyhop_dgl.random_walk(g, [0], length=2, restart_prob=torch.zeros(3)),
            InputError,
            "a tensor of 2",
        ),
        (lambda g, t: manyhop_dgl.node2vec_random_walk(g, [0], 0, 1, 2), InputError, "p and q to be positive"),
        (
            lambda g, t: manyhop_dgl.RandomWalkNeighborSampler(g, 1, 1.5, 2, 2),
            InputError,
            "termination_prob of at most 1",
        ),
        (
            lambda g, t: manyhop_dgl.RandomWalkNeighborSampler(t, 1, 0, 2, 2, ["likes"]),
            InputError,
            "leads back to the node type",
        ),
        (lambda g, t: manyhop_dgl.PinSAGESampler(t, "user", "user", 1, 0, 2, 0), InputError, "num_neighbors"),
        (lambda g, t: manyhop_dgl.PinSAGESampler(t, "item", "item", 1, 0, 2, 2), InputError, "one edge type from"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_wrong_arguments(graph, call, error, message):
    with pytest.raises(error, match=message):
        call(graph, typed())
