"""Blocks are DGL's: compared with those of its own sampler, field by field."""

import copy
import gc
import itertools
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_graphs import compare, edges_of, graph, same_batch, sample_for_key, typed_graph

import manyhop_dgl
from manyhop.errors import InputError
from manyhop.loading import BatchContext
from manyhop.sampling import BatchKey

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
NeighborSampler = manyhop_dgl.NeighborSampler


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("fused", [True, False])
def test_full_neighbourhoods(idtype, fused):
    g = graph(idtype=idtype)
    seeds = torch.tensor([7, 3, 59, 20, 11], dtype=idtype)  # 59 has no edges
    ours = NeighborSampler([-1, -1, -1], fused=fused).sample(g, seeds)
    reference = dgl.dataloading.NeighborSampler([-1, -1, -1], fused=fused and idtype == torch.int64)
    compare(ours, reference.sample(g, seeds))


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    "seeds", [{"user": [4, 1, 2]}, {"game": [3]}, {"game": [0, 5], "user": [1]}, {"dev": [1], "game": [2], "user": [3]}]
)
def test_full_neighbourhoods_of_a_typed_graph(idtype, seeds):
    g = typed_graph(idtype=idtype)
    seeds = {t: torch.tensor(ids, dtype=idtype) for t, ids in seeds.items()}
    ours = manyhop_dgl.MultiLayerFullNeighborSampler(2).sample(g, seeds)
    # DGL's fused sampler loses source nodes where ids are int32: its other one is compared with.
    compare(ours, dgl.dataloading.MultiLayerFullNeighborSampler(2, fused=False).sample(g, seeds))


def test_out_edges_are_the_in_edges_of_the_reverse():
    g = typed_graph()
    seeds = {"user": torch.tensor([0, 9])}
    ours = NeighborSampler([-1, -1], edge_dir="out").sample(g, seeds)
    theirs = dgl.dataloading.NeighborSampler([-1, -1]).sample(dgl.reverse(g, copy_edata=True), seeds)
    compare(ours, theirs)


@pytest.mark.parametrize("option", [{"prob": "weight"}, {"mask": "keep"}, {"prob": "keep"}])
def test_edges_of_weight_zero_are_not_sampled(option):
    g = graph()
    g.edata["weight"][::3] = 0
    seeds = torch.arange(10)
    ours = NeighborSampler([-1, -1], **option).sample(g, seeds)
    compare(ours, dgl.dataloading.NeighborSampler([-1, -1], **option).sample(g, seeds))


def test_excluded_edges():
    g = typed_graph()
    seeds = {"user": torch.arange(8)}
    exclude = {("user", "follows", "user"): torch.arange(0, 120, 2), ("game", "played_by", "user"): torch.arange(40)}
    ours = NeighborSampler([-1, -1]).sample(g, seeds, exclude)
    compare(ours, dgl.dataloading.NeighborSampler([-1, -1]).sample(g, seeds, exclude))
    by_name = NeighborSampler([-1, -1]).sample(g, seeds, {t[1]: ids for t, ids in exclude.items()})
    assert same_batch(ours, by_name)


def test_every_copy_of_a_seed_is_a_row_with_neighbours():
    g = graph()
    seeds = torch.tensor([5, 8, 5])
    inputs, outputs, (block,) = NeighborSampler([-1]).sample(g, seeds)
    assert torch.equal(outputs, seeds)
    assert inputs[:3].tolist() == [5, 8, 5]
    degrees = block.in_degrees()
    assert degrees.tolist() == g.in_degrees(seeds).tolist()
    assert int(degrees[0]) > 0
    wanted = []
    for row, seed in enumerate(seeds.tolist()):
        source, _, ids = g.in_edges(seed, form="all")
        wanted += [(u, row, e) for u, e in zip(source.tolist(), ids.tolist(), strict=True)]
    assert edges_of(block)["_N", "_E", "_N"] == sorted(wanted)


def test_no_seeds_and_seeds_without_edges():
    g = graph()
    for seeds in (torch.tensor([], dtype=torch.int64), torch.tensor([59, 58])):
        ours = NeighborSampler([3, -1]).sample(g, seeds)
        compare(ours, dgl.dataloading.NeighborSampler([3, -1]).sample(g, seeds))
    typed = typed_graph()
    empty = {"user": torch.tensor([], dtype=torch.int64)}
    compare(NeighborSampler([2]).sample(typed, empty), dgl.dataloading.NeighborSampler([2]).sample(typed, empty))


