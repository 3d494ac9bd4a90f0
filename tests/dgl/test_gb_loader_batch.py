"""``loader.batch(seeds)`` of GraphBolt's loader: what the chain makes of these seeds, now."""

import threading

import pytest
import torch
from gb_graphs import batches, random_graph, random_hetero_graph
from test_gb_loader_groups import sizes as on_gpu  # noqa: F401

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

GRAPH = random_graph()
TYPED = random_hetero_graph()
STORE = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(torch.arange(120.0).view(60, 2))})


def noted(minibatch):
    minibatch.noted = minibatch.key.batch
    return minibatch


def nodes(**kwargs):
    pipe = batches(("seeds", "labels"), (torch.arange(50), torch.arange(50) * 2), batch_size=16, seed=5, **kwargs)
    pipe = pipe.copy_to("cpu").sample_neighbor(GRAPH, [3, 2]).fetch_feature(STORE, ["x"])
    return pipe.transform(noted)


def links():
    pipe = batches("seeds", torch.arange(80).view(40, 2) % 60, batch_size=15, seed=5).copy_to("cpu")
    pipe = pipe.sample_uniform_negative(GRAPH, 2).sample_neighbor(GRAPH, [3, 2]).exclude_seed_edges()
    return pipe.fetch_feature(STORE, ["x"]).transform(noted)


def typed():
    by_type = {name: gb.ItemSet(torch.arange(count), names="seeds") for name, count in (("user", 30), ("item", 20))}
    pipe = gb.ItemSampler(gb.HeteroItemSet(by_type), batch_size=16, shuffle=True, seed=5).copy_to("cpu")
    return pipe.sample_neighbor(TYPED, [3, 2]).transform(noted)


def given(minibatch):
    """The seeds of a minibatch, as a user has them: without negatives."""
    return minibatch.seeds if minibatch.indexes is None else minibatch.seeds[minibatch.labels == 1]


def plain(minibatch):
    """Everything but labels, which are not among the seeds."""
    layers = [
        [str(getattr(layer, name)) for name in ("sampled_csc", "original_edge_ids", "original_row_node_ids")]
        for layer in minibatch.sampled_subgraphs
    ]
    rest = [str(getattr(minibatch, name)) for name in ("input_nodes", "node_features", "compacted_seeds")]
    return minibatch.key, minibatch.noted, str(minibatch.seeds), layers, rest


@pytest.mark.parametrize("chain", [nodes, links, typed])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("groups", [False, True])
def test_it_is_that_of_an_epoch_with_its_key(request, chain, num_workers, groups):
    if groups:
        request.getfixturevalue("on_gpu")
    loader = gb.DataLoader(chain(), num_workers=num_workers)
    expected = list(loader)
    found = {}

    def serve(i, minibatch):
        found[i] = loader.batch(given(minibatch), key=minibatch.key)

    threads = [threading.Thread(target=serve, args=one) for one in enumerate(expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [plain(found[i]) for i in range(len(expected))] == [plain(minibatch) for minibatch in expected]
    assert loader.stats().batches == len(expected)
    assert len(list(loader)) == len(expected)


def test_a_minibatch_may_have_labels():
    mine = gb.MiniBatch(seeds=torch.tensor([7, 3]), labels=torch.tensor([1, 0]))
    loader = gb.DataLoader(nodes())
    got = loader.batch(mine)
    assert got.labels.tolist() == [1, 0]
    assert got.key == (5, 0, 0)
    assert mine.sampled_subgraphs is None
    assert loader.batch(torch.tensor([7, 3])).labels is None


def own(items, names):
    return gb.MiniBatch(seeds=items[0] + 1)


def test_a_minibatcher_of_the_user():
    with pytest.raises(InputError, match="its own minibatcher"):
        gb.DataLoader(nodes(minibatcher=own)).batch(torch.tensor([1]))
