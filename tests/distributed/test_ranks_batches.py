"""Ranks that share global batches get those of the one-process run, bit for bit."""

import pytest
import torch
from rank_loaders import LOADERS, digest, homogeneous, one_process, padding

import manyhop


def share_batches(names, epochs, kwargs):
    """Per loader, per epoch: digest and padding of each batch, length, final figures."""
    out = {}
    for name in names:
        loader = LOADERS[name](distributed=True, seed=5, **kwargs)
        out[name] = [[(digest(batch), padding(batch)) for batch in loader] for _ in range(epochs)], len(loader)
    return out


def check_shared(seen, name, epochs=1, uneven="pad"):
    expected = one_process(name, epochs)
    for epoch in range(epochs):
        ranks = [rank[name][0][epoch] for rank in seen]
        b, w = len(expected[epoch]), len(ranks)
        rounds = b // w if uneven == "drop" else -(-b // w)
        assert [len(r) for r in ranks] == [rounds] * w == [rank[name][1] for rank in seen]
        dealt = [ranks[i % w][i // w] for i in range(rounds * w)]
        assert dealt == [(expected[epoch][i % b], i >= b) for i in range(rounds * w)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_loaders(launcher, world_size):
    seen = launcher.run(share_batches, list(LOADERS), 2, {}, world_size=world_size)
    for name in LOADERS:
        check_shared(seen, name, epochs=2)


def test_a_process_that_stands_alone():
    for name in LOADERS:
        check_shared([share_batches([name], 2, {})], name, epochs=2)
    loader = homogeneous(distributed=True, seed=5)
    assert not loader([1, 2, 3]).is_padding.any()
    assert "is_padding" not in homogeneous(seed=5)([1, 2])


def use_no_seed():
    torch.manual_seed(manyhop.init().rank + 1)
    loader = homogeneous(distributed=True)
    return loader.seed, [digest(batch) for batch in loader]


def test_without_a_seed_rank_0_draws_it(launcher):
    (seed, first), (other, second) = launcher.run(use_no_seed)
    assert seed == other
    torch.manual_seed(1)
    loader = homogeneous(seed=int(torch.empty((), dtype=torch.int64).random_()))
    assert loader.seed == seed
    expected = [digest(batch) for batch in loader]
    assert [first[0], second[0], first[1]] == expected[:3]
