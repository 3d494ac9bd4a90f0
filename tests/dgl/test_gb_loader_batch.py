"""``loader.batch(seeds)`` of GraphBolt's loader: what the chain makes of these seeds, now."""

import pytest
import torch
from test_gb_loader_groups import sizes as on_gpu  # noqa: F401
from test_gb_pad import links_left_out, nodes, typed

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def noted(minibatch):
    minibatch.noted = minibatch.key.batch
    return minibatch


@pytest.mark.parametrize("chain", [nodes, links_left_out, typed])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("groups", [False, True])
def test_it_is_that_of_an_epoch_with_its_key(request, chain, num_workers, groups):
    if groups:
        request.getfixturevalue("on_gpu")
    loader = gb.DataLoader(chain().transform(noted), num_workers=num_workers)
    expected = list(loader)
    for minibatch in expected:
        seeds = minibatch.seeds if minibatch.indexes is None else minibatch.seeds[minibatch.labels == 1]
        made = loader.batch(gb.MiniBatch(seeds=seeds, labels=minibatch.labels), key=minibatch.key)
        assert (repr(made), made.key) == (repr(minibatch), minibatch.key)
    assert loader.stats().batches == len(expected) == len(list(loader))


def test_a_minibatch_may_have_labels():
    mine = gb.MiniBatch(seeds=torch.tensor([7, 3]), labels=torch.tensor([1, 0]))
    loader = gb.DataLoader(nodes())
    got = loader.batch(mine)
    assert got.labels.tolist() == [1, 0]
    assert got.key == (5, 0, 0)
    assert mine.sampled_subgraphs is None
    assert loader.batch(torch.tensor([7, 3])).labels is None
    with pytest.raises(InputError, match="its own minibatcher"):
        gb.DataLoader(nodes(minibatcher=lambda items, names: mine)).batch(torch.tensor([1]))
