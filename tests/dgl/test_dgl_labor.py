"""LaborSampler: DGL's interface, and what LABOR promises. Its distribution is tested where the engine is."""

import pickle

import pytest
import torch
from sampler_graphs import edges_of, graph, same_batch, sample_for_key, typed_graph

import manyhop_dgl
from manyhop.errors import InputError
from manyhop.sampling import BatchKey
from manyhop_dgl.samplers.plan import Plan

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
LaborSampler = manyhop_dgl.LaborSampler


def many(sampler, g, seeds, n=100):
    return [sampler.sample(g, seeds) for _ in range(n)]


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
def test_all_neighbours_are_all_neighbours(idtype):
    g = typed_graph(idtype=idtype)
    seeds = {"user": torch.arange(5), "game": torch.tensor([3])}
    labor = LaborSampler([-1, -1]).sample(g, seeds)
    neighbors = manyhop_dgl.MultiLayerFullNeighborSampler(2).sample(g, seeds)
    assert same_batch(labor, neighbors)


@pytest.mark.parametrize("options", [{}, {"prob": "weight"}, {"importance_sampling": 2}, {"importance_sampling": -1}])
def test_numbers_of_nodes_and_edges_are_those_of_dgl(options):
    g = graph(300, 6000)
    seeds = torch.arange(40)

    def means(sampler):
        batches = many(sampler, g, seeds)
        counts = [[len(inputs), *(b.num_edges() for b in blocks)] for inputs, _, blocks in batches]
        return torch.tensor(counts, dtype=torch.float64).mean(0)

    dgl.seed(0)
    ours = means(LaborSampler([5, 5], seed=0, **options))
    theirs = means(dgl.dataloading.LaborSampler([5, 5], **options))
    assert (ours / theirs - 1).abs().max() < 0.04
    assert ours[0] < means(manyhop_dgl.NeighborSampler([5, 5], prob=options.get("prob"), seed=0))[0]


def test_dependent_layers_agree():
    g = graph(100, 2000)
    seeds = torch.arange(100)
    for dependent in (False, True):
        first, last = LaborSampler([4, 4], layer_dependency=dependent, seed=3).sample(g, seeds)[2]
        assert (edges_of(first) == edges_of(last)) is dependent


def test_dependent_batches_share_nodes():
    g = graph(100, 2000)
    seeds = torch.arange(100)

    def edges(**options):
        batches = many(LaborSampler([4], seed=1, **options), g, seeds, 3)
        return [edges_of(blocks[0])["_N", "_E", "_N"] for *_, blocks in batches]

    def shared(a, b):
        return len(set(a) & set(b)) / len(a)

    new, same, slow = edges(), edges(batch_dependency=0), edges(batch_dependency=16)
    assert same[0] == same[1] == same[2]
    assert shared(*slow[:2]) > shared(*new[:2]) + 0.2
    assert slow[0] != slow[1]


def test_edge_weights_make_the_mean_one_over_all_neighbours():
    """In each batch they are 1 on average; over many batches, the weighted mean is that of all neighbours."""
    g = graph(60, 1500)
    fn = dgl.function
    sampler = LaborSampler([8], prob="weight", importance_sampling=1, seed=0)
    weighted, plain, n = torch.zeros(57), torch.zeros(57), 120
    for _, _, (block,) in many(sampler, g, torch.arange(57), n):
        block.edata["w"] = block.edata["edge_weights"]
        assert block.edata["w"].dtype == torch.float32
        block.update_all(fn.copy_e("w", "m"), fn.sum("m", "sum"))
        torch.testing.assert_close(block.dstdata["sum"], block.in_degrees().float())
        block.update_all(fn.u_mul_e("feat", "w", "m"), fn.mean("m", "mean"))
        weighted += block.dstdata["mean"][:, 0] / n
        block.update_all(fn.copy_u("feat", "m"), fn.mean("m", "mean"))
        plain += block.dstdata["mean"][:, 0] / n
    src, dst = g.edges(order="eid")
    weight, x = g.edata["weight"], g.ndata["feat"][:, 0]
    exact = torch.zeros(60).index_add(0, dst, weight * x[src]) / torch.zeros(60).index_add(0, dst, weight)
    assert (weighted - exact[:57]).abs().mean() < 0.04
    assert (plain - exact[:57]).abs().mean() > 0.07  # without them