@pytest.mark.parametrize("make", [NeighborSampler, manyhop_dgl.LaborSampler])
@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_no_layers_are_the_seeds_alone(make):
    g, seeds = graph(), torch.tensor([5, 3, 5])
    ours, theirs = make([]).sample(g, seeds), dgl.dataloading.NeighborSampler([]).sample_blocks(g, seeds)
    assert [part.tolist() for part in ours[:2]] == [part.tolist() for part in theirs[:2]] == [[5, 3, 5]] * 2
    assert ours[2] == theirs[2] == []
    for loader in (dgl.dataloading.DataLoader, manyhop_dgl.DataLoader):
        batches = list(loader(g, torch.arange(5), make([]), batch_size=3))
        assert [(a.tolist(), b.tolist(), blocks) for a, b, blocks in batches] == [
            ([0, 1, 2],) * 2 + ([],),
            ([3, 4],) * 2 + ([],),
        ]
    typed, of_users = typed_graph(), {"user": torch.tensor([2, 0])}
    wanted = dgl.dataloading.NeighborSampler([]).sample_blocks(typed, of_users)
    assert str(make([]).sample(typed, of_users)) == str(wanted)  # other types have no entry
    for device in ("cpu", None):
        (batch,) = manyhop_dgl.DataLoader(typed, of_users, make([]), batch_size=2, device=device)
        assert str(batch) == str(wanted)
    with pytest.raises(InputError, match="fanouts of a layer to prefetch"):
        make([], prefetch_node_feats=["x"]).sample(g, seeds)
    with pytest.raises(InputError, match="integers"):
        make([2]).sample(g, torch.tensor([1.0]))
    assert make([2]).sample(g, torch.tensor([]))[2][0].num_dst_nodes() == 0


def test_seeds_of_other_kinds_are_the_same():
    g = graph(idtype=torch.int32)
    wanted = NeighborSampler([2, 2], seed=1).sample(g, torch.tensor([4, 5], dtype=torch.int32))
    for seeds in ([4, 5], torch.tensor([4, 5]), torch.tensor([4, 5]).numpy(), {"_N": torch.tensor([4, 5])}):
        sample = NeighborSampler([2, 2], seed=1).sample(g, seeds)
        assert same_batch(sample, wanted)
        assert sample[0].dtype == torch.int32


def test_fanouts():
    g = typed_graph()
    seeds = {"user": torch.arange(10), "game": torch.arange(12)}
    layers = [
        {"follows": 1, "plays": 2, "played_by": 0, ("dev", "makes", "game"): -1},
        {t: 3 for t in g.canonical_etypes},
    ]
    first, last = NeighborSampler(layers, seed=0).sample(g, seeds)[2]
    degrees = {t: first.in_degrees(etype=t) for t in g.canonical_etypes}
    assert int(degrees["user", "follows", "user"].max()) == 1
    assert int(degrees["user", "plays", "game"].max()) == 2
    assert int(degrees["game", "played_by", "user"].max()) == 0
    games = first.dstnodes["game"].data[dgl.NID]
    assert torch.equal(degrees["dev", "makes", "game"], g.in_degrees(games, etype="makes"))
    for t in g.canonical_etypes:
        nodes = last.dstnodes[t[2]].data[dgl.NID]
        assert torch.equal(last.in_degrees(etype=t), g.in_degrees(nodes, etype=t).clamp(max=3))


@pytest.mark.parametrize("sampler", [NeighborSampler, manyhop_dgl.LaborSampler])
@pytest.mark.parametrize("prob", [None, "weight"])
def test_a_huge_fanout_is_all_neighbours(sampler, prob):
    """It takes no more memory than the graph has edges."""
    g, seeds = graph(), torch.arange(60)
    (huge,) = sampler([10**12], prob=prob).sample(g, seeds)[2]
    assert edges_of(huge) == edges_of(sampler([-1], prob=prob).sample(g, seeds)[2][0])


def test_with_replacement_every_node_with_edges_gives_all_its_picks():
    g = graph()
    nodes = torch.arange(60)
    (block,) = NeighborSampler([9], replace=True).sample(g, nodes)[2]
    assert torch.equal(block.in_degrees(), torch.where(g.in_degrees() > 0, 9, 0))


