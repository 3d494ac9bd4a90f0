"""Loaders of a DistributedItemSampler: what is compared, resume by other ranks, and ranks that fail."""

import sys
from pathlib import Path

import pytest
import torch
from gb_graphs import batches, random_graph

import manyhop
import manyhop_dgl.graphbolt as gb

sys.path.append(str(Path(__file__).parents[1] / "distributed"))

from launch import Launcher
from watched import wait_until_left

from manyhop.errors import RankError


@pytest.fixture(scope="module")
def launcher():
    launcher = Launcher()
    yield launcher
    launcher.close()


def loader(num_seeds=60, *, fanout=3, even=False, num_workers=0, pad=None):
    manyhop.init()
    items = gb.ItemSet(torch.arange(num_seeds), names="seeds")
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "drop_uneven_inputs": even}
    pipe = gb.DistributedItemSampler(items, **options).sample_neighbor(random_graph(), [fanout, 2])
    return gb.DataLoader(pipe, num_workers=num_workers, pad=pad)


def as_plain(minibatches):
    return [(minibatch.key.batch, minibatch.input_nodes.tolist()) for minibatch in minibatches]


def epoch_and_state(received, even, num_workers):
    made = loader(even=even, num_workers=num_workers)
    iterator = iter(made)
    first = as_plain(next(iterator) for _ in range(received))
    state = made.state_dict()
    return first, as_plain(iterator), state


def go_on(state):
    made = loader(num_workers=1)
    made.load_state_dict(state)
    return as_plain(made)


def alone():
    pipe = batches("seeds", torch.arange(60), batch_size=4, shuffle=True, seed=3)
    return as_plain(pipe.sample_neighbor(random_graph(), [3, 2]))


@pytest.mark.parametrize(("even", "num_workers"), [(False, 0), (True, 1)])
def test_other_ranks_go_on(launcher, even, num_workers):
    expected = alone()
    ranks = launcher.run(epoch_and_state, 3, even, num_workers, world_size=2)
    had, rest, states = zip(*ranks, strict=True)
    assert states[0] == states[1]
    assert states[0]["batch"] == 6
    assert sorted(had[0] + had[1]) == expected[:6]
    assert sorted(rest[0] + rest[1]) == expected[6 : 14 if even else 15]
    going_on = launcher.run(go_on, states[0], world_size=3)
    assert [len(some) for some in going_on] == [3, 3, 3]
    assert sorted(batch for some in going_on for batch in some) == expected[6:]


def differing(rank_arguments):
    try:
        loader(**rank_arguments[manyhop.init().rank])
    except RankError as error:
        return str(error)
    finally:
        torch.distributed.barrier()


def test_ranks_with_other_arguments(launcher):
    for other, words in (({"num_seeds": 50}, "num_items"), ({"fanout": 4}, "stage")):
        for message in launcher.run(differing, [{}, other], world_size=2):
            assert words in message


def one_breaks():
    rank, iterator = manyhop.init().rank, iter(loader(even=True))
    try:
        for i, _ in enumerate(iterator):
            if i == 2 and rank == 1:
                iterator.close()
                break
            if i == 3:
                wait_until_left(1)
    except RankError as error:
        return str(error)
    finally:
        torch.distributed.barrier()


def test_a_rank_that_leaves_its_loop_is_named(launcher):
    assert "rank 1 left its loop after 3 batches" in launcher.run(one_breaks, world_size=2)[0]


def padded():
    return as_plain(loader(pad="auto"))


def test_padded_minibatches_are_those_of_one_process(launcher):
    """Ranks find the same sizes by themselves."""
    pipe = batches("seeds", torch.arange(60), batch_size=4, shuffle=True, seed=3)
    expected = as_plain(gb.DataLoader(pipe.sample_neighbor(random_graph(), [3, 2]), pad="auto"))
    assert len({len(nodes) for _, nodes in expected}) == 1
    assert sorted(one for rank in launcher.run(padded, world_size=2) for one in rank) == expected
