"""Figures of a loader in the loggers that users have, where they are installed."""

import json

import pytest

from manyhop.loading.pipeline import Stats


def metrics():
    stats = Stats()
    stats.record(0, "sample", 0.0, 0.5)
    stats.waited(0, 0.0, 0.75)
    stats.count(seeds=10, nodes=30, edges=40)
    return stats.report().metrics()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        for name, value in metrics().items():
            writer.add_scalar(name, value, 3)
    read = EventAccumulator(str(tmp_path)).Reload()
    found = {name: read.Scalars(name)[0] for name in read.Tags()["scalars"]}
    assert {name: event.value for name, event in found.items()} == pytest.approx(metrics())  # TensorBoard has float32
    assert {event.step for event in found.values()} == {3}


@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed (pip install wandb)")
    with wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True)) as run:
        run.log(metrics())
        summary = dict(run.summary)
    assert {name: summary[name] for name in metrics()} == metrics()
    assert list(tmp_path.rglob("*.wandb"))


def test_json():
    assert json.loads(json.dumps(metrics())) == metrics()
    assert metrics()["manyhop/seeds"] == 10.0
