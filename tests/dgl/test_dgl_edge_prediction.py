"""Seed edges: pair graphs, negatives and left-out edges as DGL has them."""

import pickle

import pytest
import torch
from sampler_graphs import graph, same_batch, same_tensors, typed_graph

import manyhop_dgl
from manyhop.loading import BatchContext
from manyhop.sampling import BatchKey

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
NeighborSampler = manyhop_dgl.NeighborSampler
as_edge_prediction_sampler = manyhop_dgl.as_edge_prediction_sampler
of_dgl = dgl.dataloading.negative_sampler

FOLLOWS, PLAYS, PLAYED_BY = ("user", "follows", "user"), ("user", "plays", "game"), ("game", "played_by", "user")
KEY = BatchKey(4, 0, 7)


def same_graphs(a, b):
    """Two pair graphs: structure, ids, data and their order."""
    assert type(a) is type(b)
    assert (a.ntypes, a.canonical_etypes, a.idtype) == (b.ntypes, b.canonical_etypes, b.idtype)
    for t in a.ntypes:
        assert a.num_nodes(t) == b.num_nodes(t)
        same_data(a.nodes[t].data, b.nodes[t].data)
    for t in a.canonical_etypes:
        for x, y in zip(a.edges(etype=t, order="eid"), b.edges(etype=t, order="eid"), strict=True):
            assert torch.equal(x, y)
        same_data(a.edges[t].data, b.edges[t].data)


def same_data(a, b):
    assert set(a) == set(b)
    for name in a:
        assert torch.equal(a[name], b[name])


def replay(pairs):
    """A negative sampler that gives the negatives of a batch again."""
    *_, negatives, _ = pairs

    def again(g, edges):
        found = {}
        for t in negatives.canonical_etypes:
            row, col = negatives.edges(etype=t)
            found[t] = negatives.nodes[t[0]].data[dgl.NID][row.long()], negatives.nodes[t[2]].data[dgl.NID][col.long()]
        return found if len(found) > 1 else next(iter(found.values()))

    return again


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("typed", [False, True])
def test_pair_graphs_are_those_of_dgl(idtype, typed):
    g = typed_graph(idtype=idtype) if typed else graph(idtype=idtype)
    if typed:
        edges = {"follows": torch.tensor([5, 1, 9]), PLAYS: torch.tensor([3, 3])}
        edges = {t: ids.to(idtype) for t, ids in edges.items()}
    else:
        edges = torch.tensor([7, 2, 30, 2], dtype=idtype)
    sampler = NeighborSampler([-1, -1], seed=0)
    ours = as_edge_prediction_sampler(sampler, negative_sampler=manyhop_dgl.Uniform(3)).sample(g, edges)
    theirs = dgl.dataloading.as_edge_prediction_sampler(sampler, negative_sampler=replay(ours)).sample(g, edges)
    same_graphs(ours[1], theirs[1])
    same_graphs(ours[2], theirs[2])
    assert same_batch(ours, theirs)  # no draws: all neighbours
    without = as_edge_prediction_sampler(sampler).sample(g, edges)
    theirs = dgl.dataloading.as_edge_prediction_sampler(sampler).sample(g, edges)
    assert len(without) == 3
    same_graphs(without[1], theirs[1])
    assert same_batch(without, theirs)


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("make", [NeighborSampler, dgl.dataloading.NeighborSampler])
def test_ids_stay_with_their_edges_where_edges_are_left_out(idtype, make):
    """DGL sorts the ids of the seed edges in place then: ids and data of the pair graph are in the wrong order."""
    g = graph(idtype=idtype)
    edges = torch.tensor([9, 2, 30], dtype=idtype)
    _, pairs, _ = as_edge_prediction_sampler(make([-1]), exclude="self").sample(g, edges)
    assert edges.tolist() == pairs.edata[dgl.EID].tolist() == [9, 2, 30]
    assert torch.equal(pairs.edata["weight"], g.edata["weight"][[9, 2, 30]])
    src, dst = pairs.edges(order="eid")
    nodes = pairs.ndata[dgl.NID]
    assert [nodes[src.long()].tolist(), nodes[dst.long()].tolist()] == [x.tolist() for x in g.find_edges(edges)]


