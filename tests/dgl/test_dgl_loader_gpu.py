"""Loaders on a GPU; test_dgl_loader_tensors.py compares their batches with those of the CPU."""

import pytest
import torch
from test_dgl_loader_tensors import graph, loader, same, same_data

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
DataLoader = manyhop_dgl.DataLoader
NeighborSampler = manyhop_dgl.NeighborSampler
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_data_in_pinned_memory(kind):
    g = graph(kind)
    made = loader(kind, g, device="cuda", output="tensors", use_uva=True)
    for ours, batch in zip(made, loader(kind, g), strict=True):
        same_data(ours, batch, g)


def test_a_gpu_needs_no_sampler_for_the_cpu(monkeypatch):
    monkeypatch.setattr(
        "manyhop.sampling.CPUSampler", lambda *args, **kwargs: pytest.fail("it was made"), raising=False
    )
    g = graph("plain")
    assert len(list(loader("plain", g, device="cuda", output="tensors"))) > 1


def test_batches_that_are_given_go_to_the_gpu():
    given = [torch.arange(5), torch.arange(5, 12)]
    sampler = NeighborSampler([4, 3], prefetch_node_feats=["x"], seed=1)
    made = DataLoader(graph("ours"), given, sampler, device="cuda", output="tensors", seed=3)
    expected = DataLoader(graph("ours"), given, sampler, seed=3)
    for ours, (input_nodes, _, blocks) in zip(made, expected, strict=True):
        assert ours.node_features["x"].is_cuda
        same(ours.input_nodes, input_nodes)
        assert torch.equal(ours.node_features["x"].cpu(), blocks[0].srcdata["x"])


def test_a_gpu_keeps_rows_of_pinned_memory():
    g = manyhop_dgl.Graph(tuple(torch.randint(0, 90_000, (2, 400_000))), 90_000)
    g.ndata["x"] = torch.randn(90_000, 128)
    sampler = NeighborSampler([5, 5], prefetch_node_feats=["x"])
    options = {"device": "cuda", "output": "tensors", "use_uva": True, "batch_size": 1024}
    made = DataLoader(g, torch.arange(8192), sampler, gpu_cache={"node": {"x": 20_000}}, **options)
    for batch in made:
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
    assert 0.1 < made.stats().cache_hit_rate < 1
