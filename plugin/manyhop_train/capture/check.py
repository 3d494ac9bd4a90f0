"""Checks that a replay computes the same as an eager step from the same state."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop_train.capture.objects import Reads, memory_of, place_of
from manyhop_train.capture.replicas import call_now
from manyhop_train.capture.state import WEIGHTS, StepState

_TOLERANCE, _TOLERANCE_16 = 1e-3, 3e-2
"""The second one is of steps that compute in 16 bits."""
_NOISE: Final = 4.0
"""Eager runs of a step may differ from each other (atomic additions): how much more a replay may."""


class _Pair(NamedTuple):
    """A value of two runs."""

    kind: str
    """Values of a kind are compared together, since a gradient that is only rounding error shows no fault."""
    name: str
    expected: Tensor
    got: Tensor
    before: Tensor | None
    """Value before both runs; ``None``: a new tensor."""


class _Moment(NamedTuple):
    """State before or after a run of a step."""

    grads: list[Tensor | None]
    generator: Tensor
    values: dict[int, Tensor]
    """Copies of memory, by address."""


class Comparison(Reads):  # type: ignore[no-untyped-call]  # of torch
    """Runs of a step from one state, on a device. A dispatch mode, which restores all memory that operators change."""

    def __init__(self, state: StepState, device: torch.device) -> None:
        super().__init__()
        self._state, self._device = state, device
        self._sent, self._received = list[Tensor](), list[Tensor]()
        self._sent_again: list[Tensor] | None = None
        self._named, self._memory = dict[int, tuple[str, str]](), dict[int, Tensor]()
        self.begin, self._room = self._moment({}), dict[int, Tensor]()
        for kind, name, tensor in state.tensors():
            if (memory := memory_of(tensor)) is not None:
                self._named[memory.data_ptr()] = kind, name
                self.before_change(memory.data_ptr(), memory)

    def before_change(self, place: int, memory: Tensor) -> None:
        """Copy memory."""
        if place not in self._memory:
            with torch.inference_mode(False):
                self._memory[place], self.begin.values[place] = memory, memory.clone()
                self._room[place] = torch.empty_like(memory)  # memory may be too small now, not after a change

    def eagerly(self, step: Callable[[], Any]) -> None:
        """Run a step eagerly, store what it computes, then restore the state."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        with nullcontext() if dynamo and dynamo.counters.get("frames") else self:  # not compiled functions
            self._result = self._run(step)
        with torch.no_grad():
            self.end = self._moment({place: self._room[place].copy_(now) for place, now in self._memory.items()})
        self.put(self.begin)

    def again(self, step: Callable[[], Any]) -> Any:
        """Run a step with the values that the eager run received from other ranks."""
        self._sent_again = []
        return self._run(step)

    def _run(self, step: Callable[[], Any]) -> Any:
        self._state.replicas.call = self._exchange
        try:
            return step()
        finally:
            self._state.replicas.call = call_now

    def _exchange(self, flat: Tensor, collective: Callable[[Tensor], Any]) -> None:
        """Call a collective on a tensor or, in another run, write its first result."""
        if self._sent_again is None:
            self._sent.append(flat.clone())
            collective(flat)
            self._received.append(flat.clone())
        elif (number := len(self._sent_again)) < len(self._received):
            self._sent_again.append(flat.clone())
            flat.copy_(self._received[number])

    @torch.no_grad()
    def differences(self, result: Any) -> dict[str, tuple[float, str]]:
        """Return by how many tolerances each kind of values differs, now that another run has ended; and a name."""
        sent = zip(self._sent, self._sent_again or (), strict=False)
        pairs = [_Pair("gradient", "the gradients for other ranks", *pair, None) for pair in sent]
        problem = _add_results(self._result, result, pairs)
        before, after = ({place_of(g) for g in each.grads if g is not None} for each in (self.begin, self.end))
        for place, value in self.end.values.items():
            if place not in before - after:  # a graph writes new gradients there
                named = self._named.get(place, ("other", "a tensor that it changes"))
                pairs.append(_Pair(*named, value, self._memory[place], self.begin.values[place]))
        for p, grad in zip(self._state.parameters.values(), self.end.grads, strict=True):
            name = f"the gradient of {self._state.name_of(p)}"
            if (grad is None) != (p.grad is None):
                problem = problem or name
            elif grad is not None and p.grad is not None and place_of(grad) not in self.end.values:
                pairs.append(_Pair("gradient", name, grad, p.grad, None))
        low = self.low or self._state.low or torch.is_autocast_enabled(self._device.type)
        found = _judge(pairs, _TOLERANCE_16 if low else _TOLERANCE)
        return found if problem is None else {"": (math.inf, problem), **found}

    @torch.no_grad()
    def put(self, moment: _Moment) -> None:
        """Set the state that was at a moment: ``begin`` or ``end`` of the eager run."""
        for place, now in self._memory.items():
            now.copy_(moment.values[place])
        for p, grad in zip(self._state.parameters.values(), moment.grads, strict=True):
            p.grad = grad
        draws = moment.generator
        torch.cuda.set_rng_state(draws, self._device) if self._device.type == "cuda" else torch.set_rng_state(draws)

    def _moment(self, values: dict[int, Tensor]) -> _Moment:
        on_gpu = self._device.type == "cuda"
        draws = torch.cuda.get_rng_state(self._device) if on_gpu else torch.get_rng_state()
        return _Moment([p.grad for p in self._state.parameters.values()], draws, values)


