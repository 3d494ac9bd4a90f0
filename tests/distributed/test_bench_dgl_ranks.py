"""Epochs under DDP of ``manyhop bench dgl --gpu``, on the CPU."""

import pytest

import manyhop_dgl  # noqa: F401  # makes dgl importable

pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")


def run_worker():
    import torch
    from benchmarks.dgl import worker

    import manyhop

    manyhop.init()
    return worker.run(scale=9, num_edges=4000, rounds=1, batches=2, batch_size=64, device=torch.device("cpu"))


def test_epochs_under_ddp(launcher):
    from benchmarks.dgl.gpu import epochs

    found = launcher.run(run_worker, world_size=2)
    assert [one["ranks"] for one in found] == [2, 2]
    assert all(2 < one["loss"] < 5 for one in found)  # of 47 classes
    edges = [one["medges_per_s"] * one["ms"] for one in found]  # of all ranks
    assert edges[0] == pytest.approx(edges[1])
    assert [len(row) for row in epochs(found).rows] == [5, 5]