def left_out(g, seeds, **options):
    """Which edges of the neighbourhoods of all nodes are not in the blocks."""
    sampler = as_edge_prediction_sampler(manyhop_dgl.MultiLayerFullNeighborSampler(1), **options)
    block = sampler.sample(g, seeds)[-1][0]
    found = {}
    for t in g.canonical_etypes:
        nodes = block.dstnodes[t[2]].data[dgl.NID]
        wanted = g.in_edges(nodes, form="eid", etype=t)
        found[t] = sorted(set(wanted.tolist()) - set(block.edges[t].data[dgl.EID].tolist()))
    return found if len(found) > 1 else found[g.canonical_etypes[0]]


def test_left_out_edges():
    g = graph()
    seeds = torch.tensor([5, 3])
    reverse = (torch.arange(g.num_edges()) + 1) % g.num_edges()
    ends = {int(v) for v in torch.cat(g.find_edges(seeds))}
    into = [e for e in (3, 4, 5, 6) if int(g.find_edges(e)[1]) in ends]  # others are not in the blocks anyway
    assert left_out(g, seeds) == []
    assert left_out(g, seeds, exclude="self") == [3, 5]
    assert left_out(g, seeds, exclude="reverse_id", reverse_eids=reverse) == into
    assert left_out(g, seeds, exclude=lambda edges: edges[:1]) == [5]
    assert left_out(g, seeds, exclude=lambda edges: edges[:1], reverse_eids=reverse, reverse_etypes={}) == [5]
    assert left_out(g, seeds, exclude=torch.tensor([3])) == [3]


def test_left_out_edges_of_typed_graphs():
    g = typed_graph()
    seeds = {"plays": torch.tensor([5, 3]), PLAYED_BY: torch.tensor([7])}
    reverse = {"plays": "played_by", PLAYED_BY: PLAYS}
    found = left_out(g, seeds, exclude="reverse_types", reverse_etypes=reverse)
    ends = {t: set() for t in g.ntypes}
    for t, ids in ((PLAYS, [5, 3]), (PLAYED_BY, [7])):
        for node_type, nodes in zip((t[0], t[2]), g.find_edges(torch.tensor(ids), etype=t), strict=True):
            ends[node_type] |= set(nodes.tolist())
    for t in (PLAYS, PLAYED_BY):
        assert found[t] == [e for e in (3, 5, 7) if int(g.find_edges(e, etype=t)[1]) in ends[t[2]]]
    assert found[FOLLOWS] == []
    ids = {PLAYS: torch.arange(90).flip(0), "played_by": torch.arange(90)}
    found = left_out(g, seeds, exclude="reverse_id", reverse_eids=ids)
    assert set(found[PLAYS]) >= {3, 5}
    assert set(found[PLAYS]) <= {3, 5, 84, 86}
    assert found[PLAYED_BY] == [7]
    assert left_out(g, seeds, exclude=lambda edges: {"plays": edges[PLAYS]})[PLAYS] == [3, 5]


def test_a_batch_and_its_negatives_are_functions_of_the_key():
    g = typed_graph()
    edges = {"plays": torch.arange(20), "follows": torch.arange(20)}

    def sampler():
        return as_edge_prediction_sampler(NeighborSampler([2, 2], seed=3), negative_sampler=of_dgl.Uniform(4))

    first, second = sampler(), sampler()
    batches = [first.sample(g, edges) for _ in range(2)]
    for batch in batches:
        again = second.sample(g, edges)
        same_graphs(batch[2], again[2])
        assert same_batch(batch, again)
    assert not torch.equal(*(b[2].edges(etype="plays")[1] for b in batches))
    with BatchContext(KEY, None):
        one = first.sample(g, edges)
    with BatchContext(KEY, None):
        two = as_edge_prediction_sampler(NeighborSampler([2, 2]), negative_sampler=of_dgl.Uniform(4)).sample(g, edges)
    same_graphs(one[2], two[2])
    assert same_batch(one, two)


