"""What a captured step reads outside of its batch and what changes later: a graph's key notices it, or the check does.

Each case changes one thing after some replays. With ``verify=1``, the run has to be that of eager steps, or to end with
an error in the very step that reads another value. On CPUs, a stand-in repeats operators; the same cases run on a GPU.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from captured_runs import Both, Run, make_both, step_with  # noqa: F401  # a fixture
from torch import Tensor

from manyhop.errors import InputError, StaleStepError
from manyhop_pyg import capture

CHANGE = 7
"""The number of the step after which something changes."""
Case = tuple[Callable[[Tensor], Tensor], Callable[[], Any]]


class Slots:
    __slots__ = ("w",)

    def __init__(self) -> None:
        self.w = 1.0


class Settings:
    w = 1.0


CASES: dict[str, Callable[[str], Case]] = {}


def case(make: Callable[[str], Case]) -> Callable[[str], Case]:
    CASES[make.__name__] = make
    return make


@case
def attribute(device: str) -> Case:
    one = SimpleNamespace(w=1.0)
    return lambda loss: loss * one.w, lambda: setattr(one, "w", 2.0)


@case
def counter(device: str) -> Case:
    calls: list[None] = []

    def counted(loss: Tensor) -> Tensor:
        calls.append(None)
        return loss * (2.0 if len(calls) > CHANGE else 1.0)

    return counted, lambda: None


@case
def host_tensor(device: str) -> Case:
    weight = torch.tensor(1.0)
    return lambda loss: loss * weight, lambda: weight.fill_(2.0)


@case
def pinned_tensor(device: str) -> Case:
    def made(w: float) -> Tensor:
        return torch.tensor([w]).pin_memory() if device == "cuda" else torch.tensor([w])

    found = {"w": made(1.0)}
    return (lambda loss: loss * found["w"].to(loss.device, non_blocking=True)[0], lambda: found.update(w=made(2.0)))


@case
def tensor(device: str) -> Case:
    found = {"w": torch.ones((), device=device)}
    return lambda loss: loss * found["w"], lambda: found.update(w=torch.full((), 2.0, device=device))


@case
def accumulator(device: str) -> Case:
    """Each epoch has a sum of its own."""
    found = {"sum": torch.zeros((), device=device)}

    def add(loss: Tensor) -> Tensor:
        found["sum"] += loss.detach()
        return loss

    return add, lambda: found.update(sum=torch.zeros((), device=device))


class Runs:
    """A captured run of a case beside an eager one, until their first difference."""

    def __init__(self, both: Both, make: Callable[[str], Case], **options: Any) -> None:
        self.error: StaleStepError | None = None
        runs = []
        for captured in (False, True):
            scaled, change = make(both.device)
            run = Run(both.data, both.device)
            step = step_with(run, scaled)
            runs.append((run, capture(step, **options) if captured else step, change))
        (eager, expected, change), (run, self.step, same) = runs
        for number, batch in enumerate([*eager.loader, *eager.loader]):
            if number == CHANGE:
                change()
                same()
            loss = expected(batch)
            try:
                torch.testing.assert_close(self.step(batch), loss.detach(), rtol=1e-2, atol=1e-3)
            except StaleStepError as error:
                self.error, self.number = error, number
                break
        for ours, theirs in zip(run.model.parameters(), eager.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_the_check_notices_the_first_step_that_differs(both: Both, name: str) -> None:
    """And leaves the weights of the eager step."""
    runs = Runs(both, CASES[name], verify=1)
    if name == "host_tensor" and both.device == "cpu":  # where graphs read it as it is
        assert runs.error is None
        return
    assert runs.error is not None
    assert runs.number == CHANGE - (name == "counter")  # which recording has counted, too
    where = "a tensor that it changes" if name == "accumulator" else "result"
    assert f"got another value of {where} in step {runs.number + 1}. Replays repeat" in str(runs.error)
    assert runs.step.replayed == runs.number + 1 - 3


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w: Any = None

    def forward(self, loss: Tensor) -> Tensor:
        return loss if self.w is None else loss * self.w


def hook(_: Any, args: Any, out: Tensor) -> Tensor:
    return 2 * out


KEYS: dict[str, Callable[[Run], Any]] = {
    "an attribute that was None": lambda run: setattr(run.scale, "w", 2.0),
    "mode": lambda run: run.model.eval(),
    "number of a module": lambda run: setattr(run.model.dropout, "p", 1.0),
    "forward hook": lambda run: run.scale.register_forward_hook(hook),
    "hook before": lambda run: run.scale.register_forward_pre_hook(lambda _, args: (2 * args[0],)),
    "backward hook": lambda run: run.scale.register_full_backward_hook(lambda _, grads, out: (2 * grads[0],)),
    "hook of a weight": lambda run: next(run.model.parameters()).register_hook(lambda grad: 2 * grad),
    "requires_grad": lambda run: run.model.convs[0].requires_grad_(False),
    "weight decay": lambda run: run.optimizer.param_groups[0].update(weight_decay=0.5),
    "betas": lambda run: run.optimizer.param_groups[0].update(betas=(0.5, 0.9)),
    "hook of the optimizer": lambda run: run.optimizer.register_step_post_hook(
        lambda *_: torch._foreach_mul_([p.detach() for p in run.model.parameters()], 0.5)
    ),
    "precision": lambda run: torch.set_float32_matmul_precision("medium"),
    "deterministic": lambda run: torch.use_deterministic_algorithms(True, warn_only=True),
}


@pytest.fixture
def modes() -> Any:
    """Puts back what a case sets for the process."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("name", KEYS)
