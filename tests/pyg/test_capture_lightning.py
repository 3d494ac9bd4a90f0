"""A captured step in a LightningModule that optimizes by itself."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GraphSAGE

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from recorder_stand_in import StandIn

from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, capture

lightning = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_losses_are_those_of_the_eager_run(data: Any, recorders: list[StandIn]) -> None:
    class Net(lightning.LightningModule):  # type: ignore[misc]
        automatic_optimization = False

        def __init__(self, *, captured: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gnn, self.captured = GraphSAGE(4, 8, 2, 3), captured
            self.losses: list[float] = []

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.05)

        def on_train_start(self) -> None:
            self.optimizer = self.optimizers(use_pl_optimizer=False)
            recorders.append(StandIn(self.gnn, self.optimizer))
            self.step: Any = capture(self.update) if self.captured else self.update

        def update(self, batch: Any) -> Tensor:
            out = self.gnn(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="none")
            loss = masked_mean(loss, batch.seed_mask)
            self.optimizer.zero_grad()
            self.manual_backward(loss)
            self.optimizer.step()
            return loss

        def training_step(self, batch: Any, _: int) -> None:
            self.losses.append(self.step(batch).item())

    nets = []
    for captured in (False, True):
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        nets.append(Net(captured=captured))
        trainer.fit(nets[-1], NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto"))
    eager, replayed = nets
    assert torch.allclose(torch.tensor(replayed.losses), torch.tensor(eager.losses), atol=1e-4)
    assert (replayed.step.eager, replayed.step.replayed) == (3, 13)
