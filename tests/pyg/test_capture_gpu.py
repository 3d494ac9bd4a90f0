"""``capture`` and ``accelerate`` on a GPU: captured steps compute what eager ones do."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GAT, GCN, GraphSAGE

from manyhop_pyg import NeighborLoader, accelerate, capture
from manyhop_train.capture.recorder import CUDARecorder

pytestmark = pytest.mark.gpu

INDUCTOR = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.02, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
HOSTS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


def train(
    data: Any,
    *,
    captured: bool,
    optimizer: str = "adam",
    kind: Any = GraphSAGE,
    fast: bool = False,
    epochs: int = 25,
    dropout: float = 0.0,
    num_workers: int = 0,
    schedule: bool = False,
    compiled: bool = False,
) -> tuple[list[float], Any]:
    """The losses, and the step."""
    torch.manual_seed(0)
    model = kind(4, 16, 2, 3, dropout=dropout).cuda()
    if fast:
        accelerate(model)
    update = (OPTIMIZERS | HOSTS)[optimizer](model.parameters())
    net = torch.compile(model, dynamic=False) if compiled else model
    scheduler = torch.optim.lr_scheduler.ExponentialLR(update, 0.98)
    loader = NeighborLoader(
        data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto", device="cuda", num_workers=num_workers
    )

    def step(batch: Any) -> Tensor:
        update.zero_grad()
        out = net(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="none")
        loss = (loss * batch.seed_mask).sum() / batch.seed_mask.sum()
        loss.backward()
        update.step()
        return loss

    run: Any = capture(step) if captured else step
    losses = []
    for _ in range(epochs):
        for batch in loader:
            losses.append(run(batch))
        if schedule:
            scheduler.step()
    return [loss.item() for loss in losses], run


@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name} for name in OPTIMIZERS),
        {"fast": True},
        {"fast": True, "num_workers": 1},
        *({"schedule": True, "optimizer": name} for name in OPTIMIZERS),
        {"fast": True, "kind": GCN},
        {"fast": True, "kind": GAT},
        pytest.param({"compiled": True}, marks=INDUCTOR),
        pytest.param({"compiled": True, "fast": True}, marks=INDUCTOR),
    ],
    ids=str,
)
def test_200_steps_lose_what_eager_ones_do(data, options):
    expected, _ = train(data, captured=False, **options | {"fast": False, "compiled": False})
    losses, step = train(data, captured=True, **options)
    assert step.eager < 8
    assert step.replayed == 200 - step.eager
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", HOSTS)
def test_an_optimizer_that_counts_on_the_host_runs_eagerly(data, caplog, name):
    with caplog.at_level(logging.WARNING, "manyhop"):
        losses, step = train(data, captured=True, optimizer=name, epochs=3)
    assert step.replayed == 0
    assert torch.tensor(losses).isfinite().all()
    assert f"{name} reads 'step' of its state on the host" in caplog.text


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
