"""What a user changes outside of a captured step: no graph may go on with what was."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured_runs import Both, Run, at, make_both  # noqa: F401  # a fixture
from torch import Tensor
from torch_geometric.nn import GAT, GCN, GraphSAGE

from manyhop_pyg import NeighborLoader, accelerate, capture
from manyhop_train.capture.graphs import CUDARecorder


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


def loads_states(run: Run) -> None:
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


def forgets_states(run: Run) -> None:
    run.optimizer.state.clear()


def another_loss(run: Run) -> None:
    run.loss = lambda batch: run.model(batch.x, batch.edge_index).square().mean()  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [moves, assigns, another_optimizer, another_head, weights_by_data, loads_states, forgets_states, another_loss],
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


gpu = pytest.mark.gpu

INDUCTOR = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@gpu
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [(GraphSAGE, False), (GCN, False), (GAT, False), pytest.param(GraphSAGE, True, marks=INDUCTOR)],
)
@pytest.mark.parametrize("fast", [False, True])
def test_200_steps_lose_what_eager_ones_do(data, kind, compiled, fast):
    """GCN and GAT wait for the GPU without ``accelerate``."""
    losses = []
    for captured in (False, True):
        run = Run(data, "cuda")
        torch.manual_seed(0)
        run.model = kind(4, 16, 2, 3).cuda()
        run.optimizer = torch.optim.Adam(run.model.parameters(), lr=0.02)
        if captured and fast:
            accelerate(run.model)
        if captured and compiled:
            run.model = torch.compile(run.model, dynamic=False)
        run.step = capture(run.train) if captured else run.train
        losses.append(run.losses(epochs=25)[:200])
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-2, atol=2e-2)
    assert run.step.eager < 8 if fast or kind is GraphSAGE else run.step.replayed == 0


@gpu
@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.RAdam])
def test_an_optimizer_that_counts_on_the_host_runs_eagerly(data, caplog, kind):
    run = Run(data, "cuda", captured=True)
    run.optimizer = kind(run.model.parameters(), lr=0.01)
    with caplog.at_level(logging.WARNING, "manyhop"):
        assert run.losses().isfinite().all()
    assert run.step.replayed == 0
    assert f"{kind.__name__} reads 'step' of its state on the host" in caplog.text


@gpu
def test_adam_updates_by_one_kernel_unless_the_user_has_chosen_another_way(data):
    batch = next(iter(NeighborLoader(data, [3], batch_size=8, pad="auto", device="cuda")))
    for made, fused in (({}, True), ({"foreach": True}, None), ({"fused": False}, False)):
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        optimizer = torch.optim.AdamW([weight], **made)

        def step(batch: Any, weight: Tensor = weight, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            (batch.x * weight).sum().backward()
            optimizer.step()

        run = capture(step)
        for _ in range(6):
            run(batch)
        assert run.replayed == 3
        assert optimizer.param_groups[0]["fused"] is fused
        assert optimizer.param_groups[0]["capturable"]


@gpu
def test_dropout_draws_anew_in_each_replay(data):
    model = torch.nn.Dropout(0.5)
    batches = list(NeighborLoader(data, [3], batch_size=8, pad="auto", device="cuda"))
    step = capture(lambda batch: model(torch.ones_like(batch.x)))
    outs = [step(batches[0]) for _ in range(8)]
    assert step.replayed == 5
    assert len({tuple(out.flatten().tolist()) for out in outs}) == 8


@gpu
def test_a_step_that_waits_runs_eagerly(data, caplog):
    """The rest of the process goes on, also with random numbers."""
    batches = list(NeighborLoader(data, [3], batch_size=8, pad="auto", device="cuda"))
    weight = torch.ones(4, device="cuda", requires_grad=True)

    def wait(batch: Any) -> float:
        out = F.dropout(batch.x * weight, 0.5).sum()
        out.backward()
        return out.item()

    step = capture(wait)
    with caplog.at_level(logging.WARNING, "manyhop"):
        results = [step(batch) for batch in batches]
    assert step.replayed == 0
    assert step.eager == len(batches) == len(results)
    assert (
        f"line {wait.__code__.co_firstlineno + 3} of {__file__} cannot be captured: `return out.item()`" in caplog.text
    )
    torch.cuda.synchronize()
    assert capture(lambda batch: F.dropout(batch.x, 0.5).sum())(batches[0]).isfinite()
    other = capture(lambda batch: batch.x.sum())
    assert [other(batch).item() for batch in batches] == pytest.approx([b.x.sum().item() for b in batches], rel=1e-4)
    assert other.replayed > 0


@gpu
def test_recordings_go_on_after_all_graphs_are_gone() -> None:
    recorder, kept = CUDARecorder(torch.device("cuda", 0)), []
    for number in range(4):
        replay, result = recorder.record(lambda number=number: torch.full((1000,), float(number), device="cuda"))
        replay()
        kept.append(result)  # memory of the graph
        del replay
    assert [tensor.unique().tolist() for tensor in kept] == [[0.0], [1.0], [2.0], [3.0]]
