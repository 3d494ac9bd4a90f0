"""What training loops add to a step: clipping, averages of weights, accumulation within, ``torch.compile``."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from test_capture import Run, StandIn, close
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from manyhop_pyg import capture


def both(
    data: Any,
    recorders: list[StandIn],
    change: Callable[[Run], Any],
    each: Callable[[Run, int], None] = lambda run, number: None,
    **options: Any,
) -> Run:
    """Eager and captured runs, whose steps ``change`` makes; after each step, ``each`` is called."""
    runs = []
    for captured in (False, True):
        run = Run(data, recorders, captured=False, **options)
        step = change(run)
        run.step = capture(step) if captured else step
        runs.append((run, run.losses(each=partial(each, run))))
    (_, expected), (run, losses) = runs
    assert close(losses, expected)
    return run


def test_clipped_gradients(data, recorders):
    def change(run: Run) -> Any:
        def step(batch: Any) -> Tensor:
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
            run.optimizer.step()
            return loss

        return step

    assert both(data, recorders, change, optimizer="sgd").step.replayed == 13


def test_averages_of_weights_beside_the_step(data, recorders):
    averages = []

    def change(run: Run) -> Any:
        averages.append(AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
        return run.train

    run = both(data, recorders, change, each=lambda run, _: averages[-1].update_parameters(run.model))
    assert run.step.replayed == 13
    for eager, replayed in zip(*(average.module.parameters() for average in averages), strict=True):
        torch.testing.assert_close(replayed, eager, rtol=1e-3, atol=1e-4)


def test_gradients_that_are_accumulated_within(data, recorders):
    """Two passes over the halves of a batch."""

    def change(run: Run) -> Any:
        def step(batch: Any) -> Tensor:
            run.optimizer.zero_grad()
            for half in (0, 1):
                out = run.model(batch.x, batch.edge_index)[: batch.batch_size][half::2]
                losses = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size][half::2], reduction="none")
                (losses * batch.seed_mask[half::2]).sum().backward()
            run.optimizer.step()
            return losses.sum()

        return step

    assert both(data, recorders, change, optimizer="sgd").step.replayed == 13


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_compiled_models_are_compiled_once_and_not_while_recording(data, recorders, optimizer):
    compilations = []

    def change(run: Run) -> Any:
        def backend(module: Any, inputs: Any) -> Any:
            compilations.append(run.recorder.recording)
            return module.forward

        run.model = torch.compile(run.model, backend=backend, dynamic=False)
        return run.train

    assert both(data, recorders, change, optimizer=optimizer).step.replayed == 13
    assert compilations == [False, False]
    torch.compiler.reset()