def test_other_samplers_and_negatives_will_do():
    g = graph()
    edges = torch.arange(10)
    sampler = as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler([3]),
        negative_sampler=lambda g, ids: ([0] * ids.numel(), torch.ones(ids.numel(), dtype=torch.int32)),
        seed=1,
    )
    _, pairs, negatives, blocks = sampler.sample(g, edges)
    assert [negatives.ndata[dgl.NID][ids].unique().tolist() for ids in negatives.edges()] == [[0], [1]]
    assert torch.equal(blocks[0].dstdata[dgl.NID], pairs.ndata[dgl.NID])


@pytest.mark.parametrize("replaced", ["__call__", "_generate"])
def test_negative_samplers_of_users_out_of_ours(replaced):
    """What a subclass does is done: scripts that derive their own from DGL's get ours by install()."""

    class Zeros(manyhop_dgl.Uniform):
        pass

    def replace(self, g, ids, *edge_type):
        src, _ = getattr(super(Zeros, self), replaced)(g, ids, *edge_type)
        return src, torch.zeros_like(src)

    setattr(Zeros, replaced, replace)
    g, edges = graph(), torch.arange(10)
    negatives = as_edge_prediction_sampler(NeighborSampler([2]), negative_sampler=Zeros(2)).sample(g, edges)[2]
    src, dst = (negatives.ndata[dgl.NID][ids] for ids in negatives.edges())
    assert src.tolist() == g.find_edges(edges)[0].repeat_interleave(2).tolist()
    assert dst.tolist() == [0] * 20


def test_samplers_of_users_out_of_ours():
    """What a subclass does is done around seed edges, too."""

    class Sampler(NeighborSampler):
        def sample_blocks(self, g, seed_nodes, exclude_eids=None):
            inputs, outputs, blocks = super().sample_blocks(g, seed_nodes, exclude_eids)
            for block in blocks:
                block.edata["mine"] = torch.ones(block.num_edges())
            return inputs, outputs, blocks

    g = graph()
    batches = []
    for make in (Sampler, NeighborSampler):
        with BatchContext(KEY, None):
            batches.append(as_edge_prediction_sampler(make([2, 2])).sample(g, torch.arange(9)))
    assert all("mine" in block.edata for block in batches[0][-1])
    assert same_batch(*batches)


def test_uniform_negatives_keep_their_source():
    g = graph()
    edges = torch.arange(50)
    sampler = manyhop_dgl.PerSourceUniform(4, seed=0)
    src, dst = sampler(g, edges)
    assert torch.equal(src, g.find_edges(edges)[0].repeat_interleave(4))
    assert dst.dtype == torch.int64
    assert int(dst.min()) >= 0
    assert int(dst.max()) < 60
    assert not torch.equal(dst, sampler(g, edges)[1])
    assert torch.equal(dst, manyhop_dgl.Uniform(4, seed=0)(g, edges)[1])
    assert torch.equal(pickle.loads(pickle.dumps(sampler))(g, edges)[1], sampler(g, edges)[1])
    typed = manyhop_dgl.Uniform(2, seed=0)(typed_graph(), {"plays": torch.arange(9), "follows": torch.arange(9)})
    assert typed.keys() == {PLAYS, FOLLOWS}
    assert not torch.equal(typed[PLAYS][1], typed[FOLLOWS][1])


@pytest.mark.parametrize(("exclude_self_loops", "replace"), [(True, False), (False, True)])
def test_global_negatives_are_no_edges(exclude_self_loops, replace):
    g = graph(20, 150)
    sampler = manyhop_dgl.GlobalUniform(2, exclude_self_loops, replace, seed=0)
    src, dst = sampler(g, torch.arange(60))
    assert not g.has_edges_between(src, dst).any()
    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    if replace:
        assert len(pairs) == 120
        assert len(set(pairs)) < 120
        assert any(s == d for s, d in pairs)
    else:
        assert len(set(pairs)) == len(pairs) == 120
        assert all(s != d for s, d in pairs)


