"""Embeddings over several GPUs, a rank for each: the table of torch's optimizer on the mean of their losses."""

import sys
from pathlib import Path

import pytest
import torch

import manyhop

sys.path.insert(0, str(Path(__file__).parents[1]))  # also of ranks
sys.path.insert(0, str(Path(__file__).parents[1] / "pyg"))
from embedding_training import NUM_ROWS, OURS, WIDTH, batch, loss_of, trained_by_torch
from test_embeddings_in_data import train as train_on_batches

pytestmark = pytest.mark.multigpu


def train(placement, device, name):
    rank = manyhop.init().rank
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, placement=placement, device=device, seed=3)
    optimizer = OURS[name](embedding)
    for step in range(4):
        ids, factors = (each.cuda() for each in batch(step, rank))
        loss_of(embedding(ids), factors).backward()
        optimizer.step()
    with torch.no_grad():
        return embedding(torch.arange(NUM_ROWS, device="cuda")).cpu()


WHOLE = pytest.mark.needs("pylibwholegraph")
PLACES = [
    [("device", None), ("pinned", None), ("shared", None)],
    pytest.param([("sharded", "cuda"), ("distributed", None)], marks=WHOLE),
]


@pytest.mark.parametrize("places", PLACES)
def test_every_place(run_each_on_gpus, places):
    start = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3).weight
    expected = trained_by_torch(start, "Adam", range(4), world_size=2)
    for found in run_each_on_gpus(train, [(*place, "Adam") for place in places]):
        assert torch.equal(*found)
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)


def train_together(ahead, placement, device):
    manyhop.init()
    return train_on_batches(ahead, placement, device, "cuda", batch_size=8, distributed=True)


@pytest.mark.parametrize("places", PLACES)
def test_rows_that_come_with_batches(run_each_on_gpus, places):
    trained = run_each_on_gpus(train_together, [(ahead, *place) for place in places for ahead in (False, True)])
    for expected_of_place, of_place in zip(trained[::2], trained[1::2], strict=True):
        for (losses, table), (expected_losses, expected_table) in zip(of_place, expected_of_place, strict=True):
            assert losses == expected_losses
            assert torch.equal(table, expected_table)
