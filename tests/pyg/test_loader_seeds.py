"""Without ``seed=``, torch's generators decide, at each iteration: as with PyG's own loaders."""

import copy
import json
import pickle

import pytest
import torch
from helpers_pyg import all_same
from torch.utils.data import RandomSampler

from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader

OPTIONS = {"batch_size": 16, "shuffle": True}


def nodes(data, **kwargs):
    return NeighborLoader(data, [3, 2], **OPTIONS, **kwargs)


def links(data, **kwargs):
    return LinkNeighborLoader(data, [3], neg_sampling="triplet", **(OPTIONS | {"batch_size": 64}), **kwargs)


def typed(data, **kwargs):
    return HGTLoader(data, [5, 4], "paper", **OPTIONS, **kwargs)


def seeded(loader, seed=3):
    """An epoch after ``torch.manual_seed``."""
    torch.manual_seed(seed)
    return list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [nodes, links, typed])
def test_seeding_before_each_run_fixes_batches_and_order(data, hetero, make, workers):
    source = hetero if make is typed else data
    loader = make(source, num_workers=workers, persistent_workers=workers > 0)
    first, other, again = seeded(loader), seeded(loader, 4), seeded(loader)
    assert loader.epoch == 2
    assert all_same(first, again)
    assert not all_same(first, other)
    assert all_same(first, seeded(make(source)))


def test_each_epoch_of_a_run_is_another_one(data):
    loader = nodes(data)
    runs = [[seeded(loader), list(loader)] for _ in range(2)]
    assert not all_same(*runs[0])
    assert all_same(runs[0][1], runs[1][1])


def test_the_default_device_of_torch_does_not_draw(data):
    """``torch.set_default_device("cuda")``, for which "meta" stands here, after the loader is made."""
    loader = nodes(data)
    first = seeded(loader)
    torch.manual_seed(3)
    with torch.device("meta"):
        again = list(loader)
    assert all_same(first, again)


def test_one_number_per_epoch_is_drawn_and_none_before(data):
    """So the rest of a script draws the same, whichever loader it uses."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loader = nodes(data, pad="auto")
    assert torch.equal(torch.get_rng_state(), before)
    iter(loader)
    after = torch.rand(3)
    torch.manual_seed(1)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.rand(3), after)
    before = torch.get_rng_state()
    list(nodes(data, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_decides_alone(data):
    generator = torch.Generator()
    loader = nodes(data, generator=generator)
    epochs = []
    for seed in (3, 4, 3):
        generator.manual_seed(seed)
        epochs.append(seeded(loader, seed=len(epochs)))
    assert all_same(epochs[0], epochs[2])
    assert not all_same(epochs[0], epochs[1])
    assert all_same(epochs[0], seeded(nodes(data), 3))


def test_an_epoch_can_be_made_again_by_its_seed(data):
    loader = nodes(data)
    list(loader)
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    assert loader.seed is None
    assert all_same([first, *batches], list(nodes(data, seed=state["seed"])))


@pytest.mark.parametrize("received", [0, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_restart_with_the_generators_state_changes_nothing(data, workers, received):
    """The epoch goes on with its own seed, and the next one draws what it would have drawn."""
    loader = nodes(data, num_workers=workers)
    list(loader)
    epoch = iter(loader)
    for _ in range(received):
        next(epoch)
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    expected = list(epoch), list(loader)
    for fresh in (nodes(data), nodes(data, seed=7)):
        torch.set_rng_state(generator)
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        assert fresh.epoch == 1
        assert all_same(list(fresh), expected[0])
        assert all_same(list(fresh), expected[1]) == (fresh.seed is None)


def test_states_between_epochs_have_no_seed(data):
    loader = nodes(data)
    states = [loader.state_dict()]
    list(loader)
    states.append(loader.state_dict())
    for epoch, state in enumerate(states):
        assert "seed" not in state
        other = nodes(data)
        other.load_state_dict(state)
        assert (other.epoch, other.state_dict()) == (epoch, state)
        assert all_same(seeded(other), seeded(loader))


def test_a_state_of_a_seed_brings_it_along(data):
    explicit, loader = nodes(data, seed=5), nodes(data)
    list(explicit)
    loader.load_state_dict(explicit.state_dict())
    for _ in range(2):
        assert all_same(list(loader), list(explicit))


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


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_copies_draw_their_own(data, copied):
    loader = nodes(data)
    list(loader)
    other = copied(loader)
    assert all_same(seeded(other), seeded(loader))
    assert not all_same(list(other), list(loader))
    next(iter(loader))
    state = loader.state_dict()
    fresh = nodes(data)
    fresh.load_state_dict(state)
    other = copied(fresh)
    rest = list(fresh)
    assert other.state_dict() == state
    assert all_same(list(other), rest)


def test_two_iterations_at_once_have_a_seed_each(data):
    loader = nodes(data)
    torch.manual_seed(3)
    first = list(loader), list(loader)
    torch.manual_seed(3)
    one, other = iter(loader), iter(loader)
    assert all_same([next(one) for _ in range(4)], first[0])
    assert all_same(list(other), first[1])


def test_ranks_seeded_alike_draw_differently(data, monkeypatch):
    alone = seeded(nodes(data))
    monkeypatch.setenv("RANK", "1")
    assert not all_same(seeded(nodes(data)), alone)
    assert all_same(seeded(nodes(data)), seeded(nodes(data)))
