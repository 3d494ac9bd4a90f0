"""Without ``seed=``, torch's generators decide, at each iteration: as with the loaders that are replaced."""

import copy
import json
import pickle

import pytest
import torch

from manyhop.errors import StateError


def seedings(name):
    """What seeds loaders of an adapter."""
    found = [torch.manual_seed]
    if name == "DGL":
        import dgl

        found += [dgl.seed, dgl.random.seed]
    if name == "GraphBolt":
        import manyhop_dgl.graphbolt as gb

        found.append(gb.seed)
    return found


def unseeded(harness, **options):
    return harness.loader(seed=None, **options)


def seeded(harness, loader, seed=3):
    """An epoch after ``torch.manual_seed``."""
    torch.manual_seed(seed)
    return harness.epoch(loader)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_seeding_before_each_run_fixes_its_batches(harness, num_workers, shuffle):
    by_torch = None
    for seed in seedings(harness.name):
        loader = unseeded(harness, num_workers=num_workers, persistent_workers=num_workers > 0, shuffle=shuffle)
        seed(3)
        first, following = harness.epoch(loader), harness.epoch(loader)
        assert first != following
        seed(4)
        assert harness.epoch(loader) not in (first, following)
        seed(3)
        assert [harness.epoch(loader), harness.epoch(loader)] == [first, following]
        seed(3)
        assert harness.epoch(unseeded(harness, shuffle=shuffle)) == first
        assert first == (by_torch := by_torch or first)
        if harness.name == "DGL" and seed is not torch.manual_seed:
            torch.manual_seed(9)  # once there is a seed of DGL's, it decides
            seed(3)
            torch.manual_seed(9)
            assert harness.epoch(unseeded(harness, shuffle=shuffle)) == first


def test_one_number_per_epoch_is_drawn_and_none_before(harness):
    """So the rest of a script draws the same, whichever loader it uses."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loader = unseeded(harness)
    assert torch.equal(torch.get_rng_state(), before)
    iter(loader)
    after = torch.rand(3)
    torch.manual_seed(1)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.rand(3), after)
    before = torch.get_rng_state()
    list(harness.loader())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.without("DGL")  # whose graphs are on the default device
def test_the_default_device_of_torch_does_not_draw(harness):
    """``torch.set_default_device("cuda")``, for which "meta" stands here, after the loader is made."""
    loader = unseeded(harness)
    first = seeded(harness, loader)
    torch.manual_seed(3)
    with torch.device("meta"):
        again = list(loader)
    assert [harness.take(batch).ids() for batch in again] == first


@pytest.mark.without("GraphBolt")  # it has no generator
def test_a_generator_decides_alone(harness):
    generator, epochs = torch.Generator(), []
    loader = unseeded(harness, generator=generator)
    for seed in (3, 4, 3):
        generator.manual_seed(seed)
        epochs.append(seeded(harness, loader, seed=len(epochs)))
    assert epochs[0] == epochs[2] != epochs[1]
    assert epochs[0] == seeded(harness, unseeded(harness))


@pytest.mark.parametrize("received", [0, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_restart_with_the_generators_state_changes_nothing(harness, num_workers, received):
    """The epoch goes on with its own seed, and the next one draws what it would have drawn."""
    loader = unseeded(harness, num_workers=num_workers)
    list(loader)
    epoch = iter(loader)
    for _ in range(received):
        next(epoch)
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    expected = harness.epoch(epoch), harness.epoch(loader)
    with pytest.raises(StateError, match="seed to be of type int, got None"):
        loader.load_state_dict(state | {"seed": None})
    for seed in (None, 7):
        torch.set_rng_state(generator)
        fresh = harness.loader(seed=seed)
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        assert fresh.epoch == 1
        assert harness.epoch(fresh) == expected[0]
        assert (harness.epoch(fresh) == expected[1]) == (seed is None)


def test_an_epoch_can_be_made_again_by_its_seed(harness):
    loader = unseeded(harness)
    list(loader)
    batches = iter(loader)
    first = harness.take(next(batches)).ids()
    state = loader.state_dict()
    assert state["drawn"]
    assert [first, *harness.epoch(batches)] == harness.epoch(harness.loader(seed=state["seed"]))


def test_states_between_epochs_have_no_seed(harness):
    loader = unseeded(harness)
    states = [loader.state_dict()]
    list(loader)
    states.append(loader.state_dict())
    for epoch, state in enumerate(states):
        assert "seed" not in state
        other = unseeded(harness)
        other.load_state_dict(state)
        assert (other.epoch, other.state_dict()) == (epoch, state)
        assert seeded(harness, other) == seeded(harness, loader)


def test_two_iterations_at_once_have_a_seed_each(harness):
    loader = unseeded(harness)
    torch.manual_seed(3)
    first = harness.epoch(loader), harness.epoch(loader)
    torch.manual_seed(3)
    one, other = iter(loader), iter(loader)
    assert [harness.take(next(one)).ids() for _ in range(7)] == first[0]
    assert harness.epoch(other) == first[1]


@pytest.mark.without("GraphBolt")  # ItemSampler gives all ranks the same, as in GraphBolt
def test_ranks_seeded_alike_draw_differently(harness, monkeypatch):
    alone = seeded(harness, unseeded(harness))
    monkeypatch.setenv("RANK", "1")
    first = seeded(harness, unseeded(harness))
    assert first == seeded(harness, unseeded(harness)) != alone


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
@pytest.mark.without("toy")  # its classes have no module
def test_copies_draw_their_own(harness, copied):
    loader = unseeded(harness)
    list(loader)
    other = copied(loader)
    assert seeded(harness, other) == seeded(harness, loader)
    assert harness.epoch(other) != harness.epoch(loader)
    next(iter(loader))
    state = loader.state_dict()
    fresh = unseeded(harness)
    fresh.load_state_dict(state)
    other = copied(fresh)
    rest = harness.epoch(fresh)
    assert other.state_dict() == state
    assert harness.epoch(other) == rest