def test_every_hop_asks_for_all_nodes():
    g = graph()
    blocks = NeighborSampler([2, 2, 2], seed=3).sample(g, torch.arange(5))[2]
    for inner, outer in itertools.pairwise(blocks):
        assert torch.equal(inner.dstdata[dgl.NID], outer.srcdata[dgl.NID])
        assert torch.equal(inner.in_degrees(), g.in_degrees(inner.dstdata[dgl.NID]).clamp(max=2))


def test_features_are_read_when_asked_for_as_the_graph_had_them():
    g = graph()
    _, _, blocks = NeighborSampler([2, 2]).sample(g, torch.arange(5))
    assert torch.equal(blocks[0].srcdata["feat"], g.ndata["feat"][blocks[0].srcdata[dgl.NID]])
    assert torch.equal(blocks[-1].dstdata["label"], g.ndata["label"][:5])
    assert torch.equal(blocks[1].edata["weight"], g.edata["weight"][blocks[1].edata[dgl.EID]])
    g.ndata["feat"] = g.ndata["feat"] + 1
    g.ndata.pop("label")
    _, _, blocks = NeighborSampler([2]).sample(g, torch.arange(5))
    assert torch.equal(blocks[0].dstdata["feat"], g.ndata["feat"][:5])
    assert "label" not in blocks[0].dstdata


def test_a_batch_is_a_function_of_its_key():
    g = graph()
    seeds = torch.arange(20)
    first, other = NeighborSampler([3, 3], seed=5), NeighborSampler([3, 3], seed=5)
    batches = [first.sample(g, seeds) for _ in range(3)]
    assert not same_batch(batches[0], batches[1])
    for batch in batches:
        assert same_batch(batch, other.sample(g, seeds))
    with pytest.raises(InputError):
        first.sample(g, torch.tensor([0.5]))  # counts no call
    third = NeighborSampler([3, 3], seed=99)
    assert same_batch(*(sample_for_key(sampler, g, seeds, BatchKey(1, 2, 3)) for sampler in (first, third)))
    assert same_batch(first.sample(g, seeds), other.sample(g, seeds))  # the loader's calls are not counted


def test_copies_go_on_where_the_sampler_was():
    g = graph()
    sampler = NeighborSampler([2, 2], seed=1)
    sampler.sample(g, torch.arange(20))
    for twin in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        expected = copy.deepcopy(sampler).sample(g, torch.arange(20))
        assert same_batch(twin.sample(g, torch.arange(20)), expected)


def test_attributes_may_be_set():
    g = graph()
    sampler = NeighborSampler([2], seed=0)
    sampler.sample(g, torch.arange(5))
    sampler.fanouts = [-1, -1]
    sampler.mask = "keep"
    compare(
        sampler.sample(g, torch.arange(5)),
        dgl.dataloading.NeighborSampler([-1, -1], mask="keep").sample(g, torch.arange(5)),
    )
    assert repr(sampler) == ("NeighborSampler(fanouts=(-1, -1), edge_dir='in', prob=None, mask='keep', replace=False)")


def test_edges_and_weights_that_change_are_seen():
    g = graph()
    sampler = NeighborSampler([-1], prob="weight", seed=0)
    before = sampler.sample(g, torch.arange(20))[2][0].num_edges()
    assert before == int(g.in_degrees(torch.arange(20)).sum())
    g.edata["weight"][:] = 0
    assert sampler.sample(g, torch.arange(20))[2][0].num_edges() == 0
    g.edata["weight"] = torch.ones(g.num_edges())
    g.add_edges(torch.tensor([1, 2]), torch.tensor([0, 0]), {"weight": torch.ones(2)})
    assert sampler.sample(g, torch.arange(20))[2][0].num_edges() == before + 2


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
def test_all_kinds_of_messages_on_blocks(idtype):
    """DGL's kernels for edge data need the place of each edge spelled out."""
    g = graph(idtype=idtype)
    g.edata["vector"] = torch.randn(g.num_edges(), 4)
    seeds = torch.arange(40, dtype=idtype)
    results = []
    for sampler in (NeighborSampler([-1]), dgl.dataloading.NeighborSampler([-1], fused=False)):
        (block,) = sampler.sample(g, seeds)[2]
        fn = dgl.function
        for message in (
            fn.copy_u("feat", "m"),
            fn.copy_e("vector", "m"),
            fn.u_mul_e("feat", "vector", "m"),
            fn.u_sub_v("feat", "feat", "m"),
        ):
            for reduce in (fn.sum, fn.mean, fn.max):
                block.update_all(message, reduce("m", "out"))
                results.append(block.dstdata["out"])
        block.apply_edges(fn.u_dot_v("feat", "feat", "score"))
        results.append(dgl.ops.copy_e_sum(block, dgl.nn.functional.edge_softmax(block, block.edata["score"])))
        results.append(block.out_degrees().sum())
    half = len(results) // 2
    for mine, other in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(mine, other)


