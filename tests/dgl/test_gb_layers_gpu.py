"""Layers of what the GPU backend samples, in triton's interpreter where there is no GPU."""

import pytest
import torch
from gb_graphs import random_hetero_graph
from gpu_stand_ins import CPU, stand_for_gpu

import manyhop_dgl.graphbolt as gb
from manyhop_graphbolt.loader import loader

sampling = pytest.importorskip("manyhop.sampling")
pytest.importorskip("triton", reason="the backend is triton's")


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
