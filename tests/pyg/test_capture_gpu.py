"""``capture`` and ``accelerate`` on a GPU: captured steps compute what eager ones do."""

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured_runs import Run
from torch import Tensor
from torch_geometric.nn import GAT, GCN, GraphSAGE

from manyhop_pyg import NeighborLoader, accelerate, capture
from manyhop_train.capture.graphs import CUDARecorder

pytestmark = pytest.mark.gpu

INDUCTOR = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


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


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.RAdam])
def test_an_optimizer_that_counts_on_the_host_runs_eagerly(data, caplog, kind):
    run = Run(data, "cuda", captured=True)
    run.optimizer = kind(run.model.parameters(), lr=0.01)
    with caplog.at_level(logging.WARNING, "manyhop"):
        assert run.losses().isfinite().all()
    assert run.step.replayed == 0
    assert f"{kind.__name__} reads 'step' of its state on the host" in caplog.text


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


def test_dropout_draws_anew_in_each_replay(data):
    model = torch.nn.Dropout(0.5)
    batches = list(NeighborLoader(data, [3], batch_size=8, pad="auto", device="cuda"))
    step = capture(lambda batch: model(torch.ones_like(batch.x)))
    outs = [step(batches[0]) for _ in range(8)]
    assert step.replayed == 5
    assert len({tuple(out.flatten().tolist()) for out in outs}) == 8


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


def test_recordings_go_on_after_all_graphs_are_gone() -> None:
    recorder, kept = CUDARecorder(torch.device("cuda", 0)), []
    for number in range(4):
        replay, result = recorder.record(lambda number=number: torch.full((1000,), float(number), device="cuda"))
        replay()
        kept.append(result)  # memory of the graph
        del replay
    assert [tensor.unique().tolist() for tensor in kept] == [[0.0], [1.0], [2.0], [3.0]]
