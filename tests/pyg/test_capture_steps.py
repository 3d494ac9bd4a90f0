"""What a captured step may be: what it returns, counts, draws and waits for."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captured_runs import Both, Run, make_both, step_with  # noqa: F401  # a fixture
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop
from manyhop_pyg import capture


class Counts(torch.optim.Optimizer):
    """Counts steps in Python."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            count = self.state[p]["step"] = self.state[p].get("step", 0) + 1
            p.add_(p.grad, alpha=-self.param_groups[0]["lr"] / count)


def test_optimizers_that_count_in_python(both: Both, caplog: Any) -> None:
    def make(run: Run) -> Any:
        run.optimizer = Counts(run.model.parameters(), {"lr": 0.1})
        return run.train

    assert both.compare(make=make).replayed == 0
    (message,) = caplog.messages
    assert message.endswith("Counts reads 'step' of its state on the host")


class Mean(torch.nn.Module):
    """Has its buffer replaced, or counts, in each step."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.number, self.counts = 0, counts

    def forward(self, loss: Tensor) -> Tensor:
        if self.counts:
            self.number += 1
            return loss / self.number
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss * (1 + self.mean)


@pytest.mark.parametrize(
    ("counts", "reason"), [(True, "'number' was 7 and is 8"), (False, "mean is another one in each step")]
)
def test_modules_that_change_in_python(both: Both, counts: bool, reason: str, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("manyhop_train.capture.step._MOST_SIZES", 8)

    step = both.compare(make=lambda run: step_with(run, Mean(counts=counts).to(both.device)))
    assert step.replayed == 0
    (message,) = caplog.messages
    assert reason in message


def test_two_steps_that_add_to_gradients_of_each_other(both: Both, caplog: Any) -> None:
    """As those of a generator and its critic: they run eagerly, as each finds the gradients of the other."""
    found, steps = [], []
    for captured in (False, True):
        run = Run(both.data, both.device)
        critic = torch.nn.Linear(4, 1).to(both.device)
        model = GraphSAGE(4, 8, 2, 4).to(both.device)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=0.02, fused=True) for m in (critic, model)]

        def step_of(optimizer: Any, critic: Any = critic, model: Any = model) -> Any:
            def step(of: Any) -> Tensor:
                optimizer.zero_grad()  # not the gradients of the other
                real, made = of.x[: of.batch_size], model(of.x, of.edge_index)[: of.batch_size]
                loss = F.softplus(-critic(real)).mean() + F.softplus(critic(made)).mean()
                loss.backward()
                optimizer.step()
                return loss

            return step

        steps = [capture(step_of(one)) if captured else step_of(one) for one in optimizers]
        found.append(torch.stack([s(batch) for _ in range(3) for batch in run.loader for s in steps]).detach().cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-2)
    assert [step.graphs for step in steps] == [4, 4]
    assert all(step.replayed < 21 for step in steps)
    assert "gradients are other tensors in each step" in caplog.text


def test_batches_that_require_gradients(both: Both, caplog: Any) -> None:
    """Gradients end at the copy of a batch, so a layer before the step would never learn."""
    found = []
    for captured in (False, True):
        run = Run(both.data, both.device)
        first = torch.nn.Linear(4, 4).to(both.device)
        optimizer = torch.optim.AdamW([*run.model.parameters(), *first.parameters()], lr=0.02, fused=True)

        def train(batch: Any, run: Run = run, optimizer: Any = optimizer) -> Tensor:
            loss = run.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = capture(train) if captured else train
        losses = []
        for batch in run.loader:
            batch.x = first(batch.x)
            losses.append(step(batch).detach())
        found.append(torch.stack(losses).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    (message,) = caplog.messages
    assert "since a tensor of its batches requires gradients" in message


def test_results_in_other_objects(both: Both, caplog: Any) -> None:
    """Their tensors would be written again by the next step."""
    run = Run(both.data, both.device)
    step = capture(lambda batch: Data(loss=run.loss(batch).detach()))
    losses = [step(batch) for batch in run.loader]
    assert len({result.loss.item() for result in losses}) == 8
    assert step.replayed == 0
    (message,) = caplog.messages
    assert "it cannot be captured: it returns a Data. Return tensors, in tuples, lists or dictionaries" in message


CONTAINERS = {"dict": lambda loss: {"loss": [loss, np.float64(3), "name"]}, "None": lambda loss: None}


@pytest.mark.parametrize("made", CONTAINERS.values(), ids=CONTAINERS)
def test_results_in_containers(both: Both, made: Any) -> None:
    run = Run(both.data, both.device)
    step = capture(lambda batch: made(run.loss(batch)))
    batches = list(run.loader)
    results = [step(batch) for batch in batches]
    assert step.replayed == 5
    for result, batch in zip(results, batches, strict=True):
        if result is not None:
            assert not result["loss"][0].requires_grad
            torch.testing.assert_close(result["loss"][0], run.loss(batch).detach(), rtol=1e-2, atol=1e-3)
            assert result["loss"][1:] == [3, "name"]


def test_an_exception_in_an_epoch(both: Both) -> None:
    """The step raises it in an eager run; the epoch after it is that of an eager run."""

    def make(run: Run) -> Any:
        def step(batch: Any) -> Tensor:
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            loss.backward()
            if batch.bad:
                raise ValueError("a bad batch")
            run.optimizer.step()
            return loss

        def guarded(batch: Any) -> Tensor:
            numbers.append(len(numbers))
            batch.bad = len(numbers) in (2, 12)
            try:
                return steps[-1](batch)
            except ValueError:
                return torch.zeros((), device=both.device)

        numbers: list[int] = []
        steps.append(step)
        return guarded

    steps: list[Any] = []
    found = []
    for captured in (False, True):
        run = Run(both.data, both.device)
        run.step = make(run)
        if captured:
            steps[-1] = capture(steps[-1])
        found.append(run.losses())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
    assert steps[-1].replayed == 20
    assert (found[1] == 0).sum() == 2


def test_weights_that_two_layers_share(both: Both) -> None:
    def make(run: Run) -> Any:
        run.model.convs[1].lin_r.bias = run.model.convs[1].lin_l.bias
        run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.02, fused=True)
        return run.train

    assert both.compare(make=make).replayed == 21


def test_two_optimizers(both: Both) -> None:
    def make(run: Run) -> Any:
        first, second = run.model.convs
        optimizers = [
            torch.optim.AdamW(first.parameters(), lr=0.02, fused=True),
            torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9, fused=True),
        ]
        run.settings = optimizers

        def step(batch: Any) -> Tensor:
            for one in optimizers:
                one.zero_grad()
            loss = run.loss(batch)
            loss.backward()
            for one in optimizers:
                one.step()
            return loss

        return step

    def change(run: Run, number: int) -> None:
        for one in run.settings:
            one.param_groups[0]["lr"] *= 0.9

    assert (step := both.compare(change, make)).graphs == 1
    assert step.replayed == 21


WAITS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "item": lambda batch, out: out.sum() * out[0, 0].item(),
    "condition": lambda batch, out: out.sum() if out[0, 0] > 0 else out.mean(),
    "boolean index": lambda batch, out: out[batch.seed_mask].sum(),
    "shape from data": lambda batch, out: out.sum() * len(batch.y.unique()),
    "repeat": lambda batch, out: torch.repeat_interleave(out.sum(1), batch.y[: len(out)].abs()).sum(),
}


@pytest.mark.parametrize("kind", WAITS)
def test_what_waits_names_the_line(both: Both, kind: str, caplog: Any) -> None:
    def make(run: Run) -> Any:
        run.loss = lambda batch: WAITS[kind](batch, run.model(batch.x, batch.edge_index)[: batch.batch_size])  # type: ignore[method-assign]
        return run.train

    step = both.compare(make=make, epochs=1)
    assert (step.eager, step.replayed) == (8, 0)
    (message,) = caplog.messages
    line = WAITS[kind].__code__.co_firstlineno
    assert f'line {line} of {__file__} cannot be captured: `"{kind}": lambda batch, out: ' in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_precision_dropout_and_averages(both: Both, dtype: torch.dtype) -> None:
    """With a dropout of nothing: draws of replays are not those of eager steps."""
    averages: list[Any] = []

    def make(run: Run) -> Any:
        mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        averages.append(torch.optim.swa_utils.AveragedModel(run.model, multi_avg_fn=mean))
        dropout = torch.nn.Dropout(0.0)

        def step(batch: Any) -> Tensor:
            run.optimizer.zero_grad()
            with torch.autocast(both.device, dtype, enabled=dtype is not torch.float32):
                loss = dropout(run.loss(batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
            run.optimizer.step()
            return loss

        return step

    step = both.compare(lambda run, number: averages[-1].update_parameters(run.model), make)
    assert step.replayed == 21
    for eager, replayed in zip(*(average.module.parameters() for average in averages), strict=True):
        torch.testing.assert_close(replayed, eager, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("source", ["random", "numpy.random", "torch's generator"])
def test_random_numbers_of_the_host(both: Both, source: str, caplog: Any) -> None:
    if source == "torch's generator" and both.device == "cpu":
        pytest.skip("is that of the device")
    draws = {"random": random.random, "numpy.random": np.random.rand, "torch's generator": lambda: torch.rand(())}

    run = Run(both.data, both.device)
    run.step = capture(step_with(run, lambda loss: 2 * loss if draws[source]() < 0.5 else loss))
    run.losses(epochs=1)
    assert (run.step.eager, run.step.replayed) == (8, 0)
    (message,) = caplog.messages
    assert f"it cannot be captured: it draws random numbers from {source} on the host" in message


class WithIds(torch.nn.Module):
    """Adds rows of embeddings to those of nodes."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table, self.other = table, torch.nn.Embedding(8, 4)
        self.gnn = GraphSAGE(4, 8, 2, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        ids = torch.arange(len(x), device=x.device) % 8
        return self.gnn(x + self.table(ids) + self.other(ids), edge_index)


@pytest.mark.parametrize("kind", ["sparse", "manyhop.Embedding"])
def test_embeddings_that_no_graph_can_update(both: Both, kind: str, caplog: Any) -> None:
    def make(run: Run) -> Any:
        if kind == "sparse":
            table: Any = torch.nn.Embedding(8, 4, sparse=True)
        else:
            table = manyhop.Embedding(8, 4, placement="shared" if both.device == "cpu" else "device")
        run.model = WithIds(table).to(both.device)
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
        run.scale = None if kind == "sparse" else manyhop.optim.SGD(table, lr=0.1)
        return run.train

    assert both.compare(make=make, epochs=1).replayed == 0
    (message,) = caplog.messages
    assert ("it has sparse gradients" if kind == "sparse" else "it reads a manyhop.Embedding") in message


def test_memory_from_outside_lives_as_long_as_graphs(both: Both) -> None:
    """Replays go on to read and write it, whoever has let go of it."""
    found = {"weight": torch.ones(1 << 16, device=both.device), "sum": torch.zeros(1 << 16, device=both.device)}
    place = found["sum"].data_ptr()

    run = Run(both.data, both.device)

    def add(batch: Any) -> Tensor:
        found["sum"] += found["weight"]
        return run.loss(batch)

    step = capture(add, verify=0)
    batches = list(run.loader)
    for batch in batches[:5]:
        step(batch)
    assert step.replayed == 2
    found.clear()
    others = [torch.full((1 << 16,), 7.0, device=both.device) for _ in range(4)]
    assert place not in [other.data_ptr() for other in others]
    for batch in batches[5:]:
        step(batch)
    assert all((other == 7).all() for other in others)
