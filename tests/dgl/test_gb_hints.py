"""Arguments of GraphBolt after DGL 2.1 that tell it what to overlap and to cache: accepted, and without effect."""

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

CACHE = {"num_gpu_cached_edges": 1000, "gpu_cache_threshold": 3}
OVERLAP = {"overlap_fetch": True, "asynchronous": True}
GRAPH, STORE = random_graph(), gb.BasicFeatureStore({})
PAIRS = torch.tensor([[3, 7], [9, 1], [20, 40]])


def chain(sampler, sampling, excluding, fetching, copying):
    graph = random_graph()
    features = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(torch.arange(60.0).view(60, 1))})
    pipe = gb.ItemSampler(gb.ItemSet(PAIRS, names="seeds"), batch_size=2)
    pipe = getattr(pipe, sampler)(graph, [3, 2], **sampling).exclude_seed_edges(include_reverse_edges=True, **excluding)
    return pipe.fetch_feature(features, ["x"], **fetching).copy_to("cpu", **copying)


@pytest.mark.parametrize("sampler", ["sample_neighbor", "sample_layer_neighbor"])
def test_hints_change_nothing(sampler):
    plain = gb.DataLoader(chain(sampler, {}, {}, {}, {}))
    hinted = chain(
        sampler, {**OVERLAP, **CACHE}, {"asynchronous": True}, {"overlap_fetch": False}, {"non_blocking": True}
    )
    hinted = gb.DataLoader(hinted, overlap_graph_fetch=True, max_uva_threads=10240, **CACHE)
    shown = []
    for loader in (plain, hinted):
        torch.manual_seed(0)  # an epoch's seed is drawn when it begins
        shown.append([str(batch) for batch in loader])
    assert shown[0] == shown[1]
    assert len(shown[0]) == 2


@pytest.mark.parametrize(
    ("stage", "given", "hints", "message"),
    [
        ("sample_neighbor", (GRAPH, [2]), {"overlap_fetch": "yes"}, "overlap_fetch to be True or False"),
        (
            "sample_neighbor",
            (GRAPH, [2]),
            {"num_gpu_cached_edges": -1},
            "num_gpu_cached_edges to be an integer of at least 0",
        ),
        ("sample_neighbor", (GRAPH, [2]), {"gpu_cache_threshold": 1.5}, "gpu_cache_threshold to be an integer"),
        ("sample_neighbor", (GRAPH, [2]), {"cooperative": True}, "cooperative=False, got True"),
        ("sample_neighbor", (GRAPH, [2]), {"sampler": None}, r"among \['overlap_fetch',.* got 'sampler'"),
        ("sample_layer_neighbor", (GRAPH, [2]), {"asynchronous": 2}, "asynchronous to be True or False"),
        ("sample_layer_neighbor", (GRAPH, [2]), {"layer_dependency": 2}, "layer_dependency to be True or False"),
        ("sample_layer_neighbor", (GRAPH, [2]), {"batch_dependency": -1}, "batch_dependency"),
        ("sample_layer_neighbor", (GRAPH, [2]), {"deduplicate": False}, "deduplicate=True, got False. Leave it out"),
        ("fetch_feature", (STORE,), {"cooperative": True}, "cooperative=False"),
        ("fetch_feature", (STORE,), {"overlap_fetch": None}, "overlap_fetch to be True or False"),
        ("exclude_seed_edges", (), {"asynchronous": 2}, "asynchronous to be True or False"),
        ("copy_to", ("cpu",), {"non_blocking": "x"}, "non_blocking to be True or False"),
    ],
)
def test_wrong_hints(stage, given, hints, message):
    with pytest.raises(InputError, match=message):
        getattr(batches("seeds", torch.arange(4)), stage)(*given, **hints)


def layers(seeds, batch_size, **dependency):
    graph = random_graph(num_nodes=40, num_edges=1600)
    pipe = gb.ItemSampler(gb.ItemSet(seeds, names="seeds"), batch_size=batch_size, seed=5)
    return [m.sampled_subgraphs for m in pipe.sample_layer_neighbor(graph, [3, 3], **dependency)]


def test_layers_that_depend_on_each_other_choose_the_same_neighbours():
    """A node that is asked for in both layers has the same neighbours in both, for the random numbers are the same."""

    def of_seeds(layer):
        end = layer.sampled_csc.indptr[10]  # the seeds are the first columns of either layer
        return layer.original_edge_ids[:end].sort().values

    ((outer, inner),) = layers(torch.arange(10), 10, layer_dependency=True)
    assert torch.equal(of_seeds(outer), of_seeds(inner))
    ((outer, inner),) = layers(torch.arange(10), 10)
    assert not torch.equal(of_seeds(outer), of_seeds(inner))


@pytest.mark.parametrize("dependency", [0, 1])
def test_batches_that_depend_on_each_other_choose_the_same_neighbours(dependency):
    first, second = layers(torch.arange(10).repeat(2), 10, batch_dependency=dependency)
    same = torch.equal(first[-1].original_edge_ids, second[-1].original_edge_ids)
    assert same is (dependency == 0)
