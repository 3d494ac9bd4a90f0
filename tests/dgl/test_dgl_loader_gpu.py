"""Loaders on a GPU: equal to the batches that the CPU makes."""

import pytest
import torch
from test_dgl_loader_tensors import graph, links, loader, same, same_data, same_links

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
DataLoader = manyhop_dgl.DataLoader
NeighborSampler = manyhop_dgl.NeighborSampler


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"use_uva": True}, {"use_prefetch_thread": False}])
def test_a_gpu_makes_the_same_batches(kind, options):
    g = graph(kind)
    expected = list(loader(kind, g))
    made = loader(kind, g, device="cuda", output="tensors", **options)
    for _ in range(2):
        for ours, batch in zip(made, expected, strict=True):
            assert ours.node_features["x"].is_cuda if kind != "typed" else ours.node["paper"].is_cuda
            same_data(ours, batch, g)
        expected = list(loader(kind, g, seed=3)) if _ else second_epoch(kind, g)
    assert made.stats().gathered_bytes > 0


@pytest.mark.gpu
def test_a_gpu_needs_no_sampler_for_the_cpu(monkeypatch):
    monkeypatch.setattr(
        "manyhop.sampling.CPUSampler", lambda *args, **kwargs: pytest.fail("it was made"), raising=False
    )
    g = graph("plain")
    assert len(list(loader("plain", g, device="cuda", output="tensors"))) > 1


def second_epoch(kind, g):
    made = loader(kind, g)
    list(made)
    return list(made)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_a_gpu_makes_the_same_batches_of_seed_edges(kind):
    g = graph(kind)
    made = links(kind, g, device="cuda", output="tensors", num_workers=1)
    for ours, batch in zip(made, links(kind, g), strict=True):
        assert ours.sample.blocks[0].ids[g.canonical_etypes[0]].is_cuda
        same_links(ours, batch, g)


@pytest.mark.gpu
def test_batches_that_are_given_go_to_the_gpu():
    given = [torch.arange(5), torch.arange(5, 12)]
    sampler = NeighborSampler([4, 3], prefetch_node_feats=["x"], seed=1)
    made = DataLoader(graph("ours"), given, sampler, device="cuda", output="tensors", seed=3)
    expected = DataLoader(graph("ours"), given, sampler, seed=3)
    for ours, (input_nodes, _, blocks) in zip(made, expected, strict=True):
        assert ours.node_features["x"].is_cuda
        same(ours.input_nodes, input_nodes)
        assert torch.equal(ours.node_features["x"].cpu(), blocks[0].srcdata["x"])


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_gpu_sees_data_that_are_replaced(num_workers):
    g = graph("ours")
    for i, batch in enumerate(loader("ours", g, device="cuda", output="tensors", num_workers=num_workers)):
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
        if i == 0:
            g.ndata["x"] = torch.randn(100, 5)
        if i == 1:
            g.ndata["x"].zero_()


@pytest.mark.gpu
def test_a_gpu_keeps_rows_of_pinned_memory():
    g = manyhop_dgl.Graph(tuple(torch.randint(0, 90_000, (2, 400_000))), 90_000)
    g.ndata["x"] = torch.randn(90_000, 128)
    sampler = NeighborSampler([5, 5], prefetch_node_feats=["x"])
    options = {"device": "cuda", "output": "tensors", "use_uva": True, "batch_size": 1024}
    made = DataLoader(g, torch.arange(8192), sampler, gpu_cache={"node": {"x": 20_000}}, **options)
    for batch in made:
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
    assert 0.1 < made.stats().cache_hit_rate < 1