def test_edge_weights_are_there_where_they_are_needed():
    g = typed_graph()
    seeds = {"user": torch.arange(5)}
    for options, there in (({}, False), ({"prob": "weight"}, True), ({"importance_sampling": 1}, True)):
        for block in LaborSampler([3, 3], **options).sample(g, seeds)[2]:
            for t in block.canonical_etypes:
                assert ("edge_weights" in block.edges[t].data) is there
    tensors = LaborSampler([3, 3], prob="weight").sample_tensors(g, seeds)
    assert tensors.blocks[0].edge_weights.keys() == set(g.canonical_etypes)
    assert tensors.blocks[0].edge_weights["user", "follows", "user"].dtype == torch.float32


@pytest.mark.parametrize("importance", [0, 1])
def test_edges_of_weight_0_make_no_difference(importance):
    """DGL counts them in the degree: of these columns, it takes 4 edges, where the fanout is 5."""
    n = 400
    sources, targets = torch.arange(20).repeat(n), torch.arange(20, 20 + n).repeat_interleave(20)
    weight = (torch.arange(20) % 2).float().repeat(n)
    g, fewer = dgl.graph((sources, targets)), dgl.graph((sources[weight > 0], targets[weight > 0]))
    g.edata["weight"], fewer.edata["weight"] = weight, torch.ones(fewer.num_edges())
    sampler = LaborSampler([5], prob="weight", importance_sampling=importance, batch_dependency=0, seed=0)
    seeds = torch.arange(20, 20 + n)
    (block,), (same,) = sampler.sample(g, seeds)[2], sampler.sample(fewer, seeds)[2]
    for ours, theirs in zip(block.edges(), same.edges(), strict=True):
        assert torch.equal(ours, theirs)
    counts = [sampler.sample_tensors(g, [20], key=(seed, 0, 0)).blocks[0].indices.numel() for seed in range(200)]
    assert 4.6 < sum(counts) / 200 < 5.4


def test_excluded_edges():
    g = graph()
    exclude = torch.arange(0, 400, 2)
    blocks = LaborSampler([3, 3], prob="weight").sample(g, torch.arange(20), exclude)[2]
    for block in blocks:
        assert (block.edata[dgl.EID] % 2 == 1).all()
        assert block.edata["edge_weights"].shape == (block.num_edges(),)
    sampler = manyhop_dgl.as_edge_prediction_sampler(LaborSampler([3]), exclude="self")
    assert not torch.isin(sampler.sample(g, torch.arange(9))[-1][0].edata[dgl.EID], torch.arange(9)).any()


def test_a_batch_is_a_function_of_its_key():
    g = graph()
    seeds = torch.arange(20)
    sampler, other = LaborSampler([3, 3], seed=5), LaborSampler([3, 3])
    first = sampler.sample(g, seeds)
    assert not same_batch(first, sampler.sample(g, seeds))
    other.set_seed(5)
    assert same_batch(first, other.sample(g, seeds))
    assert same_batch(sampler.sample(g, seeds), pickle.loads(pickle.dumps(other)).sample(g, seeds)) is False
    assert same_batch(*(sample_for_key(one, g, seeds, BatchKey(1, 2, 3)) for one in (sampler, LaborSampler([3, 3]))))


def test_importance_is_for_the_cpu():
    arguments = LaborSampler([3], importance_sampling=1).arguments()
    topology = arguments.topology(graph())
    with pytest.raises(InputError, match="importance_sampling=0 for sampling on cuda:0, got 1"):
        Plan(topology, arguments, torch.device("cuda:0"), "device")
