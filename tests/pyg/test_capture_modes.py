"""What graphs repeat is part of their key, and what no graph can repeat runs eagerly, which the log says."""

from typing import Any

import pytest
import torch
import torch_geometric.transforms as T
from test_capture import Run, StandIn
from torch import Tensor

from manyhop.errors import InputError
from manyhop_pyg import NeighborLoader, accelerate, capture


@pytest.fixture
def batches(data):
    return list(NeighborLoader(data, [3, 2], batch_size=8, seed=1, pad="auto"))


def test_modes_are_recorded_each(data, batches, recorders):
    run = Run(data, recorders, captured=False)
    weight = next(run.model.parameters())
    step = capture(lambda batch: run.model(batch.x, batch.edge_index).sum())

    def graphs() -> int:
        for batch in batches[:5]:
            step(batch)
        return step.graphs

    assert graphs() == 1
    run.model.eval()
    assert graphs() == 2
    weight.requires_grad_(False)
    assert graphs() == 3
    with torch.no_grad():
        assert graphs() == 4
    with torch.inference_mode():
        assert graphs() == 5
    with torch.autocast("cpu", torch.bfloat16):
        assert graphs() == 6
    weight.requires_grad_(True)
    run.model.train()
    assert graphs() == 6  # which was recorded before


def test_evaluation_beside_training_is_recorded_once(data, batches, recorders):
    run = Run(data, recorders, captured=True)
    recorders.append(StandIn())

    @torch.no_grad()
    def evaluate(batch: Any) -> Tensor:
        return run.loss(batch)

    captured = capture(evaluate)
    captured(batches[0])
    recorders.append(run.recorder)
    for _ in range(3):
        for batch in batches:
            run.train(batch)  # eagerly: each time with gradients of its own
            assert torch.allclose(captured(batch), evaluate(batch), atol=1e-5)
            assert all(p.grad is not None for p in run.model.parameters())
    assert captured.graphs == 1


def test_edges_of_which_the_order_is_not_known(data, batches, recorders):
    run = Run(data, recorders, captured=False)
    accelerate(run.model)
    with torch.no_grad():
        step = capture(lambda batch: run.model(batch.x, batch.edge_index)[: batch.batch_size])
        for batch in batches:
            step(batch)
        assert step.graphs == 1
        for batch in batches:
            order = torch.randperm(batch.edge_index.size(1))
            expected = run.model(batch.x, batch.edge_index)[: batch.batch_size]
            batch.edge_index = batch.edge_index[:, order]
            assert torch.allclose(step(batch), expected, atol=1e-5)
        assert step.graphs == 2


def test_values_that_always_change(data, batches, recorders, caplog, monkeypatch):
    monkeypatch.setattr("manyhop_train.capture.step._MOST_SIZES", 4)
    run = Run(data, recorders, captured=True)
    for i, batch in enumerate(batches):
        batch.number = i
        run.step(batch)
    (message,) = caplog.messages
    assert message.endswith("since batches, or settings of optimizers, always differ: 'number' was 3 and is 4")
    assert (run.step.eager, run.step.graphs) == (8, 0)


def test_settings_that_always_change(data, batches, recorders, caplog, monkeypatch):
    monkeypatch.setattr("manyhop_train.capture.step._MOST_SIZES", 4)
    run = Run(data, recorders, captured=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=9)
    run.losses(1, each=lambda number: scheduler.step())
    (message,) = caplog.messages
    assert "always differ: 'betas' was (0." in message
    run = Run(data, recorders, captured=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=9, cycle_momentum=False)
    run.losses(1, each=lambda number: scheduler.step())
    assert run.step.replayed == 5


def test_batches_on_several_devices(data, batches, recorders, caplog):
    run = Run(data, recorders, captured=True)
    for batch in batches:
        batch.there, batch.empty = torch.empty(3, device="meta"), torch.empty(0, device="meta")
        run.step(batch)
    (message,) = caplog.messages
    assert message.endswith("tensors of its batches are on cpu and meta. Move all to one device")
    assert (run.step.eager, run.step.graphs) == (8, 0)


def test_optimizers_that_read_their_state_on_the_host(data, batches, recorders, caplog):
    run = Run(data, recorders, captured=True)
    for number, batch in enumerate(batches):
        run.step(batch)
        if number == 1:
            run.optimizer.state[next(run.model.parameters())]["count"] = torch.empty((), device="meta")
    (message,) = caplog.messages
    assert message.endswith("since Adam reads 'count' of its state on the host")
    assert (run.step.eager, run.step.graphs) == (8, 0)


class Trainer:
    def step(self, batch: Any) -> Tensor:
        return batch.x.sum()


def test_functions_of_other_arguments(batches):
    for wrong, named in (
        (Trainer.step, r"Trainer\.step\(self, batch"),
        (lambda batch, epoch: None, r"\(batch, epoch\)"),
        (lambda: None, r"\(\)"),
        (lambda batch, *, epoch: None, r"\(batch, \*, epoch\)"),
    ):
        with pytest.raises(InputError, match=f"Expected a function of a batch, got .*{named}.*, not that of its class"):
            capture(wrong)
    assert capture(Trainer().step)(batches[0]) == batches[0].x.sum()
    assert capture(lambda batch, scale=2: scale * batch.x.sum())(batches[0]) == 2 * batches[0].x.sum()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_sparse_tensors(data, recorders, layout):
    recorders.append(StandIn())
    loader = NeighborLoader(data, [3], batch_size=8, pad="auto", transform=T.ToSparseTensor(layout=layout))
    with pytest.raises(InputError, match="Expected edges as edge_index, got a sparse tensor 'adj_t'"):
        capture(lambda batch: batch.x.sum())(next(iter(loader)))
