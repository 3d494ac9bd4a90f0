"""Layers of what the GPU backend samples, in triton's interpreter where there is no GPU."""

import pytest
import torch
from gb_graphs import random_graph, random_hetero_graph
from gpu_stand_ins import CPU, stand_for_gpu

import manyhop_dgl.graphbolt as gb
from manyhop.sampling import BatchKey, NodeRequest
from manyhop_graphbolt.loader import loader
from manyhop_graphbolt.stages.layers import layers_of

sampling = pytest.importorskip("manyhop.sampling")
pytest.importorskip("triton", reason="the backend is triton's")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize("hetero", [False, True])
def test_layers_are_those_of_the_cpu(hetero):
    graph = random_hetero_graph(12, 8, 30) if hetero else random_graph(20, 60)
    fanouts = [torch.tensor([2, 1, 2])] * 2 if hetero else [2, 3]
    topology = graph.topology_for(fanouts)
    spec = topology.spec(fanouts)
    seeds = topology.seeds({"user": torch.arange(3)} if hetero else torch.arange(3))
    request = NodeRequest(key=BatchKey(1, 2, 3), seeds=seeds)
    sample = sampling.GPUSampler(topology.graph, spec, device="cpu").sample(request)
    ours, theirs = layers_of([sample, topology.sampler(spec).sample(request)], with_ids=True)
    for layer, same in zip(ours, theirs, strict=True):
        assert repr(layer) == repr(same)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize("fanouts", [[torch.tensor([2, 1, 2])] * 2, [2, 2]], ids=["by type", "together"])
def test_a_loader_of_groups(fanouts, monkeypatch):
    graph = random_hetero_graph(12, 8, 30)
    features = gb.BasicFeatureStore({("node", "user", "x"): gb.TorchBasedFeature(torch.rand(12, 3))})

    def chain():
        items = gb.HeteroItemSet({"user": gb.ItemSet(torch.arange(9), names="seeds")})
        pipe = gb.ItemSampler(items, batch_size=3, shuffle=True, seed=1).copy_to("cuda")
        return pipe.sample_neighbor(graph, fanouts).fetch_feature(features, {"user": ["x"]})

    monkeypatch.setattr(gb.CopyTo, "step", lambda self, item: item)
    expected = list(chain())
    stand_for_gpu(monkeypatch.setattr)
    monkeypatch.setattr(loader, "gpu_of", lambda pipe: CPU)
    made = list(gb.DataLoader(chain()))
    assert len(made) == len(expected) == 3
    for ours, same in zip(made, expected, strict=True):
        assert repr(ours.sampled_subgraphs) == repr(same.sampled_subgraphs)
        assert torch.equal(ours.node_features["user", "x"], same.node_features["user", "x"])
