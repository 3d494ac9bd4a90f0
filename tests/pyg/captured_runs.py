"""Runs of a small model, eager and captured, that tests compare.

On CPUs, a stand-in for CUDA graphs repeats operators on fixed memory, without Python.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from tape import Tape

from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, capture
from manyhop_train.capture import step as step_

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def masked_loss(out: Tensor, batch: Any) -> Tensor:
    """The loss of the seeds that are no padding."""
    n = batch.batch_size
    return masked_mean(F.cross_entropy(out[:n], batch.y[:n], reduction="none"), batch.seed_mask)


class Run:
    """A model that trains; ``change(run, number)`` is called after each step."""

    def __init__(self, data: Data, device: str, norm: str | None = None) -> None:
        torch.manual_seed(0)
        self.model = GraphSAGE(4, 8, 2, 3, dropout=0.0, norm=norm).to(device)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02, fused=True)
        self.loader = NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto", device=device)
        self.factor, self.settings = 1.0, SimpleNamespace(factor=1.0)
        self.step: Any = self.train
        self.scale: Any = None

    def loss(self, batch: Any) -> Tensor:
        return self.factor * masked_loss(self.model(batch.x, batch.edge_index), batch)

    def train(self, batch: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss

    def losses(self, change: Callable[[Any, int], None], epochs: int = 3) -> Tensor:
        found: list[Tensor] = []
        for _ in range(epochs):
            for batch in self.loader:
                found.append(self.step(batch).detach())
                change(self, len(found))
        weights = [value.float().sum() for value in self.model.state_dict().values()]
        return torch.stack([*found, *weights]).cpu()


def nothing(run: Run, number: int) -> None: ...


class Both:
    """Eager and captured runs."""

    def __init__(self, data: Data, device: str, patch: pytest.MonkeyPatch) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("no GPU")
        self.data, self.device = data, device
        if device == "cpu":
            tape = Tape()
            patch.setattr("manyhop_train.capture.step.recorder_of", lambda device: tape)
            patch.setattr(step_, "_NOT_THE_USERS", step_._NOT_THE_USERS | {"tape", "recorder_stand_in"})

    def compare(self, change: Any = nothing, make: Any = lambda run: run.train, epochs: int = 3, **options: Any) -> Any:
        """Compare losses and weights. Return the captured step, which watches the run."""
        found = []
        for captured in (False, True):
            run = Run(self.data, self.device, **options)
            run.step = capture(make(run), watch=[run]) if captured else make(run)
            found.append(run.losses(change, epochs))
        tolerance = 1e-4 if self.device == "cpu" else 2e-2
        torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)
        return run.step


@pytest.fixture(name="both", params=DEVICES)
def make_both(request: Any, data: Data, monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(data, request.param, monkeypatch)


def at(number: int, change: Callable[[Run], None]) -> Callable[[Run, int], None]:
    return lambda run, now: change(run) if now == number else None
