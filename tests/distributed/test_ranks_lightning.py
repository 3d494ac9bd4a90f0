"""Lightning's trainer with ranks that share batches."""

import pytest
import torch
from rank_loaders import digest, homogeneous, one_process

lightning = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(lightning.LightningModule):
    """Notes the batches it is given."""

    def __init__(self, seen):
        super().__init__()
        from torch_geometric.nn import GraphSAGE

        self.seen, self.gnn = seen, GraphSAGE(4, 8, num_layers=2, out_channels=3)

    def train_dataloader(self):
        return homogeneous(distributed=True, seed=5, num_workers=1)

    def training_step(self, batch, _):
        self.seen.append((digest(batch), bool(batch.is_padding.all())))
        out = self.gnn(batch.x, batch.edge_index)[: batch.batch_size]
        return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def train():
    import warnings

    from manyhop.lightning import LoaderStatsMonitor

    seen = []
    trainer = lightning.Trainer(
        callbacks=[LoaderStatsMonitor(all_metrics=True)],
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.fit(Net(seen))
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return seen, figures, [str(one.message) for one in warned if "manyhop" in str(one.message)]


# What Lightning tells torchrun by.
TORCHRUN = {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2"}


def test_two_ranks(launcher):
    """Lightning puts in a DistributedSampler, unless there is one."""
    (first, *others), (second, *of_second) = launcher.run(train, env=TORCHRUN)
    for (figures, warned), seeds in ((others, 32), (of_second, 29)):  # each rank has its own
        assert (figures["manyhop/batches"], figures["manyhop/seeds"], warned) == (4, seeds, [])
    dealt = [batch for pair in zip(first, second, strict=True) for batch in pair]
    assert dealt == [(batch, False) for epoch in one_process("homogeneous", 2) for batch in epoch]