def test_global_negatives_of_dense_graphs_are_as_many_as_there_are():
    src, dst = torch.where(torch.ones(6, 6))
    g = dgl.graph((src[:-2], dst[:-2]))  # without (5, 4) and (5, 5)
    assert manyhop_dgl.GlobalUniform(15, False, 3).replace is True  # so in DGL's own tests
    pairs = manyhop_dgl.GlobalUniform(3, seed=0)(g, torch.arange(10))
    assert [ids.tolist() for ids in pairs] == [[5], [4]]
    full = dgl.graph((src, dst))
    assert manyhop_dgl.GlobalUniform(3, seed=0)(full, torch.arange(10))[0].numel() == 0


@pytest.mark.parametrize("edges", [[5, 1, 9], [5]])
def test_our_own_graph(edges):
    g = graph()
    own = manyhop_dgl.Graph.from_dgl(g)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([3, 3]), exclude="self", negative_sampler=of_dgl.GlobalUniform(len(edges))
    )
    batches = []
    for each in (g, own):
        with BatchContext(KEY, None):
            batches.append(sampler.sample(each, torch.tensor(edges)))
    same_graphs(batches[0][1], batches[1][1])
    same_graphs(batches[0][2], batches[1][2])
    assert same_batch(*batches)


@pytest.mark.parametrize("typed", [False, True])
def test_tensors_are_what_graphs_and_blocks_hold(typed):
    g = typed_graph() if typed else graph()
    edges = {"plays": torch.tensor([5, 3]), "follows": torch.tensor([9])} if typed else torch.tensor([9, 2, 30])
    sampler = as_edge_prediction_sampler(
        NeighborSampler([3, 3]), exclude="self", negative_sampler=manyhop_dgl.Uniform(2)
    )
    with BatchContext(KEY, None):
        inputs, pairs, negatives, blocks = sampler.sample(g, edges)
    tensors = sampler.sample_tensors(g, edges, key=tuple(KEY), node_features=["feat"])
    assert same_batch((tensors.sample.input_nodes, None, manyhop_dgl.to_blocks(tensors.sample)), (inputs, None, blocks))
    for t in g.canonical_etypes:
        assert all(torch.equal(*x) for x in zip(tensors.ends[t], pairs.edges(etype=t), strict=True))
        assert all(torch.equal(*x) for x in zip(tensors.negative_ends[t], negatives.edges(etype=t), strict=True))
        assert torch.equal(tensors.ids[t], pairs.edges[t].data[dgl.EID])
    if not typed:
        src, dst = tensors.positives
        nodes = tensors.sample.output_nodes
        assert [nodes[src].tolist(), nodes[dst].tolist()] == [ids.tolist() for ids in g.find_edges(edges)]
        assert torch.equal(tensors.edge_ids, edges)
        assert tensors.negatives[0].numel() == 6
        assert torch.equal(tensors.sample.node_features["feat"], g.ndata["feat"][inputs])
    assert as_edge_prediction_sampler(NeighborSampler([3])).sample_tensors(g, edges).negatives is None


@pytest.mark.gpu
def test_tensors_on_a_gpu():
    g = graph(2000, 30000)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([3, 3]), exclude="self", negative_sampler=manyhop_dgl.Uniform(2)
    )
    here, there = (
        sampler.sample_tensors(g, torch.arange(0, 900, 7), key=KEY, device=device, node_features=["feat"])
        for device in ("cpu", "cuda")
    )
    assert same_tensors(here.sample, there.sample)
    assert there.positives[0].is_cuda
    for a, b in ((here.positives, there.positives), (here.negatives, there.negatives)):
        assert all(torch.equal(x, y.cpu()) for x, y in zip(a, b, strict=True))
    assert torch.equal(here.sample.node_features["feat"], there.sample.node_features["feat"].cpu())
