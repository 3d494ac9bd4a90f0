"""Loaders of a DistributedItemSampler: inputs that are dropped, and ranks that fail."""

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


def epoch():
    return as_plain(loader(even=True, num_workers=1))


def alone():
    pipe = batches("seeds", torch.arange(60), batch_size=4, shuffle=True, seed=3)
    return as_plain(pipe.sample_neighbor(random_graph(), [3, 2]))


def test_uneven_inputs_are_dropped(launcher):
    ranks = launcher.run(epoch, world_size=2)
    assert sorted(ranks[0] + ranks[1]) == alone()[:14]


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