def stale(differences: dict[str, tuple[float, str]], noise: dict[str, tuple[float, str]]) -> str | None:
    """Return the largest difference beyond that of two eager runs; results take precedence."""
    found = [
        (name.startswith("result"), ratio, name)
        for kind, (ratio, name) in differences.items()
        if ratio > max(1.0, _NOISE * noise.get(kind, (0.0, ""))[0])
    ]
    return max(found)[-1] if found else None


def _add_results(expected: Any, got: Any, pairs: list[_Pair]) -> str | None:
    """Add the tensors of two results. Return the name of a part that cannot be compared since it differs."""
    (ours, spec), (theirs, other) = pytree.tree_flatten_with_path(expected), pytree.tree_flatten_with_path(got)
    if spec != other:
        return "the structure of the result"
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        name = f"result{pytree.keystr(path)}"
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if isinstance(a, Tensor) or isinstance(b, Tensor) or (a != b and a == a):
                return name
        elif a.shape != b.shape or a.dtype != b.dtype:
            return f"the shape or dtype of {name}"
        else:
            pairs.append(_Pair(name, name, a, b, None))
    return None


def _judge(pairs: list[_Pair], tolerance: float) -> dict[str, tuple[float, str]]:
    """Return the differences of each kind, in tolerances, and where most of it is."""
    by_kind: dict[str, list[tuple[Tensor, str]]] = defaultdict(list)
    for pair in pairs:
        exact = not (pair.expected.is_floating_point() or pair.expected.is_complex())
        by_kind[pair.kind + " of integers" * exact].append((_measure(pair, tolerance), pair.name))
    found = {}
    for kind, entries in by_kind.items():
        numbers = [(measured.tolist(), name) for measured, name in entries]
        error, bound, far, count = (sum(values[i] for values, _ in numbers) for i in range(4))
        ratio = (error / bound) ** 0.5 if bound > 0 else 0.0 if error == 0 else math.inf
        if kind == WEIGHTS:
            ratio = 2 * far / max(1.0, count)
        elif kind.endswith(" of integers"):
            ratio = min(ratio, 20 * far / max(1.0, count))
        found[kind] = math.inf if math.isnan(ratio) else ratio, max(numbers, key=lambda entry: entry[0][0])[1]
    return found


def _measure(pair: _Pair, tolerance: float) -> Tensor:
    """Return ``[4] float64``: squares of the error and of its bound, entries that are far away, all entries."""
    e, g, b = pair.expected, pair.got, pair.before
    if e.is_complex():
        e, g, b = torch.view_as_real(e), torch.view_as_real(g), None if b is None else torch.view_as_real(b)
    is_float = e.is_floating_point()
    epsilon = torch.finfo(e.dtype).eps if is_float else 0.0
    least = 2.0 if not is_float else 1e-6 * e.numel() ** 0.5 if b is None else 0.0
    dtype = torch.float64 if e.dtype in (torch.float64, torch.int64) else torch.float32
    e, g = e.to(dtype), g.to(dtype)
    error = torch.where((e == g) | (e.isnan() & g.isnan()), 0, e - g)
    size = e.nan_to_num(0, 0, 0)
    change = size if b is None or not is_float else (e - b.to(dtype)).nan_to_num(0, 0, 0)
    bound = (tolerance if is_float else 0.05) * change.norm() + 4 * epsilon * size.norm() + least
    far = error.abs() > 20 * tolerance * change.abs() + 4 * epsilon * size.abs()
    return torch.stack([error.square().sum(), bound.square(), far.sum(), far.sum() * 0 + e.numel()]).double()
