"""A training step that is captured once per size of its batches."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop.capture.buffers import Buffers
from manyhop.capture.optimizers import Gradients, Scalers, StepState
from manyhop.capture.recorder import Recorder, recorder_of
from manyhop.capture.replicas import now
from manyhop.errors import InputError

B = TypeVar("B")
R = TypeVar("R")

_WARM_UP: Final = 3
"""Eager steps before the first recording: libraries and optimizers allocate what they keep."""
_MOST_GRAPHS: Final = 32
_MOST_SIZES: Final = 128
_FORM: Final = attrgetter("shape", "dtype")
_NOT_THE_USERS: Final = frozenset({"torch", "torch_geometric", "dgl", "triton"}) | sys.stdlib_module_names


class Layout(Protocol[B]):
    """What is in the batches of a framework."""

    def check(self, batch: B) -> None:
        """Raise InputError where a batch is not padded."""
        ...

    def contents(self, batch: B) -> tuple[list[Tensor], Hashable]:
        """Return all tensors of a batch, in an order that batches of a size have in common, and all else that a step
        may depend on."""
        ...

    def with_tensors(self, batch: B, tensors: Sequence[Tensor]) -> B:
        """Return a copy of a batch that has other tensors in place of its own."""
        ...


@dataclass(eq=False, kw_only=True)
class _Graph(Generic[R]):
    """A recorded step."""

    replay: Callable[[], None]
    result: R
    gradients: Gradients


@dataclass(eq=False)
class _Size(Generic[R]):
    """Batches of one size."""

    buffers: Buffers | None = None
    """What the graphs read, made when the size comes for the second time."""
    graphs: list[_Graph[R]] = field(default_factory=list)
    """One, unless gradients are accumulated."""


class CapturedStep(Generic[B, R]):
    """A function of a batch whose launches are recorded once per size of a batch and replayed afterwards.

    The first three steps, and the first one of each size, run eagerly; so do all on a CPU. Not to be called from
    several threads.

    Args:
        step: takes a batch, and returns tensors or containers of tensors.
        layout: of the batches.

    Raises:
        InputError: ``step`` is no function of one argument.
    """

    def __init__(self, step: Callable[[B], R], layout: Layout[B]) -> None:
        _check(step)
        functools.update_wrapper(self, step, updated=())
        self._step, self._layout = step, layout
        self._state = StepState()
        self._generation = 0
        self._sizes: dict[Hashable, _Size[R]] = {}
        self._recorders: dict[torch.device, Recorder | None] = {}
        self._stopped = False
        self.eager = 0
        """Steps that ran eagerly."""
        self.replayed = 0
        """Steps that were replayed."""

    @property
    def graphs(self) -> int:
        """Number of recorded graphs."""
        return sum(len(size.graphs) for size in self._sizes.values())

    def __call__(self, batch: B) -> R:
        """Run the step.

        Returns:
            What it returns; tensors are detached copies.
        """
        tensors, constants = self._layout.contents(batch)
        recorder = self._recorder(tensors[0].device) if tensors else None
        if recorder is None or self._stopped:
            if not self.eager:
                self._layout.check(batch)
                self._check_devices(tensors)
            return self._run(batch, recorder)
        if self._state.generation != self._generation:  # optimizers have other tensors than those that graphs write
            self._generation = self._state.generation
            self._sizes.clear()
        key = (*map(_FORM, tensors), constants, self._state.key(), _modes(tensors[0].device.type))
        size = self._sizes.get(key)
        if size is None or self.eager < _WARM_UP:
            self._layout.check(batch)
            self._check_devices(tensors)
            if size is None and len(self._sizes) >= _MOST_SIZES:
                before = next(reversed(self._sizes))
                self._stop(f"batches, or settings of optimizers, always differ: {_difference(before, key)}")
            self._sizes.setdefault(key, _Size())
            return self._run(batch, recorder)
        graph = next((known for known in size.graphs if known.gradients.fit()), None)
        if graph is None:
            graph = self._record(batch, tensors, size, recorder)
            if graph is None:
                return self._run(batch, recorder)
        else:
            assert size.buffers is not None
            size.buffers.fill(tensors)
        self._state.write_rates()
        graph.replay()
        graph.gradients.put()
        self.replayed += 1
        return _copies(graph.result)

    def _recorder(self, device: torch.device) -> Recorder | None:
        if device not in self._recorders:
            self._recorders[device] = recorder_of(device)
        return self._recorders[device]

    def _run(self, batch: B, recorder: Recorder | None) -> R:
        """Run the step eagerly."""
        self.eager += 1
        if recorder is None:
            return _copies(_detached(self._step(batch)))
        with nullcontext() if self._stopped else self._state.observe(modules=self.eager == 1), self._state.outside(now):
            return _copies(_detached(recorder.run(lambda: self._step(batch))))

    def _check_devices(self, tensors: Sequence[Tensor]) -> None:
        """Run eagerly where a batch is not on one device: a graph would repeat what a tensor of the host was."""
        devices = {tensor.device: None for tensor in tensors if tensor.numel()}
        if len(devices) > 1 and not self._stopped:
            self._stop(f"tensors of its batches are on {' and '.join(map(str, devices))}. Move all to one device")

    def _record(self, batch: B, tensors: Sequence[Tensor], size: _Size[R], recorder: Recorder) -> _Graph[R] | None:
        """Record the step for batches of a size; ``None``: that is impossible."""
        if (obstacle := self._state.obstacle()) is not None:
            self._stop(obstacle)
            return None
        if self.graphs >= _MOST_GRAPHS:
            self._stop(f"there are {_MOST_GRAPHS} graphs already: sizes or settings of optimizers change all the time")
            return None
        if size.buffers is None:
            size.buffers = Buffers(tensors)
        buffers = size.buffers.tensors
        size.buffers.fill(tensors)
        gradients, scalers = Gradients(self._state.parameters), Scalers()
        try:
            with self._state.current_rates():
                replay, result = recorder.record(lambda: self._run_static(batch, buffers, recorder))
        except Exception as error:
            gradients.forget()
            scalers.forget()
            self._stop(_reason(error))
            return None
        gradients.recorded(updates=self._state.updates)
        graph = _Graph(replay=replay, result=result, gradients=gradients)
        size.graphs.append(graph)
        return graph

    def _run_static(self, batch: B, buffers: Sequence[Tensor], recorder: Recorder) -> R:
        """Run the step on the tensors that its graphs read.

        Results are detached: a graph of autograd that stays would keep accumulating on the stream of the recording.
        What the step derives of its batch, such as edges in another order, is derived in each replay.
        """
        with self._state.outside(recorder.between):
            return _detached(self._step(self._layout.with_tensors(batch, buffers)))

    def _stop(self, reason: str) -> None:
        self._stopped = True
        logging.getLogger("manyhop").warning("The step runs eagerly from now on, since %s", reason)


def _check(step: object) -> None:
    """Raise InputError where a step is no function of one argument."""
    if not callable(step):
        raise InputError(f"Expected a function of a batch, got a {type(step).__name__}.")
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # of builtins
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(step, "__qualname__", type(step).__name__)
        raise InputError(
            f"Expected a function of a batch, got {name}{signature}. Put other values into the batch, as tensors; "
            "capture the method of an object, as capture(self.step), not that of its class."
        ) from None


def _modes(device: str) -> tuple[bool, bool, bool, torch.dtype]:
    """Return the modes of torch that a graph repeats."""
    autocast = torch.is_autocast_enabled(device)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_autocast_dtype(device)


def _difference(before: Hashable, now: Hashable) -> str:
    """Say where two keys of sizes differ."""
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now):
        if isinstance(now, torch.Size):
            return f"shapes {list(before)} and {list(now)}"
        if len(now) == 2 and isinstance(now[0], str) and before[0] == now[0]:
            return f"'{now[0]}' was {before[1]!r:.60} and is {now[1]!r:.60}"
        for a, b in zip(before, now, strict=True):
            if a != b:
                return _difference(a, b)
    return f"{before!r:.60} and {now!r:.60}"


def _detached(result: R) -> R:
    detached: R = pytree.tree_map_only(Tensor, torch.Tensor.detach, result)
    return detached


def _copies(result: R) -> R:
    """Copy the tensors of a result: graphs write the same ones again."""
    if isinstance(result, Tensor):
        return result.clone()  # type: ignore[return-value]  # R is Tensor
    copies: R = pytree.tree_map_only(Tensor, torch.clone, result)
    return copies


def _reason(error: BaseException) -> str:
    """Say which line of the user's cannot be recorded, and why."""
    first = error
    while first.__context__ is not None:  # the end of a broken recording fails, too
        first = first.__context__
    message = str(first).strip().partition("\n")[0] or type(first).__name__
    frames = [*zip(traceback.walk_tb(first.__traceback__), traceback.extract_tb(first.__traceback__), strict=True)]
    for (frame, number), summary in reversed(frames):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "__main__" or not (package in _NOT_THE_USERS or package.startswith("manyhop")):
            return f"line {number} of {summary.filename} cannot be captured: `{summary.line}` ({message})"
    return f"it cannot be captured: {message}"
