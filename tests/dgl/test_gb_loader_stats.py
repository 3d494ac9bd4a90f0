"""What GraphBolt's loader counts and times."""

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop_dgl.graphbolt as gb

GRAPH = random_graph(weight=torch.rand(400))

FEATURES = gb.BasicFeatureStore(
    {
        ("node", None, "feat"): gb.TorchBasedFeature(torch.arange(180.0).view(60, 3)),
        ("node", None, "more"): gb.TorchBasedFeature(torch.arange(60).view(60, 1)),
        ("edge", None, "weight"): gb.TorchBasedFeature(torch.arange(400.0).view(400, 1)),
    }
)


def nodes(**kwargs):
    kwargs = {"batch_size": 4, "shuffle": True, "seed": 3} | kwargs
    return batches(("seeds", "labels"), (torch.arange(60), torch.arange(60)), **kwargs)


def sampled(**kwargs):
    pipe = nodes(**kwargs).sample_neighbor(GRAPH, [3, 2])
    return pipe.fetch_feature(FEATURES, node_feature_keys=["feat", "more"], edge_feature_keys=["weight"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_statistics(num_workers, tmp_path):
    loader = gb.DataLoader(sampled().transform(), num_workers=num_workers)
    assert loader.stats().batches == 0
    minibatches = list(loader)
    figures = loader.stats()
    assert figures.batches == 15
    assert figures.seeds == 60
    layers = [layer for minibatch in minibatches for layer in minibatch.sampled_subgraphs]
    assert figures.edges == sum(layer.sampled_csc.indices.numel() for layer in layers)
    assert figures.nodes == sum(minibatch.input_nodes.numel() for minibatch in minibatches)
    rows = [value for minibatch in minibatches for value in minibatch.node_features.values()]
    rows += [value for minibatch in minibatches for layer in minibatch.edge_features for value in layer.values()]
    assert figures.gathered_bytes == sum(value.nbytes for value in rows)
    assert min(figures.sample_s, figures.gather_s, figures.assemble_s, figures.waited_s, figures.step_s) > 0
    assert "sampling" in str(figures)
    loader.timeline(tmp_path / "epoch.json")
    assert '"gather' in (tmp_path / "epoch.json").read_text()
    list(loader)
    assert loader.stats().seeds == 120
    before = loader.stats()
    minibatch = next(iter(loader))
    figures = loader.stats(before)
    assert (figures.batches, figures.seeds, figures.nodes) == (1, 4, minibatch.input_nodes.numel())


def same(minibatch):
    return minibatch


def test_statistics_of_links():
    links = batches("seeds", GRAPH.edges[:, :40].T.contiguous(), batch_size=5, seed=3)
    pipe = links.sample_uniform_negative(GRAPH, 2).sample_neighbor(GRAPH, [3])
    loader = gb.DataLoader(pipe.fetch_feature(FEATURES, node_feature_keys=["feat"]), num_workers=1)
    nodes = sum(minibatch.input_nodes.numel() for minibatch in loader)
    figures = loader.stats()
    assert (figures.batches, figures.seeds, figures.nodes) == (8, 40, nodes)
    assert min(figures.edges, figures.gathered_bytes, figures.sample_s) > 0
