"""A training step that is captured once per size of its batches."""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop.errors import InputError
from manyhop_train.capture.buffers import Buffers
from manyhop_train.capture.code import is_users, reads_of
from manyhop_train.capture.draws import none_on_host
from manyhop_train.capture.ends import Ends
from manyhop_train.capture.gradients import Gradients, Scalers
from manyhop_train.capture.optimizers import StepState
from manyhop_train.capture.recorder import Recorder, recorder_of
from manyhop_train.capture.replicas import now
from manyhop_train.capture.results import copied
from manyhop_train.capture.values import Values

B = TypeVar("B")
R = TypeVar("R")

_WARM_UP: Final = 3
"""Eager steps before the first recording: libraries and optimizers allocate what they keep."""
_MOST_GRAPHS: Final = 32
_MOST_SIZES: Final = 128
_MOST_OBJECTS: Final = 8
_FORM: Final = attrgetter("shape", "dtype", "device", "requires_grad")
_PLAIN: Final = (int, float, bool, str, complex, type(None))


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
    ends: Ends[R]
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
        self._read: list[Callable[..., object]] = [step]
        self._state, self._values = StepState(), Values()
        self._warm = 0
        """Eager steps since the step has what it has."""
        self._moves = 0
        """How often that has changed since the last replay."""
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

    def reads(self, function: Callable[..., object]) -> None:
        """Note that the step takes from outside what a function does, in a way that its own code does not show."""
        self._read.append(function)

    def stop(self, reason: str) -> None:
        """Run eagerly from now on, and log why."""
        self._stopped = True
        logging.getLogger("manyhop").warning("The step runs eagerly from now on, since %s", reason)

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
        self._look()
        modes = _modes(tensors[0].device.type)
        key = (*map(_FORM, tensors), constants, self._state.key(), self._values.plain, modes)
        size = self._sizes.get(key)
        if size is None or self._warm < _WARM_UP:
            self._layout.check(batch)
            self._check_devices(tensors)
            if size is None and len(self._sizes) >= _MOST_SIZES:
                before = next(reversed(self._sizes))
                self.stop(f"batches, or settings of optimizers, always differ: {_difference(before, key)}")
            self._sizes.setdefault(key, _Size())
            return self._run(batch, recorder)
        graph = next((known for known in size.graphs if known.gradients.fit()), None)
        if graph is None and len(size.graphs) > 1:
            graph = next((known for known in reversed(size.graphs) if known.gradients.adopt()), None)
        if graph is None:
            made = self._record(batch, tensors, size, recorder)
            if isinstance(made, str):
                result = self._run(batch, recorder)  # which may raise an error of the user's for this batch
                self.stop(made)
                return result
            graph = made
        self._moves = 0
        sources = graph.ends.write(tensors)
        self._state.write_rates()
        graph.replay()
        del sources
        graph.gradients.put()
        self.replayed += 1
        return graph.ends.results()

    def _look(self) -> None:
        """Forget graphs that read other memory, or hold other objects, than the step does by now."""
        if not self._warm:
            for function in self._read:
                self._values.add(reads_of(function))
        replaced = self._values.replaced() or self._state.replaced()
        if replaced is not None:
            self._state, self._values, self._warm = self._state.successor(), Values(), 0
            self._sizes.clear()
            self._look()
        elif self._state.moved() and self._warm >= _WARM_UP:
            replaced = "the memory of a weight, of a buffer or of an optimizer's state"
            self._sizes.clear()
        if replaced is not None and self.eager >= _WARM_UP:
            self._moves += 1
            if self._moves > _MOST_OBJECTS and not self._stopped:
                self.stop(f"{replaced} is another one in each step. Change it in place")

    def _recorder(self, device: torch.device) -> Recorder | None:
        if device not in self._recorders:
            self._recorders[device] = recorder_of(device)
        return self._recorders[device]

    def _run(self, batch: B, recorder: Recorder | None) -> R:
        """Run the step eagerly."""
        self.eager += 1
        self._warm += 1
        if recorder is None:
            return copied(_detached(self._step(batch)))
        with nullcontext() if self._stopped else self._state.observe(modules=self._warm == 1), self._state.outside(now):
            return copied(_detached(recorder.run(lambda: self._step(batch))))

    def _check_devices(self, tensors: Sequence[Tensor]) -> None:
        """Run eagerly where a batch is not on one device: a graph would repeat what a tensor of the host was."""
        devices = {tensor.device: None for tensor in tensors if tensor.numel()}
        if len(devices) > 1 and not self._stopped:
            self.stop(f"tensors of its batches are on {' and '.join(map(str, devices))}. Move all to one device")
        if any(tensor.requires_grad for tensor in tensors) and torch.is_grad_enabled() and not self._stopped:
            self.stop(
                "a tensor of its batches requires gradients, which would end at the copy. Calculate it in the step"
            )

    def _record(self, batch: B, tensors: Sequence[Tensor], size: _Size[R], recorder: Recorder) -> _Graph[R] | str:
        """Record the step for batches of a size, or return why that is impossible."""
        if (obstacle := self._state.obstacle()) is not None:
            return obstacle
        if self.graphs >= _MOST_GRAPHS:
            return f"there are {_MOST_GRAPHS} graphs already: sizes or settings of optimizers change all the time"
        if size.buffers is None:
            size.buffers = Buffers(tensors)
        buffers, ends = size.buffers.tensors, Ends[R](size.buffers)
        ends.write(tensors)
        gradients, scalers = Gradients(self._state.parameters), Scalers()
        step = ends.recording(lambda: self._run_static(batch, buffers, recorder))
        try:
            with self._state.current_rates():
                replay, result = recorder.record(step)
        except BaseException as error:
            gradients.forget()
            scalers.forget()
            if not isinstance(error, Exception):  # the user has interrupted it
                raise
            return _reason(error)
        gradients.recorded(updates=self._state.updates)
        ends.recorded(result)
        graph = _Graph(replay=replay, ends=ends, gradients=gradients)
        size.graphs.append(graph)
        return graph

    def _run_static(self, batch: B, buffers: Sequence[Tensor], recorder: Recorder) -> R:
        """Run the step on the tensors that its graphs read.

        Results are detached: a graph of autograd that stays would keep accumulating on the stream of the recording.
        What the step derives of its batch, such as edges in another order, is derived in each replay.
        """
        with self._state.outside(recorder.between), none_on_host(buffers[0].device):
            result = _detached(self._step(self._layout.with_tensors(batch, buffers)))
        other = next((leaf for leaf in pytree.tree_leaves(result) if not isinstance(leaf, (Tensor, *_PLAIN))), None)
        if other is not None:
            raise InputError(f"it returns a {type(other).__name__}. Return tensors, in tuples, lists or dictionaries")
        return result


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


def _reason(error: BaseException) -> str:
    """Say which line of the user's cannot be recorded, and why."""
    first = error
    while first.__context__ is not None:  # the end of a broken recording fails, too
        first = first.__context__
    message = str(first).strip().partition("\n")[0] or type(first).__name__
    frames = [*zip(traceback.walk_tb(first.__traceback__), traceback.extract_tb(first.__traceback__), strict=True)]
    for (frame, number), summary in reversed(frames):
        if is_users(str(frame.f_globals.get("__name__", ""))):
            return f"line {number} of {summary.filename} cannot be captured: `{summary.line}` ({message})"
    return f"it cannot be captured: {message}"
