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
    *[("device", None), ("pinned", None), ("shared", None)],
    *[pytest.param(place, device, marks=WHOLE) for place, device in (("sharded", "cuda"), ("distributed", None))],
]


@pytest.mark.parametrize(("placement", "device"), PLACES)
def test_every_place(run_on_gpus, placement, device):
    found = run_on_gpus(train, placement, device, "Adam")
    start = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3).weight
    expected = trained_by_torch(start, "Adam", range(4), world_size=2)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)


def train_together(ahead, placement, device):
    manyhop.init()
    return train_on_batches(ahead, placement, device, "cuda", batch_size=8, distributed=True)


@pytest.mark.parametrize(("placement", "device"), PLACES)
def test_rows_that_come_with_batches(run_on_gpus, placement, device):
    expected = run_on_gpus(train_together, False, placement, device)
    found = run_on_gpus(train_together, True, placement, device)
    for (losses, table), (expected_losses, expected_table) in zip(found, expected, strict=True):
        assert losses == expected_losses
        assert torch.equal(table, expected_table)
