"""PyTorch Lightning, where it is installed: training, and loaders that it makes anew."""

import pytest
import torch
from helpers_pyg import all_same, check_batch
from torch.utils.data.distributed import DistributedSampler

from manyhop_pyg import LinkNeighborLoader, NeighborLoader

lightning = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_training(data):
    from torch_geometric.nn import GraphSAGE

    seen = []

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.gnn = GraphSAGE(4, 8, num_layers=2, out_channels=3)

        def training_step(self, batch, _):
            batch = batch["nodes"]
            check_batch(batch.cpu(), data)
            seen.append(batch.batch_size)
            out = self.gnn(batch.x, batch.edge_index)[: batch.batch_size]
            return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    from manyhop.lightning import LoaderStatsMonitor

    class Logger(lightning.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.seen = []

        def log_metrics(self, metrics, step=None):
            self.seen.append(metrics)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=(logger := Logger()),
        callbacks=[LoaderStatsMonitor()],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    loader = NeighborLoader(data, [3, 2], data.train_mask, batch_size=8, shuffle=True, num_workers=2)
    next(iter(loader))
    trainer.fit(Net(), {"nodes": loader})
    num_seeds = int(data.train_mask.sum())
    assert sum(seen) == 2 * num_seeds
    assert [metrics["manyhop/nodes/batches"] for metrics in logger.seen] == [len(loader)] * 2
    assert all(metrics["manyhop/nodes/edges_per_s"] > 0 for metrics in logger.seen)


def test_sampler_put_in_by_lightning(data):
    from pytorch_lightning.utilities.data import _update_dataloader

    for loader in (
        NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, num_workers=2),
        LinkNeighborLoader(data, [3, 2], batch_size=8, neg_sampling="binary"),
    ):
        sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False)
        again = _update_dataloader(loader, sampler)
        assert type(again) is type(loader)
        assert again.seed == loader.seed
        assert again.sampler is sampler
        assert torch.cat([b.input_id for b in again]).tolist() == list(sampler)
        epochs = []
        for _ in range(2):
            torch.manual_seed(3)
            epochs.append(list(_update_dataloader(loader, sampler)))
        assert all_same(*epochs)
