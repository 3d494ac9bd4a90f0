"""Embeddings among the data of loaders that share batches: training with rows gathered ahead, and without."""

import itertools
import sys
from pathlib import Path

import pytest
import torch

import manyhop

sys.path.insert(0, str(Path(__file__).parents[1] / "pyg"))  # also of ranks
sys.path.insert(0, str(Path(__file__).parents[1] / "dgl"))
from test_embeddings_in_data import train

ENV = {"TRITON_INTERPRET": "1"}
PLACES = ["shared", "pinned", "device", "sharded", "distributed"]


def train_together(placement, ahead):
    import whole_graph_stand_in

    whole_graph_stand_in.install()
    manyhop.init()
    return train(ahead, placement, batch_size=8, num_workers=1, prefetch_factor=6, distributed=True)


@pytest.fixture(scope="module")
def trained(launcher):
    """What ranks have trained, by place, and whether rows were gathered ahead."""
    cases = list(itertools.product(PLACES, (False, True)))
    return dict(zip(cases, launcher.run_each(train_together, cases, env=ENV), strict=True))


@pytest.mark.parametrize("placement", PLACES)
def test_training_is_the_same_to_the_last_bit(trained, placement):
    expected, found = trained[placement, False], trained[placement, True]
    for (losses, table), (expected_losses, expected_table) in zip(found, expected, strict=True):
        assert len(losses) == 50
        assert losses == expected_losses
        assert torch.equal(table, expected_table)
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][0] != found[1][0]


def train_on_blocks_together(ahead):
    from test_embeddings_in_graph import train as train_on_blocks

    manyhop.init()
    return train_on_blocks(ahead, num_workers=1, use_ddp=True)


def test_training_on_blocks_of_dgl_is_the_same_to_the_last_bit(launcher):
    pytest.importorskip("manyhop_dgl")
    runs = launcher.run_each(train_on_blocks_together, [(False,), (True,)])
    for (losses, table), (expected_losses, expected_table) in zip(*runs, strict=True):
        assert losses == expected_losses
        assert torch.equal(table, expected_table)
