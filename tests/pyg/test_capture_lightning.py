"""Captured steps in Lightning: of modules, and by a callback beside other callbacks, precisions, interruptions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from captured_runs import DEVICES, masked_loss
from torch import Tensor
from torch_geometric.nn import GraphSAGE

from manyhop.errors import InputError, StaleStepError
from manyhop_pyg import NeighborLoader, capture

lightning = pytest.importorskip("pytorch_lightning")
from pytorch_lightning.callbacks import (  # noqa: E402
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)

from manyhop.lightning import CaptureSteps  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(lightning.LightningModule):  # type: ignore[misc]
    """Leaves all but the loss to the trainer.

    Args:
        norm: of its layers.
        scheduler: of the learning rate.
        limit: of the loss: a number that training changes.
    """

    def __init__(self, norm: str | None = None, scheduler: str = "none", limit: float = 100.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gnn, self.scheduler, self.limit = GraphSAGE(4, 8, 2, 3, norm=norm), scheduler, limit
        self.losses: list[Tensor] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        if self.scheduler == "none":
            return optimizer
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss"}}

    def loss(self, batch: Any) -> Tensor:
        return masked_loss(self.gnn(batch.x, batch.edge_index).float(), batch).clamp(max=self.limit)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=8)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("held_out", self.loss(batch), batch_size=8)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"])


class Case:
    """Two runs of a trainer, eagerly and captured."""

    def __init__(self, data: Any, device: str, tmp_path: Path) -> None:
        self.data, self.device, self.path = data, device, tmp_path

    def loader(self) -> Any:
        return NeighborLoader(self.data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto", device=self.device)

    def trainer(self, *callbacks: Any, **options: Any) -> Any:
        return lightning.Trainer(
            **{
                "accelerator": "gpu" if self.device == "cuda" else "cpu",
                "devices": 1,
                "logger": False,
                "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "default_root_dir": self.path,
                "callbacks": list(callbacks),
                "max_epochs": 4,
                **options,
            }
        )

    def compare(
        self, callbacks: Any = list, net: Any = Net, verify: int | None = None, **options: Any
    ) -> tuple[Any, Any]:
        """Compare losses and weights. Return the captured step and the trainer."""
        found = []
        for captured in (False, True):
            model = net()
            callback = CaptureSteps(capture, watch=[model], verify=verify)
            trainer = self.trainer(*callbacks(), *[callback] * captured, **options)
            trainer.fit(model, self.loader(), self.loader())
            weights = [value.float().sum() for value in model.gnn.state_dict().values()]
            found.append((torch.stack(model.losses).cpu(), torch.stack(weights).cpu(), trainer.current_epoch))
        (losses, weights, epochs), (again, other, same) = found
        tolerance = 1e-4 if self.device == "cpu" else 2e-2
        torch.testing.assert_close(again, losses, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(other, weights, rtol=tolerance, atol=10 * tolerance)
        assert same == epochs
        return callback.step, trainer


@pytest.fixture(params=DEVICES)
def case(request: Any, data: Any, tmp_path: Path) -> Case:
    if request.param == "cpu":
        request.getfixturevalue("tape")
    return Case(data, request.param, tmp_path)


@pytest.mark.parametrize(("norm", "mean"), [(None, "stochastic"), ("batch_norm", "stochastic"), (None, "all")])
def test_averages_of_weights(case: Case, norm: str | None, mean: str) -> None:
    """With batch normalisation, a last epoch only counts statistics anew."""
    step, trainer = case.compare(
        lambda: [WeightAveraging() if mean == "all" else StochasticWeightAveraging(0.02, swa_epoch_start=2)],
        lambda: Net(norm),
    )
    assert step.replayed == 4 * 8 - step.eager > 20
    assert trainer.current_epoch == (4 if norm is None else 5)


def test_early_stopping_and_plateaus(case: Case) -> None:
    step, trainer = case.compare(
        lambda: [EarlyStopping("held_out", patience=1, min_delta=0.1)], lambda: Net(scheduler="plateau"), max_epochs=20
    )
    assert trainer.current_epoch < 20
    assert trainer.optimizers[0].param_groups[0]["lr"] < 0.05
    assert step.replayed > 8


def test_checkpoints(case: Case) -> None:
    """A run that goes on from a checkpoint of captured steps, with captured steps or without."""
    checkpoint = ModelCheckpoint(case.path, monitor="loss", save_last=True)
    case.trainer(checkpoint, CaptureSteps(capture), max_epochs=2).fit(Net(), case.loader())
    runs = []
    for callbacks in ([], [CaptureSteps(capture)]):
        net = Net()
        case.trainer(*callbacks).fit(net, case.loader(), ckpt_path=checkpoint.last_model_path)
        runs.append(torch.stack(net.losses))
    assert len(runs[0]) == 16
    assert callbacks[0].step.replayed == 13
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_precisions(case: Case, precision: str, caplog: pytest.LogCaptureFixture) -> None:
    if case.device == "cpu" and precision == "16-mixed":
        pytest.skip("Lightning has it on GPUs only")
    step, _ = case.compare(precision=precision, gradient_clip_val=None if precision == "16-mixed" else 0.5)
    if precision == "16-mixed":  # its GradScaler waits
        assert step.replayed == 0
        assert "cannot be captured" in caplog.text
    else:
        assert step.replayed == 29


def test_accumulation_that_begins_later(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    step, _ = case.compare(lambda: [GradientAccumulationScheduler({0: 1, 2: 2, 3: 1})])
    assert step.replayed == 21
    assert caplog.text.count("Steps run eagerly as long as accumulate_grad_batches is not 1") == 1


class Anneal(Callback):  # type: ignore[misc]
    """Changes a number that the module reads."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.limit = 1.5 / (1 + trainer.current_epoch)