def test_the_key_notices(both: Both, name: str, modes: None) -> None:
    """A step is recorded again, and not compared: the run is that of eager steps."""

    def make(run: Run) -> Any:
        run.scale = Scale()
        return step_with(run, run.scale)

    step = both.compare(lambda run, number: KEYS[name](run) if number == CHANGE else None, make, epochs=2)
    assert step.replayed >= 16 - 3 - 3


@pytest.mark.parametrize("late", [False, True])
def test_sums_of_the_user_grow_once_per_step(both: Both, late: bool) -> None:
    """Also of a step in inference mode, which a check runs twice, and if the step makes the sum itself."""
    run, sums = Run(both.data, both.device), dict[str, Tensor]()
    torch._dynamo.utils.counters.clear()  # after compilations of tests before, checks watch no operators
    if not late:
        sums["all"] = torch.zeros((), device=both.device)

    @torch.inference_mode()
    def evaluate(batch: Any) -> Tensor:
        loss = run.loss(batch)
        if "all" not in sums:
            sums["all"] = torch.zeros_like(loss)
        sums["all"].add_(loss)
        return loss

    step = capture(evaluate, verify=1)
    losses = [step(batch) for batch in run.loader]
    assert step.replayed == 5
    torch.testing.assert_close(sums["all"], torch.stack(losses).sum())


def test_a_step_that_changes_its_batch(both: Both) -> None:
    """A check runs it twice, from the same batch."""
    run = Run(both.data, both.device)

    def step(batch: Any) -> Tensor:
        return batch.x.mul_(2).sum()

    captured, batches = capture(step, verify=1), list(run.loader)
    expected = [2 * batch.x.sum() for batch in batches]
    torch.testing.assert_close([captured(batch) for batch in batches], expected)
    assert captured.replayed == 5


WATCHED: dict[str, Callable[[], tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "attribute": lambda: (SimpleNamespace(w=1.0), lambda one: one.w, lambda one: setattr(one, "w", 2.0)),
    "slot": lambda: (Slots(), lambda one: one.w, lambda one: setattr(one, "w", 2.0)),
    "class": lambda: (Settings, lambda one: one.w, lambda one: setattr(one, "w", 2.0)),
    "key": lambda: ({1: {"w": [1.0]}}, lambda one: one[1]["w"][0], lambda one: one[1].update(w=[2.0])),
    "array": lambda: (np.ones(3), lambda one: float(one[0]), lambda one: one.fill(2.0)),
    "host tensor": lambda: (torch.tensor(1.0), lambda one: one, lambda one: one.fill_(2.0)),
    "inner object": lambda: (
        SimpleNamespace(inner=SimpleNamespace(w=1.0)),
        lambda one: one.inner.w,
        lambda one: setattr(one, "inner", SimpleNamespace(w=2.0)),
    ),
    "environment": lambda: (
        os.environ,
        lambda one: float(one.get("MANYHOP_TEST_V", "1")),
        lambda one: one.update(MANYHOP_TEST_V="2"),
    ),
}


@pytest.mark.parametrize("name", WATCHED)
def test_watched_objects_may_change(both: Both, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "environment":
        monkeypatch.delenv("MANYHOP_TEST_V", raising=False)
    if name == "class":
        monkeypatch.setattr(Settings, "w", 1.0)
    one, read, change = WATCHED[name]()
    plain = [1.0]
    cases = [  # the eager run only has to compute the same
        (lambda loss: loss * plain[0], lambda: plain.__setitem__(0, 2.0)),
        (lambda loss: loss * read(one), lambda: change(one)),
    ]

    def make(device: str) -> Case:
        return cases.pop(0)

    runs = Runs(both, make, verify=1, watch=[one])
    assert runs.error is None
    assert runs.step.replayed >= 16 - 3 - 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watch": {"w": 1}}, "Expected watch as a list of objects, got a dict"),
        ({"watch": [0.5]}, "Expected objects in watch, got 0.5, which cannot change"),
        ({"verify": -1}, "Expected verify to be an integer of at least 0, got -1"),
        ({"verify": 0.5}, "Expected verify to be an integer of at least 0, got 0.5"),
        ({"verify": True}, "Expected verify to be an integer of at least 0, got True"),
    ],
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        capture(lambda batch: None, **options)
