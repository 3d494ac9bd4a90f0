"""Ranks that share the batches of one loader, a state that other ranks go on from, and what ranks compare."""

import pytest
import torch
from harness import HARNESSES
from launch import Launcher

import manyhop
from manyhop.errors import RankError


@pytest.fixture(scope="module")
def launcher():
    launcher = Launcher()
    yield launcher
    launcher.close()


def shared(name, **options):
    """An adapter, and its loader whose ranks share batches."""
    manyhop.init()
    harness = HARNESSES[name]
    return harness, harness.loader(**harness.sharing, **options)


def dealt(ranks):
    """The batches of all ranks, round by round."""
    rounds = max(map(len, ranks))
    return [batches[i] for i in range(rounds) for batches in ranks if i < len(batches)]


def epoch_and_state(name, num_workers):
    harness, loader = shared(name, num_workers=num_workers)
    iterator = iter(loader)
    first = harness.epoch([next(iterator), next(iterator)])
    state = loader.state_dict()
    return first + harness.epoch(iterator), state


def go_on(name, state):
    harness, loader = shared(name, seed=None)
    loader.load_state_dict(state)
    return harness.epoch(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_ranks_get_the_batches_of_one_process(launcher, harness, num_workers):
    alone = harness.epoch(harness.loader())
    epochs, states = zip(*launcher.run(epoch_and_state, harness.name, num_workers, world_size=2), strict=True)
    got = dealt(epochs)
    assert got == (alone + alone)[: len(got)]
    assert len(got) in (7, 8)  # the first one once more, where ranks have equally many
    assert states[0] == states[1]
    assert states[0]["batch"] == 4
    if num_workers:
        rest = dealt(launcher.run(go_on, harness.name, states[0], world_size=3))
        assert rest == (alone[4:] + alone)[: len(rest)]
        assert len(rest) == 3


def padded(name):
    harness, loader = shared(name, pad="auto")
    batches = list(loader)
    return [harness.real(batch).ids() for batch in batches], {len(harness.take(batch).n_id) for batch in batches}


@pytest.mark.without("toy")  # it pads nothing
def test_ranks_agree_on_fixed_sizes(launcher, harness):
    alone = harness.epoch(harness.loader())
    epochs, sizes = zip(*launcher.run(padded, harness.name, world_size=2), strict=True)
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) == 1
    got = dealt(epochs)
    assert got[:7] == alone


DIFFERENCES = [
    ({"batch_size": 9}, "batch_size"),
    ({"seeds": torch.arange(49)}, "num_items|seeds|indices|input_nodes"),
    ({"seeds": torch.arange(50).flip(0)}, "seeds|indices|input_nodes|items"),
    ({"fanouts": [4, 2]}, "fanouts|stage|num_neighbors"),
    ({"seed": 4}, "seed"),
]


def differing(name):
    found = []
    for options, _ in DIFFERENCES:
        try:
            shared(name, **(options if manyhop.init().rank == 1 else {}))
        except RankError as error:
            found.append(str(error))
        torch.distributed.barrier()
    return found


def test_differences_are_named(launcher, harness):
    for messages in launcher.run(differing, harness.name, world_size=2):
        assert len(messages) == len(DIFFERENCES)
        for message, (_, names) in zip(messages, DIFFERENCES, strict=True):
            assert any(name in message for name in names.split("|")), message