def test_numbers_of_the_module(case: Case) -> None:
    step, _ = case.compare(lambda: [Anneal()])
    assert step.graphs == 4


class Steps(Net):
    """Reads the number of the step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) / (1 + self.trainer.global_step)


def test_progress_of_the_trainer(case: Case) -> None:
    with pytest.raises(
        StaleStepError, match=r"another value of result\[0\] in step 5\. .* run the step without capture"
    ):
        case.compare(net=Steps, verify=1)


class Fails(Callback):  # type: ignore[misc]
    """Ends training."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == 11:
            raise KeyError("of the user")


def test_training_after_an_exception(case: Case) -> None:
    net = Net()
    with pytest.raises(KeyError, match="of the user"):
        case.trainer(CaptureSteps(capture), Fails()).fit(net, case.loader())
    assert "training_step" not in vars(net)
    expected = Net()
    expected.load_state_dict(net.state_dict())
    for model, callbacks in ((expected, []), (net, [CaptureSteps(capture)])):
        model.losses.clear()
        case.trainer(*callbacks).fit(model, case.loader())
    torch.testing.assert_close(torch.stack(net.losses), torch.stack(expected.losses), rtol=1e-2, atol=1e-2)
    assert callbacks[0].step.replayed == 29


class Manual(Net):
    """Optimizes by itself."""

    automatic_optimization = False

    def __init__(self, *, captured: bool) -> None:
        super().__init__()
        self.captured = captured

    def on_train_start(self) -> None:
        self.optimizer = self.optimizers(use_pl_optimizer=False)
        self.step: Any = capture(self.update) if self.captured else self.update

    def update(self, batch: Any) -> Tensor:
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        self.manual_backward(loss)
        self.optimizer.step()
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(batch).detach()


def test_modules_that_optimize_by_themselves(case: Case) -> None:
    nets = [Manual(captured=captured) for captured in (False, True)]
    for net in nets:
        case.trainer().fit(net, case.loader())
    eager, replayed = (torch.stack(net.losses).cpu() for net in nets)
    torch.testing.assert_close(replayed, eager, rtol=1e-2, atol=1e-2)
    assert (nets[1].step.eager, nets[1].step.replayed) == (3, 29)


class Logging(Net):
    """Logs from its step and returns a dictionary."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05, fused=True)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5), "interval": "step"}]

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:  # type: ignore[override]
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=8)
        self.log_dict({"twice": 2 * loss, "constant": 3.0}, batch_size=8)
        return {"loss": loss, "mask": batch.seed_mask}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert torch.equal(outputs["mask"], batch.seed_mask)
        self.losses.append(torch.stack([outputs["loss"], self.trainer.callback_metrics["twice"]]))


def test_what_steps_log_and_return(case: Case) -> None:
    found: list[Any] = []

    class Metrics(Callback):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
            found.append((metrics, trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"]))
            assert len({loss.item() for loss, _ in pl_module.losses}) > 10

    step, _ = case.compare(lambda: [Metrics()], Logging, max_steps=14, gradient_clip_val=0.5)
    eager, replayed = found
    assert replayed[0] == pytest.approx(eager[0], abs=1e-4 if case.device == "cpu" else 1e-2)
    assert replayed[1:] == eager[1:] == (14, 0.0125)
    assert (step.eager, step.replayed) == (3, 11)


@pytest.mark.parametrize(
    ("automatic", "options", "message"),
    [
        (False, {}, r"Expected automatic_optimization=True for CaptureSteps, got False"),
        (True, {"accumulate_grad_batches": 2}, r"Expected accumulate_grad_batches=1 for CaptureSteps, got 2"),
    ],
)
def test_what_the_callback_refuses(case: Case, automatic: bool, options: Any, message: str) -> None:
    net = Net()
    net.automatic_optimization = automatic
    with pytest.raises(InputError, match=message):
        case.trainer(CaptureSteps(capture), **options).fit(net, case.loader())
