"""What GraphBolt's loader counts and times."""

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
