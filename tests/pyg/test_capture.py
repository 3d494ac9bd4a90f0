"""``capture``: steps are recorded once per size and replayed; a stand-in records on the CPU."""

import copy
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from captured_runs import masked_loss
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE, SAGEConv

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from recorder_stand_in import StandIn

from manyhop.errors import InputError
from manyhop_pyg import LinkNeighborLoader, NeighborLoader, accelerate, capture
from manyhop_pyg.training import convs
from manyhop_train.aggregation import Edges

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


class Run:
    """A model that trains, with a captured step or without."""

    def __init__(self, data: Data, recorders: Any, *, captured: bool, optimizer: str = "adam", device: str = "cpu"):
        torch.manual_seed(0)
        self.model = GraphSAGE(4, 8, 2, 3).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.loader = NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, seed=1, pad="auto", device=device)
        self.recorder = StandIn(self.model, self.optimizer)
        if recorders is not None:
            recorders.append(self.recorder)
        self.step: Any = capture(self.train) if captured else self.train

    def loss(self, batch: Any) -> Tensor:
        return masked_loss(self.model(batch.x, batch.edge_index), batch)

    def train(self, batch: Any) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss

    def losses(self, epochs: int = 2, each: Callable[[int], None] = lambda number: None) -> list[float]:
        found = []
        for _ in range(epochs):
            for batch in self.loader:
                found.append(self.step(batch))
                each(len(found))
        return [loss.item() for loss in found]


def close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) < 1e-4 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_are_those_of_the_eager_run(data, recorders, optimizer):
    expected = Run(data, recorders, captured=False, optimizer=optimizer).losses()
    run = Run(data, recorders, captured=True, optimizer=optimizer)
    assert close(run.losses(), expected)
    assert (run.step.eager, run.step.replayed, run.step.graphs) == (3, 13, 1)
    assert len(set(expected)) > 8


@pytest.mark.parametrize(("optimizer", "graphs"), [("adam", 1), ("sgd", 4)])
def test_schedulers(data, recorders, optimizer, graphs):
    """Adam's graphs read the learning rate; those of others repeat it, and are captured again."""
    results = []
    for captured in (False, True):
        run = Run(data, recorders, captured=captured, optimizer=optimizer)
        scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=4, gamma=0.3)
        results.append(run.losses(each=lambda number, scheduler=scheduler: scheduler.step()))
        assert isinstance(run.optimizer.param_groups[0]["lr"], float)
    assert close(*results)
    assert run.step.graphs == graphs


def test_a_change_of_another_setting_captures_again(data, recorders):
    def change(number: int) -> None:
        if number == 7:
            run.optimizer.param_groups[0]["weight_decay"] = 0.1

    results = []
    for captured in (False, True):
        run = Run(data, recorders, captured=captured)
        results.append(run.losses(each=change))
    assert close(*results)
    assert run.step.graphs == 2


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_accumulated_outside(data, recorders, to_none):
    results = []
    for captured in (False, True):
        run = Run(data, recorders, captured=False)

        def accumulate(batch: Any, run: Run = run) -> Tensor:
            loss = run.loss(batch)
            loss.backward()
            return loss

        def update(number: int, run: Run = run) -> None:
            if number % 3 == 0:
                run.optimizer.step()
                run.optimizer.zero_grad(set_to_none=to_none)

        run.step = capture(accumulate) if captured else accumulate
        results.append(run.losses(epochs=4, each=update))
    assert close(*results)
    assert run.step.replayed > 20


def test_states_that_are_loaded(data, recorders):
    results = []
    for captured in (False, True):
        run = Run(data, recorders, captured=captured)
        saved: list[Any] = []

        def reload(number: int, run: Run = run, saved: list[Any] = saved) -> None:
            if number == 6:
                saved.append(copy.deepcopy(run.optimizer.state_dict()))
            if number == 9:
                run.optimizer.load_state_dict(saved[0])

        results.append(run.losses(each=reload))
    assert close(*results)
    assert run.recorder.recorded == 2
    assert run.step.graphs == 1


def test_results_are_the_callers(data, recorders):
    run = Run(data, recorders, captured=True)
    losses = [run.step(batch) for batch in run.loader]
    assert len({loss.item() for loss in losses}) == 8
    assert not any(loss.requires_grad for loss in losses)


def test_grown_sizes_have_graphs_of_their_own(data, recorders):
    run = Run(data, recorders, captured=True)
    wide = NeighborLoader(data, [5, 4], batch_size=8, seed=1, pad="auto")
    for loader in (run.loader, wide, run.loader, wide):
        for batch in loader:
            run.step(batch)
    assert run.step.graphs == 2
    assert run.step.eager == 4


def test_a_step_that_waits_runs_eagerly_and_the_log_names_its_line(data, recorders, caplog):
    run = Run(data, recorders, captured=False)

    def step(batch: Any) -> Tensor:
        loss = run.train(batch)
        if run.recorder.recording:
            raise RuntimeError("operation not permitted when stream is capturing")  # of CUDA
        return loss

    expected = Run(data, recorders, captured=False).losses()
    recorders.append(run.recorder)
    run.step = capture(step)
    with caplog.at_level(logging.WARNING, "manyhop"):
        assert close(run.losses(), expected)
    assert run.step.eager == 16
    (message,) = caplog.messages
    line = step.__code__.co_firstlineno + 3
    assert f"line {line} of {__file__} cannot be captured: `raise RuntimeError(" in message
    assert "(operation not permitted when stream is capturing)" in message


