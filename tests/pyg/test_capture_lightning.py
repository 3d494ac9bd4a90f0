"""A captured step in a LightningModule that optimizes by itself."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_runs import masked_loss
from torch import Tensor
from torch_geometric.nn import GraphSAGE

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from recorder_stand_in import StandIn

import manyhop_train.capture.step
from manyhop.errors import InputError
from manyhop_pyg import NeighborLoader, capture

lightning = pytest.importorskip("pytorch_lightning")
from manyhop.lightning import CaptureSteps  # noqa: E402

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
            loss = masked_loss(self.gnn(batch.x, batch.edge_index), batch)
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


class Automatic(lightning.LightningModule):  # type: ignore[misc]
    """Leaves all but the loss to the trainer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gnn = GraphSAGE(4, 8, 2, 3)
        self.seen: list[tuple[float, float]] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5), "interval": "step"}]

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        loss = masked_loss(self.gnn(batch.x, batch.edge_index), batch)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=8)
        self.log_dict({"twice": 2 * loss, "constant": 3.0}, batch_size=8)
        return {"loss": loss, "mask": batch.seed_mask}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert torch.equal(outputs["mask"], batch.seed_mask)
        self.seen.append((outputs["loss"].item(), self.trainer.callback_metrics["twice"].item()))


def fit(net: Any, loader: Any, *callbacks: Any, **options: Any) -> Any:
    trainer = lightning.Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(net, loader)
    return trainer


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_callback_captures_what_the_trainer_does(data: Any, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    results = []
    for captured in (False, True):
        net, callback = Automatic(), CaptureSteps(capture)
        stand_ins: dict[Any, StandIn] = {}

        def recorder_of(device: Any, net: Any = net, stand_ins: Any = stand_ins) -> StandIn:
            found: StandIn = stand_ins.setdefault(device, StandIn(net.gnn, net.optimizers(use_pl_optimizer=False)))
            return found

        if device == "cpu":
            monkeypatch.setattr(manyhop_train.capture.step, "recorder_of", recorder_of)
        loader = NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto", device=device)
        options = {"accelerator": "gpu" if device == "cuda" else "cpu", "devices": 1, "gradient_clip_val": 0.5}
        trainer = fit(net, loader, *[callback] * captured, max_steps=14, **options)
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
        results.append((net.seen, metrics, trainer.global_step, rates))
    eager, replayed = results
    atol = 1e-4 if device == "cpu" else 1e-2
    assert torch.allclose(torch.tensor(replayed[0][1:]), torch.tensor(eager[0][1:]), atol=atol)
    assert replayed[1] == pytest.approx(eager[1], abs=atol)
    assert len({loss for loss, _ in replayed[0]}) > 10
    assert replayed[2:] == eager[2:] == (14, [0.0125])
    assert (callback.step.eager, callback.step.replayed) == (3, 11)
    assert "training_step" not in vars(net)


@pytest.mark.parametrize(
    ("automatic", "options", "message"),
    [
        (False, {}, r"Expected automatic_optimization=True for CaptureSteps, got False"),
        (True, {"accumulate_grad_batches": 2}, r"Expected accumulate_grad_batches=1 for CaptureSteps, got 2"),
    ],
)
def test_what_the_callback_refuses(data: Any, automatic: bool, options: Any, message: str) -> None:
    net = Automatic()
    net.automatic_optimization = automatic
    with pytest.raises(InputError, match=message):
        fit(
            net,
            NeighborLoader(data, [3], batch_size=8, pad="auto"),
            CaptureSteps(capture),
            accelerator="cpu",
            **options,
        )
