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
            check_batch(batch.cpu(), data)
            seen.append(batch.batch_size)
            out = self.gnn(batch.x, batch.edge_index)[: batch.batch_size]
            return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Net(), NeighborLoader(data, [3, 2], data.train_mask, batch_size=8, shuffle=True, num_workers=2))
    assert sum(seen) == 2 * int(data.train_mask.sum())


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