def test_sizes_that_always_change_are_not_captured_for_ever(data, recorders, caplog, monkeypatch):
    monkeypatch.setattr("manyhop_train.capture.step._MOST_GRAPHS", 2)
    run = Run(data, recorders, captured=True, optimizer="sgd")

    def change(number: int) -> None:
        run.optimizer.param_groups[0]["lr"] = 0.1 / (1 + number // 2)

    run.losses(epochs=2, each=change)
    assert run.step.graphs == 2
    assert "The step runs eagerly from now on, since there are 2 graphs already" in caplog.text


def test_batches_that_are_not_padded(data, recorders):
    run = Run(data, recorders, captured=True)
    with pytest.raises(InputError, match=r"got one that is not padded\. Make the loader with pad='auto'"):
        run.step(next(iter(NeighborLoader(data, [3], batch_size=8))))
    with pytest.raises(InputError, match="got a list"):
        capture(lambda batch: None)([data])
    with pytest.raises(InputError, match="Expected a function of a batch, got a int"):
        capture(3)


def test_on_a_cpu_all_steps_run_eagerly(data):
    run = Run(data, None, captured=True)
    assert close(run.losses(), Run(data, None, captured=False).losses())
    assert (run.step.eager, run.step.replayed) == (16, 0)
    with pytest.raises(InputError, match="not padded"):
        capture(run.train)(next(iter(NeighborLoader(data, [3], batch_size=8))))


def test_edges_keep_their_order(data, recorders, monkeypatch):
    """Static edges are known to be sorted, so that accelerated layers need not sort them; those of EdgeIndex, too."""
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(60, 60))
    for wrapped in (True, False):
        if not wrapped:
            data.edge_index = data.edge_index.as_tensor()
        run = Run(data, recorders, captured=True)
        accelerate(run.model)
        ordered: list[bool] = []

        class Seen(Edges):
            def __init__(self, *args: Any, ordered: bool, seen: Any = ordered, run: Any = run, **options: Any) -> None:
                super().__init__(*args, ordered=ordered, **options)
                if run.recorder.recording:
                    seen.append(ordered)

        monkeypatch.setattr(convs, "Edges", Seen)
        run.losses(1)
        assert ordered == [True]


def test_links_and_types(hetero, recorders):
    types = [("paper", "cites", "paper"), ("author", "writes", "paper")]
    model = torch.nn.ModuleList([SAGEConv((3, 3), 4), SAGEConv((5, 3), 4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorders.append(StandIn(model, optimizer))
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


def test_a_scaler_decides_on_the_host_so_its_steps_run_eagerly(data, recorders, caplog):
    results = []
    for captured in (False, True):
        run = Run(data, recorders, captured=False, optimizer="sgd")
        recorders.append(StandIn(run.model, run.optimizer, strict=True))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        def step(batch: Any, run: Run = run, scaler: Any = scaler) -> Tensor:
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            scaler.scale(loss).backward()
            scaler.unscale_(run.optimizer)
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            scaler.step(run.optimizer)
            scaler.update()
            return loss

        run.step = capture(step) if captured else step
        results.append(run.losses())
    assert close(*results)
    assert (run.step.eager, run.step.graphs) == (16, 0)
    (message,) = caplog.messages
    assert "since steps of a GradScaler cannot be captured: it decides on the host" in message


def test_a_scaler_outside_of_the_step(data, recorders):
    results = []
    for captured in (False, True):
        run = Run(data, recorders, captured=False)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        def gradients(batch: Any, run: Run = run, scaler: Any = scaler) -> Tensor:
            loss = run.loss(batch)
            scaler.scale(loss).backward()
            return loss

        def update(number: int, run: Run = run, scaler: Any = scaler) -> None:
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()

        run.step = capture(gradients) if captured else gradients
        results.append(run.losses(each=update))
    assert close(*results)
    assert run.step.replayed == 13


def test_a_step_inside_of_ddp_runs_eagerly(data, recorders, caplog, tmp_path):
    class Whole(torch.nn.Module):
        def __init__(self, run: Run) -> None:
            super().__init__()
            self.net, self.step = run.model, run.step

        def forward(self, batch: Any) -> Tensor:
            return self.step(batch)

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        run = Run(data, recorders, captured=True)
        whole = torch.nn.parallel.DistributedDataParallel(Whole(run))
        for batch in run.loader:
            with whole.no_sync():
                whole(batch)
    finally:
        dist.destroy_process_group()
    assert run.step.eager == 8
    assert "since it is called by the forward() of a DistributedDataParallel" in caplog.text


def test_ranks_that_search_for_unused_parameters_run_eagerly(data, recorders, caplog, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        run = Run(data, recorders, captured=True)
        run.model = torch.nn.parallel.DistributedDataParallel(run.model, find_unused_parameters=True)
        assert close(run.losses(), Run(data, recorders, captured=False).losses())
    finally:
        dist.destroy_process_group()
    assert (run.step.eager, run.step.graphs) == (16, 0)
    (message,) = caplog.messages
    assert "since DistributedDataParallel is not captured where find_unused_parameters=True looks for" in message
