"""What a user changes outside of a captured step: no graph may go on with what was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured_runs import Both, Run, at, make_both  # noqa: F401  # a fixture
from torch import Tensor

from manyhop_pyg import capture


def moves(run: Run) -> None:
    run.model.double().float()


def assigns(run: Run) -> None:
    run.model.load_state_dict(copy.deepcopy(run.model.state_dict()), assign=True)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01, fused=True)


def another_optimizer(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.001, fused=True)


def another_head(run: Run) -> None:
    run.model.convs[1].lin_l = torch.nn.Linear(8, 3).to(next(run.model.parameters()).device)
    with torch.no_grad():
        run.model.convs[1].lin_l.weight.fill_(0.1)
        run.model.convs[1].lin_l.bias.zero_()
    run.optimizer.add_param_group({"params": [*run.model.convs[1].lin_l.parameters()]})


def weights_by_data(run: Run) -> None:
    for p in run.model.parameters():
        p.data = p.data / 2


def forgets_states(run: Run) -> None:
    run.optimizer.state.clear()


def another_loss(run: Run) -> None:
    run.loss = lambda batch: run.model(batch.x, batch.edge_index).square().mean()  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [moves, assigns, another_optimizer, another_head, weights_by_data, forgets_states, another_loss],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("number", [2, 9])
def test_other_objects_and_memory(both: Both, change: Callable[[Run], None], number: int) -> None:
    step = both.compare(at(number, change))
    assert step.eager + step.replayed == 24
    assert step.replayed > 14
    assert step.graphs == 1


def test_learning_rates_as_tensors(both: Both) -> None:
    def change(run: Run, number: int) -> None:
        group = run.optimizer.param_groups[0]
        if number == 5:
            group["lr"] = torch.tensor(0.02, device=both.device)
        elif number > 5:
            assert isinstance(group["lr"], Tensor)
            group["lr"].fill_(0.1 / number)

    assert both.compare(change).graphs == 1


@pytest.mark.parametrize("way", ["accumulated", "grad", "grad.data"])
def test_gradients_of_several_steps(both: Both, way: str, caplog: pytest.LogCaptureFixture) -> None:
    def make(run: Run) -> Any:
        def step(batch: Any) -> Tensor:
            loss = run.loss(batch)
            loss.backward()
            return loss

        return step

    def change(run: Run, number: int) -> None:
        if number % 3:
            return
        for p in run.model.parameters():
            assert p.grad is not None
            if way == "grad":
                p.grad = p.grad / 3
            elif way == "grad.data":
                p.grad.data = p.grad.data / 3
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=way == "grad" or number % 2 == 0)

    step = both.compare(change, make, epochs=6)
    assert step.replayed > 40 if way != "grad.data" else "gradients are other tensors" in caplog.text


def test_evaluation_with_statistics_of_batches(both: Both) -> None:
    found = []
    for captured in (False, True):
        run = Run(both.data, both.device, norm="batch_norm")
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05, fused=True)

        @torch.no_grad()
        def evaluate(batch: Any, run: Run = run) -> Tensor:
            return run.loss(batch)

        train, test = (capture(run.train), capture(evaluate)) if captured else (run.train, evaluate)
        losses = []
        for _ in range(3):
            for training, step in ((True, train), (False, test)):
                run.model.train(training)
                losses += [step(batch).detach() for batch in run.loader]
        found.append(torch.stack([*losses, *(b.float().sum() for b in run.model.buffers())]).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-2)
    assert (train.replayed, test.replayed) == (21, 21)
