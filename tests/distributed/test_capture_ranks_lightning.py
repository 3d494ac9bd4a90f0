"""Captured steps of Lightning's trainer with ``DistributedDataParallel``: a stand-in records on the CPU."""

import warnings

import pytest
import torch
from rank_steps import graph
from tape import Tape

lightning = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(lightning.LightningModule):
    """Notes its losses."""

    def __init__(self):
        super().__init__()
        from torch_geometric.nn import GraphSAGE

        torch.manual_seed(0)
        self.gnn, self.losses = GraphSAGE(4, 8, num_layers=2, out_channels=3), []

    def training_step(self, batch, _):
        out = self.gnn(batch.x, batch.edge_index)[: batch.batch_size]
        return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05, fused=True)


def train():
    import manyhop_train.capture.step
    from manyhop.lightning import CaptureSteps
    from manyhop_pyg import NeighborLoader, capture

    warnings.simplefilter("ignore")
    found = []
    for captured in (False, True):
        net, callback, tape = Net(), CaptureSteps(capture), Tape()
        manyhop_train.capture.step.recorder_of = lambda device, tape=tape: tape
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[callback] * captured,
        )  # fmt: skip
        loader = NeighborLoader(graph(), [3, 2], batch_size=6, seed=5, pad="auto", distributed=True)
        trainer.fit(net, loader)
        counts = (callback.step.eager, callback.step.replayed) if captured else None
        found.append((net.losses, [p.detach() for p in net.parameters()], counts))
    return found


# What Lightning tells torchrun by.
TORCHRUN = {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2"}


def test_two_ranks(launcher):
    for (losses, weights, _), (captured, ours, counts) in launcher.run(train, env=TORCHRUN):
        assert counts == (3, 7)
        torch.testing.assert_close(torch.tensor(captured), torch.tensor(losses), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours, weights, rtol=1e-3, atol=1e-3)