def test_blocks_share_nothing_that_is_written():
    """Blocks on the same list of places, one of them larger than all before."""
    g = graph(2000, 30000)
    blocks = [NeighborSampler([-1]).sample(g, torch.arange(n))[2][0] for n in (10, 1500, 20)]
    for block in blocks:
        indptr, indices, places = block.adj_tensors("csc")
        assert torch.equal(places, torch.arange(block.num_edges()))
        assert int(indptr[-1]) == len(indices) == block.num_edges()


@st.composite
def typed_graphs(draw):
    """Any types, any edges among them, of any direction, and seeds of some types."""
    num_nodes = {f"n{i}": draw(st.integers(1, 6)) for i in range(draw(st.integers(1, 3)))}
    ends = st.sampled_from(sorted(num_nodes))
    edges = {}
    for i in range(draw(st.integers(1, 4))):
        src, dst = draw(ends), draw(ends)
        pairs = draw(
            st.lists(st.tuples(st.integers(0, num_nodes[src] - 1), st.integers(0, num_nodes[dst] - 1)), max_size=12)
        )
        edges[src, f"e{i}", dst] = tuple(torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T)
    seeds = {
        t: torch.tensor(draw(st.lists(st.integers(0, n - 1), max_size=4, unique=True)), dtype=torch.int64)
        for t, n in num_nodes.items()
        if draw(st.booleans())
    }
    return dgl.heterograph(edges, num_nodes), seeds or {"n0": torch.tensor([0])}, draw(st.integers(1, 3))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(typed_graphs())
def test_any_graph(given_graph):
    g, seeds, layers = given_graph
    theirs = dgl.dataloading.MultiLayerFullNeighborSampler(layers, fused=False).sample(g, seeds)
    compare(manyhop_dgl.MultiLayerFullNeighborSampler(layers).sample(g, seeds), theirs)


def test_blocks_do_not_outlive_their_batch():
    """Blocks of the same types share what is known of the types, and nothing else."""
    from manyhop_dgl.samplers import blocks as blocks_

    blocks_.block_schema.cache_clear()
    g = typed_graph()
    sampler = NeighborSampler([2, 2])
    batch = sampler.sample(g, {"user": torch.arange(4)})
    kept = [weakref.ref(frame) for block in batch[2] for frame in block._node_frames + block._edge_frames]
    kept += [weakref.ref(block) for block in batch[2]]
    del batch
    gc.collect()
    assert not any(reference() for reference in kept)
    first, second = (sampler.sample(g, {"user": torch.arange(4)})[2][0] for _ in range(2))
    first.srcnodes["user"].data["mine"] = torch.zeros(first.num_src_nodes("user"))
    assert "mine" not in second.srcnodes["user"].data
    assert "mine" not in g.nodes["user"].data


def test_threads_sample_at_the_same_time():
    g = typed_graph()
    sampler = NeighborSampler([3, 3], prob="weight")
    edges = manyhop_dgl.as_edge_prediction_sampler(sampler, exclude="self", negative_sampler=manyhop_dgl.Uniform(2))

    def batches(number):
        with BatchContext(BatchKey(1, 0, number), None):
            nodes = sampler.sample(g, {"user": torch.arange(number % 20, 30)})
        with BatchContext(BatchKey(1, 0, number), None):
            return nodes, edges.sample(g, {"plays": torch.arange(number % 50, 90)})

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(batches, range(60)))
    for number, (nodes, pairs) in enumerate(found):
        for mine, other in zip((nodes, pairs), batches(number), strict=True):
            assert same_batch(mine, other)
        assert torch.equal(pairs[2].edges(etype="plays")[1], batches(number)[1][2].edges(etype="plays")[1])
