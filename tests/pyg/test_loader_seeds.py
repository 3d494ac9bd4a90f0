"""Without ``seed=``, torch's generators decide, at each iteration: as with PyG's own loaders."""

import pytest
import torch
from helpers_pyg import all_same
from torch.utils.data import RandomSampler

from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader

OPTIONS = {"batch_size": 16, "shuffle": True}


def links(data, **kwargs):
    return LinkNeighborLoader(data, [3], neg_sampling="triplet", **(OPTIONS | {"batch_size": 64}), **kwargs)


def typed(data, **kwargs):
    return HGTLoader(data, [5, 4], "paper", **OPTIONS, **kwargs)


def seeded(loader, seed=3):
    """An epoch after ``torch.manual_seed``."""
    torch.manual_seed(seed)
    return list(loader)


@pytest.mark.parametrize(("make", "workers"), [(links, 0), (typed, 2)])
def test_seeding_before_each_run_fixes_batches_and_order(data, hetero, make, workers):
    source = hetero if make is typed else data
    loader = make(source, num_workers=workers, persistent_workers=workers > 0)
    first, other, again = seeded(loader), seeded(loader, 4), seeded(loader)
    assert loader.epoch == 2
    assert all_same(first, again)
    assert not all_same(first, other)
    assert all_same(first, seeded(make(source)))


def test_a_sampler_that_draws_is_iterated_anew_after_its_draws_are_repeated(data):
    """The user repeats what came before the epoch: the order is the same again."""

    def make():
        torch.manual_seed(6)
        return NeighborLoader(data, [2], sampler=RandomSampler(range(60)), batch_size=16)

    loader = make()
    epoch = iter(loader)
    next(epoch)
    state, other = loader.state_dict(), make()
    rest = list(epoch)
    other = make()
    other.load_state_dict(state)
    assert all_same(list(other), rest)
