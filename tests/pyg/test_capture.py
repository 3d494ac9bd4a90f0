"""``capture``: steps are recorded once per size and replayed, in each mode; what no graph can repeat runs eagerly."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_geometric.transforms as T
from captured_runs import OPTIMIZERS, Both, Run, make_both  # noqa: F401  # a fixture
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import SAGEConv

from manyhop.errors import InputError
from manyhop_pyg import LinkNeighborLoader, NeighborLoader, accelerate, capture
from manyhop_pyg.batch.join import is_sorted


@pytest.fixture
def batches(data):
    return list(NeighborLoader(data, [3, 2], batch_size=8, seed=1, pad="auto"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_are_those_of_the_eager_run(both: Both, optimizer: str) -> None:
    step = both.compare(optimizer=optimizer)
    assert (step.eager, step.replayed, step.graphs) == (3, 21, 1)


def test_rates_that_graphs_repeat(both: Both) -> None:
    """Where an optimizer reads the learning rate as a number, each rate is recorded."""

    def change(run: Run, number: int) -> None:
        group = run.optimizer.param_groups[0]
        assert isinstance(group["lr"], float)
        if number % 8 == 0:
            group["lr"] *= 0.5

    assert both.compare(change, optimizer="rmsprop").graphs == (3 if both.device == "cpu" else 1)


def test_compiled_models_are_compiled_once_and_not_while_recording(data: Any, tape: Any) -> None:
    compilations = []

    def make(run: Run) -> Any:
        def backend(module: Any, inputs: Any) -> Any:
            compilations.append(tape.recording)
            return module.forward

        run.model = torch.compile(run.model, backend=backend, dynamic=False)
        return run.train

    assert Both(data, "cpu").compare(make=make).replayed == 21
    assert compilations == [False, False]
    torch.compiler.reset()


def test_grown_sizes_have_graphs_of_their_own(data, tape):
    run = Run(data, captured=True)
    wide = NeighborLoader(data, [5, 4], batch_size=8, seed=1, pad="auto")
    for loader in (run.loader, wide, run.loader, wide):
        for batch in loader:
            run.step(batch)
    assert run.step.graphs == 2
    assert run.step.eager == 4


def test_modes_are_recorded_each(data, batches, tape):
    run = Run(data)
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


def test_evaluation_beside_training_is_recorded_once(data, batches, tape):
    run = Run(data)

    @torch.no_grad()
    def evaluate(batch: Any) -> Tensor:
        return run.loss(batch)

    captured = capture(evaluate)
    for _ in range(3):
        for batch in batches:
            run.train(batch)  # eagerly: each time with gradients of its own
            assert torch.allclose(captured(batch), evaluate(batch), atol=1e-5)
            assert all(p.grad is not None for p in run.model.parameters())
    assert captured.graphs == 1


@pytest.mark.parametrize("wrapped", [True, False])
def test_edges_keep_their_order(data, tape, wrapped):
    """Static edges are known to be sorted, so that accelerated layers need not sort them; those of EdgeIndex, too."""
    if wrapped:
        data.edge_index = EdgeIndex(data.edge_index, sparse_size=(60, 60))
    ordered = []

    @capture
    def step(batch: Any) -> Tensor:
        if tape.recording:
            edges = batch.edge_index
            ordered.append(edges.is_sorted_by_col if isinstance(edges, EdgeIndex) else is_sorted(edges))
        return batch.x.sum()

    for batch in NeighborLoader(data, [3, 2], batch_size=8, seed=1, pad="auto"):
        step(batch)
    assert ordered == [True]


def test_edges_of_which_the_order_is_not_known(data, batches, tape):
    run = Run(data)
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


def test_links_and_types(hetero, tape):
    types = [("paper", "cites", "paper"), ("author", "writes", "paper")]
    model = torch.nn.ModuleList([SAGEConv((3, 3), 4), SAGEConv((5, 3), 4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    links = hetero[types[0]].edge_index.repeat(1, 2)
    loader = LinkNeighborLoader(
        hetero, [3], edge_label_index=(types[0], links), neg_sampling="binary", batch_size=30, pad="auto", seed=1
    )

    @capture
    def step(batch: Any) -> dict[str, Tensor]:
        optimizer.zero_grad()
        h = sum(
            conv((batch[e[0]].x, batch["paper"].x), batch[e].edge_index) for conv, e in zip(model, types, strict=True)
        )
        src, dst = batch[types[0]].edge_label_index
        loss = ((h[src] * h[dst]).sum(1) * batch[types[0]].seed_mask).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    losses = [step(batch)["loss"].item() for batch in loader]
    assert step.__name__ == "step"
    assert (step.eager, step.replayed) == (3, 7)
    assert len(set(losses)) == 10


def test_on_a_cpu_all_steps_run_eagerly(data):
    run = Run(data, captured=True)
    assert torch.equal(run.losses(), Run(data).losses())
    assert (run.step.eager, run.step.replayed) == (24, 0)
    with pytest.raises(InputError, match="not padded"):
        capture(run.train)(next(iter(NeighborLoader(data, [3], batch_size=8))))


def eager(run: Run, caplog: Any, epochs: int = 1) -> str:
    """Assert that all steps ran eagerly. Return the line of the log."""
    (message,) = caplog.messages
    assert (run.step.eager, run.step.graphs) == (8 * epochs, 0)
    begin = "The step runs eagerly, since "
    assert message.startswith(begin)
    return str(message.removeprefix(begin))


def test_sizes_that_always_change_are_not_captured_for_ever(data, tape, caplog, monkeypatch):
    monkeypatch.setattr("manyhop_train.capture.step._MOST_GRAPHS", 2)
    run = Run(data, captured=True, optimizer="sgd")

    def change(run: Run, number: int) -> None:
        run.optimizer.param_groups[0]["lr"] = 0.1 / (1 + number // 2)

    run.losses(change)
    assert run.step.graphs == 2
    (message,) = caplog.messages
    assert "since there are 2 graphs already" in message


def test_values_that_always_change(data, batches, tape, caplog, monkeypatch):
    monkeypatch.setattr("manyhop_train.capture.step._MOST_SIZES", 4)
    run = Run(data, captured=True)
    for i, batch in enumerate(batches):
        batch.number = i
        run.step(batch)
    assert eager(run, caplog) == "batches, or settings of optimizers, always differ: 'number' was 3 and is 4"


def test_batches_on_several_devices(data, batches, tape, caplog):
    run = Run(data, captured=True)
    for batch in batches:
        batch.there, batch.empty = torch.empty(3, device="meta"), torch.empty(0, device="meta")
        run.step(batch)
    assert eager(run, caplog) == "tensors of its batches are on cpu and meta. Move all to one device"


def test_a_scaler_decides_on_the_host_so_its_steps_run_eagerly(both: Both, caplog: Any) -> None:
    def make(run: Run) -> Any:
        scaler = torch.amp.GradScaler(both.device, init_scale=2.0**10)

        def step(batch: Any) -> Tensor:
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            scaler.scale(loss).backward()
            scaler.unscale_(run.optimizer)
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            scaler.step(run.optimizer)
            scaler.update()
            return loss

        return step

    assert both.compare(make=make, optimizer="sgd").replayed == 0
    (message,) = caplog.messages
    assert "since steps of a GradScaler cannot be captured: it decides on the host" in message


def test_a_scaler_outside_of_the_step(both: Both) -> None:
    def make(run: Run) -> Any:
        run.scale = torch.amp.GradScaler(both.device, init_scale=2.0**10)

        def gradients(batch: Any) -> Tensor:
            loss = run.loss(batch)
            run.scale.scale(loss).backward()
            return loss

        return gradients

    def update(run: Run, number: int) -> None:
        run.scale.step(run.optimizer)
        run.scale.update()
        run.optimizer.zero_grad()

    assert both.compare(update, make, optimizer="sgd").replayed == 21


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_step_inside_of_ddp_runs_eagerly(data, tape, caplog, group):
    class Whole(torch.nn.Module):
        def __init__(self, run: Run) -> None:
            super().__init__()
            self.net, self.step = run.model, run.step

        def forward(self, batch: Any) -> Tensor:
            return self.step(batch)

    run = Run(data, captured=True)
    whole = torch.nn.parallel.DistributedDataParallel(Whole(run))
    for batch in run.loader:
        with whole.no_sync():
            whole(batch)
    assert eager(run, caplog).startswith("it is called by the forward() of a DistributedDataParallel")


def test_ranks_that_search_for_unused_parameters_run_eagerly(data, tape, caplog, group):
    run = Run(data, captured=True)
    run.model = torch.nn.parallel.DistributedDataParallel(run.model, find_unused_parameters=True)
    torch.testing.assert_close(run.losses(), Run(data).losses())
    reason = eager(run, caplog, epochs=3)
    assert reason.startswith("DistributedDataParallel is not captured where find_unused_parameters=True looks for")


class Trainer:
    def step(self, batch: Any) -> Tensor:
        return batch.x.sum()


@pytest.mark.parametrize("wrong", [Trainer.step, lambda batch, epoch: None, lambda: None, lambda b, *, epoch: None, 3])
def test_functions_of_other_arguments(wrong):
    with pytest.raises(InputError, match="Expected a function of a batch, got "):
        capture(wrong)


def test_functions_of_a_batch(batches):
    assert capture(Trainer().step)(batches[0]) == batches[0].x.sum()
    assert capture(lambda batch, scale=2: scale * batch.x.sum())(batches[0]) == 2 * batches[0].x.sum()


def test_batches_that_are_not_padded(data, tape):
    run = Run(data, captured=True)
    with pytest.raises(InputError, match=r"got one that is not padded\. Pass pad='auto' to the loader"):
        run.step(next(iter(NeighborLoader(data, [3], batch_size=8))))
    with pytest.raises(InputError, match="got a list"):
        capture(lambda batch: None)([data])


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_sparse_tensors(data, tape, layout):
    loader = NeighborLoader(data, [3], batch_size=8, pad="auto", transform=T.ToSparseTensor(layout=layout))
    with pytest.raises(InputError, match="Expected edges as edge_index, got a sparse tensor 'adj_t'"):
        capture(lambda batch: batch.x.sum())(next(iter(loader)))
