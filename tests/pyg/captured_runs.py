"""Runs of a small model, eager and captured, that tests compare.

On CPUs, a stand-in for CUDA graphs repeats operators on fixed memory, without Python.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from manyhop.masks import masked_mean
from manyhop_pyg import NeighborLoader, capture

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def masked_loss(out: Tensor, batch: Any) -> Tensor:
    """The loss of the seeds that are no padding."""
    n = batch.batch_size
    return masked_mean(F.cross_entropy(out[:n], batch.y[:n], reduction="none"), batch.seed_mask)


class Run:
    """A model that trains; ``change(run, number)`` is called after each step."""

    def __init__(
        self,
        data: Data,
        device: str = "cpu",
        norm: str | None = None,
        *,
        optimizer: str = "adamw",
        captured: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.model = GraphSAGE(4, 8, 2, 3, dropout=0.0, norm=norm).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.loader = NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto", device=device)
        self.factor, self.settings = 1.0, SimpleNamespace(factor=1.0)
        self.step: Any = capture(self.train) if captured else self.train
        self.scale: Any = None

    def loss(self, batch: Any) -> Tensor:
        return self.factor * masked_loss(self.model(batch.x, batch.edge_index), batch)

    def train(self, batch: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss

    def losses(self, change: Callable[[Any, int], None] = lambda run, number: None, epochs: int = 3) -> Tensor:
        """The loss of each step; then the sums of weights and buffers."""
        found: list[Tensor] = []
        for _ in range(epochs):
            for batch in self.loader:
                found.append(self.step(batch).detach())
                change(self, len(found))
        weights = [value.float().sum() for value in self.model.state_dict().values()]
        return torch.stack([*found, *weights]).cpu()


def step_with(run: Run, change: Callable[[Tensor], Tensor]) -> Callable[[Any], Tensor]:
    """Return the training step of a run for another loss."""

    def step(batch: Any) -> Tensor:
        run.optimizer.zero_grad()
        loss = change(run.loss(batch))
        loss.backward()
        run.optimizer.step()
        return loss

    return step


class Both:
    """Eager and captured runs."""

    def __init__(self, data: Data, device: str) -> None:
        self.data, self.device = data, device

    def compare(
        self, change: Any = lambda run, number: None, make: Any = lambda run: run.train, epochs: int = 3, **options: Any
    ) -> Any:
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
def make_both(request: Any, data: Data) -> Both:
    if request.param == "cpu":
        request.getfixturevalue("tape")
    return Both(data, request.param)


def at(number: int, change: Callable[[Run], None]) -> Callable[[Run, int], None]:
    return lambda run, now: change(run) if now == number else None
