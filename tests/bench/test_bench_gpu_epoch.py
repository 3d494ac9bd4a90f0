"""The benchmark for GPUs: how training with and without loading is compared."""

import dataclasses

import pytest
import torch

from manyhop_bench.gpu.command import QUICK
from manyhop_bench.gpu.graphs import rmat
from manyhop_bench.gpu.timing import PeakMemory, Ranks

epoch = pytest.importorskip("manyhop_bench.gpu.loaders.epoch")
Data = pytest.importorskip("torch_geometric.data").Data

CPU = torch.device("cpu")


class _Scripted(Ranks):
    """Runs what it is to measure, and returns given seconds."""

    def seconds(self, run):
        run()
        return next(SCRIPT)


SCRIPT = iter(())


def test_rounds_with_and_without_loading_are_compared_pair_by_pair(monkeypatch):
    """Medians of ratios: a machine that is slower in some rounds is so for both."""
    batch = Data(
        x=torch.rand(5, 4),
        edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 1, 1]]),
        y=torch.zeros(5, dtype=torch.int64),
        batch_size=1,
        num_sampled_nodes=[1, 2, 2],
        num_sampled_edges=[2, 2],
    )
    batches, asked = 3, []

    def make(fanout, seeds):
        asked.append((fanout, tuple(seeds.shape)))
        return [batch] * len(seeds)

    on_gpu = [0.4]
    pairs = [(3.0, 3.3), (6.0, 6.6), (1.0, 2.0)]  # without, with, of 3 steps
    monkeypatch.setitem(globals(), "SCRIPT", iter(on_gpu + [second for pair in pairs for second in pair]))
    job = dataclasses.replace(
        QUICK,
        device="cpu",
        contender="manyhop",
        parts=("epoch",),
        fanouts=((3, 2),),
        batch_size=16,
        num_features=4,
        epochs=3,
        hidden=(4,),
        scalings=("weak", "strong"),
        epoch_batches=batches,
        strong_batches=batches,
        results="",
    )
    ranks = _Scripted(0, 1, CPU)
    rows = list(epoch.train(job, ranks, rmat(100, 500, CPU), PeakMemory(ranks), make, "replica", 1 << 30))
    assert [row.workload for row in rows] == ["[3, 2], 4 hidden, weak", "[3, 2], 4 hidden, strong"]
    assert asked == [((3, 2), (3, 16))]  # the same work, measured once
    for row in rows:
        assert row.seconds == pytest.approx([1.1, 2.2, 2 / 3])
        assert row.edges == 4
        extra = row.extra
        assert (extra["batches"], extra["step_s"], extra["step_gpu_s"]) == pytest.approx((3, 1.0, 0.1))
        assert (extra["ratio_low"], extra["ratio"], extra["ratio_high"]) == pytest.approx((1.1, 1.1, 1.55))


def test_parts_of_an_epoch_and_steps_without_loading_take_turns(monkeypatch):
    """No batch is used twice, and the loader sees its end."""
    monkeypatch.setattr(epoch, "_TURN", 2)
    monkeypatch.setattr(epoch, "_KEPT", 3)
    monkeypatch.setitem(globals(), "SCRIPT", iter([4.0, 5.0, 1.0, 7.0, 0.0, 2.0]))  # without, with, in turns
    done, epochs = [], []

    class Loader:
        def __iter__(self):
            epochs.append("begun")
            yield from (f"{len(epochs)}.{i}" for i in range(5))
            epochs.append("ended")

    seconds, pairs = epoch._in_turns(_Scripted(0, 1, CPU), done.extend, Loader(), 5)
    assert done == ["1.0", "1.1", "2.0", "2.1", "1.2", "2.2", "2.3", "2.4"]
    assert epochs == ["begun", "begun", "ended"]
    assert seconds == pytest.approx(14.0 / 5)
    assert pairs == [(2.5, 2.0)]  # only of as many steps
