"""Embeddings among the data of loaders that share batches: training with rows gathered ahead, and without."""

import sys
from pathlib import Path

import pytest
import torch

import manyhop

sys.path.insert(0, str(Path(__file__).parents[1] / "pyg"))  # also of ranks
from test_embeddings_in_data import NODES, WIDTH, losses_of, make_data

ENV = {"TRITON_INTERPRET": "1"}
PLACES = ["shared", "pinned", "device", "sharded", "distributed"]


def train(placement, ahead):
    import whole_graph_stand_in

    from manyhop_pyg import NeighborLoader

    whole_graph_stand_in.install()
    manyhop.init()
    data, embedding = make_data(), manyhop.Embedding(NODES, WIDTH, placement=placement, seed=1, rank_timeout=60.0)
    if ahead:
        data.emb = embedding
    loader = NeighborLoader(
        data, [5, 5], batch_size=8, shuffle=True, seed=3, num_workers=1, prefetch_factor=6, distributed=True
    )
    rows_of = (lambda batch: batch.emb) if ahead else (lambda batch: embedding(batch.n_id))
    losses = losses_of(loader, rows_of, embedding)
    with torch.no_grad():
        return losses, embedding(torch.arange(NODES)).clone()


@pytest.mark.parametrize("placement", PLACES)
def test_training_is_the_same_to_the_last_bit(launcher, placement):
    expected = launcher.run(train, placement, False, env=ENV)
    found = launcher.run(train, placement, True, env=ENV)
    for (losses, table), (expected_losses, expected_table) in zip(found, expected, strict=True):
        assert len(losses) == 50
        assert losses == expected_losses
        assert torch.equal(table, expected_table)
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][0] != found[1][0]


def test_parts_of_two_nodes(launcher, two_nodes):
    runs = [
        launcher.run(train, "sharded", ahead, node_of=[0, 1], nodes=two_nodes, env=ENV) for ahead in (False, True)
    ]
    for (losses, table), (expected_losses, expected_table) in zip(*runs, strict=True):
        assert losses == expected_losses
        assert torch.equal(table, expected_table)
