"""A loader goes on where another one was, within an epoch too; a state of other samples is refused."""

import pickle

import pytest
import torch
from harness import EDGES, SEEDS, edges

from manyhop.errors import StateError


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("received", [0, 1, 3, 7])
def test_the_rest_of_an_epoch(harness, num_workers, shuffle, received):
    loader = harness.loader(num_workers=num_workers, shuffle=shuffle)
    list(loader)
    epoch = iter(loader)
    for _ in range(received):
        next(epoch)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == ((1, received) if received < 7 else (2, 0))
    rest = harness.epoch(epoch if received < 7 else loader)
    following = harness.epoch(loader)
    others = (harness.loader(seed=seed, num_workers=1, shuffle=shuffle) for seed in (None, 8))
    for again in (loader, *others):  # they take over the seed
        again.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert (again.state_dict(), again.epoch) == (state, state["epoch"])
        assert harness.epoch(again) == rest
        assert harness.epoch(again) == following


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.without("toy")
def test_on_a_gpu(harness, monkeypatch, num_workers):
    expected = harness.epoch(harness.loader(batch_size=4))
    groups = harness.on_gpu(monkeypatch)
    first, second = (harness.loader(batch_size=4, num_workers=num_workers) for _ in range(2))
    batches = iter(first)
    got = [harness.take(next(batches)).ids() for _ in range(5)]
    assert first.state_dict()["batch"] == 5
    second.load_state_dict(first.state_dict())
    assert got + harness.epoch(second) == expected
    assert max(groups) > 1


# What the error of a loader with other samples names.
DIFFERENCES = {
    "batch_size=9": {"batch_size": 9},
    "shuffle=False": {"shuffle": False},
    "drop_last=True": {"drop_last": True},
    "seeds|indices|input_nodes|items": {"seeds": SEEDS.flip(0)},
    "49 seeds": {"seeds": torch.arange(49)},
    "fanouts|stage": {"fanouts": [3, 3]},
    "edges|csc_indptr": {"source": edges(seed=1)},
    "number of edges|csc_indptr": {"source": EDGES[:, 1:]},
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_named(harness, name):
    state = harness.loader().state_dict()
    options = dict(DIFFERENCES[name])
    if "source" in options:
        options["source"] = harness.source(options["source"])
    with pytest.raises(StateError, match=f"Expected a state (of a loader )?with .*({name})"):
        harness.loader(**options).load_state_dict(state)


def test_what_may_differ(harness):
    """Rows and threads."""
    state = harness.loader().state_dict()
    harness.loader(harness.source(x=torch.ones(60, 9)), num_workers=2).load_state_dict(state)


@pytest.mark.parametrize("seed", ["x", None, 1.5, True, [1]])
def test_damaged_states(harness, seed):
    state = harness.loader().state_dict()
    with pytest.raises(StateError, match="seed to be of type int"):
        harness.loader().load_state_dict(state | {"seed": seed})
    with pytest.raises(StateError):
        harness.loader().load_state_dict({})
