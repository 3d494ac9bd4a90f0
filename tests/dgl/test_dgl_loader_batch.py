"""``loader.batch(seeds)`` of DGL's loader: the batch of these seeds, now."""

import threading

import pytest
import torch
from test_dgl_loader import flat, graph, sampler, typed_graph

import manyhop_dgl
from manyhop_dgl import DataLoader

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")


@pytest.mark.parametrize("make", [graph, typed_graph])
@pytest.mark.parametrize("options", [{"output": "tensors"}, {"use_prefetch_thread": False}])
def test_a_batch_of_given_seeds(make, options):
    """It is that of an epoch of the same key, from any thread."""
    g = make()
    typed = {"prefetch_node_feats": {"paper": ["x"], "author": ["x"]}, "prefetch_labels": None}
    names = typed | {"prefetch_edge_feats": None} if make is typed_graph else {}
    seeds = {"paper": torch.arange(40), "author": torch.arange(9)} if make is typed_graph else torch.arange(50)
    loader = DataLoader(g, seeds, sampler(**names), batch_size=16, seed=5, **options)
    found = {}

    def serve(i, given):
        found[i] = loader.batch(given, key=(5, 0, i))

    expected = list(loader)
    parts = [loader.dataset.at(torch.arange(i, min(i + 16, loader.dataset.num_seeds))) for i in range(0, 50, 16)]
    parts = parts[: len(expected)]
    threads = [threading.Thread(target=serve, args=one) for one in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, batch in enumerate(expected):
        if options.get("output") == "tensors":
            ours, theirs = found[i].node, batch.node
            assert all(torch.equal(ours[t], theirs[t]) for t in theirs)
            assert all(torch.equal(a, b) for a, b in zip(_rows(found[i]), _rows(batch), strict=True))
        elif make is graph:
            assert flat(found[i]) == flat(batch)
            assert torch.equal(found[i][2][0].srcdata["x"], batch[2][0].srcdata["x"])
        else:
            assert torch.equal(found[i][2][0].srcnodes["paper"].data["x"], batch[2][0].srcnodes["paper"].data["x"])
            assert torch.equal(found[i][0]["author"], batch[0]["author"])
    assert loader.epoch == 0
    assert loader.stats().batches == len(expected)


def _rows(batch):
    x = batch.node_features["x"]
    return [x] if isinstance(x, torch.Tensor) else list(x.values())


def test_a_batch_of_given_edges():
    g = graph()
    around = manyhop_dgl.as_edge_prediction_sampler(
        sampler(), exclude="self", negative_sampler=dgl.dataloading.negative_sampler.GlobalUniform(3)
    )
    loader = DataLoader(g, torch.arange(40), around, batch_size=40, seed=5)
    (expected,) = list(loader)
    got = loader.batch(torch.arange(40))
    assert torch.equal(got[0], expected[0])
    for ours, theirs in zip(got[1:3], expected[1:3], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.edges(), theirs.edges(), strict=True))
