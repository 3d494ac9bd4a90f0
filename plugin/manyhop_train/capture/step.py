"""A training step that is captured once per size of its batches."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop.arguments import integer
from manyhop.errors import InputError, StaleStepError
from manyhop_train.capture.check import Comparison, stale
from manyhop_train.capture.graphs import CUDARecorder, Gradients, Inputs, none_on_host, recorder_of
from manyhop_train.capture.objects import PLAIN, check_watched, modes
from manyhop_train.capture.replicas import Replicas, now
from manyhop_train.capture.state import StepState

B = TypeVar("B")
R = TypeVar("R")

_WARM_UP: Final = 3
"""Eager steps before the first recording, in which libraries and optimizers allocate their state."""
_MOST_GRAPHS: Final = 32
_MOST_OF_SIZE: Final = 4
"""Graphs of a size, at most: for gradients that are missing, or in memory of an eager step or of a graph."""
_MOST_SIZES: Final = 128
_MOST_OBJECTS: Final = 4
_FORM: Final = attrgetter("shape", "dtype", "device", "requires_grad")
_NOT_THE_USERS: Final = frozenset({"torch", "torch_geometric", "dgl", "triton"}) | sys.stdlib_module_names
_CHECKED: Final = 2
"""Replays of each graph that are checked in any case."""
_SHARE: Final = 0.01
"""Largest share of the time for other checks."""


class Layout(Protocol[B]):
    """Layout of a framework's batches."""

    def check(self, batch: B) -> None:
        """Raise InputError if a batch is not padded."""

    def contents(self, batch: B) -> tuple[list[Tensor], Hashable]:
        """Return all tensors of a batch, in the same order for all batches of a size, and its other contents."""

    def with_tensors(self, batch: B, tensors: Sequence[Tensor]) -> B:
        """Return a copy of a batch with other tensors."""


@dataclass(eq=False)
class _Graph(Generic[R]):
    """A recorded step."""

    replay: Callable[[], None]
    inputs: Inputs
    gradients: Gradients
    result: R
    """Its tensors are written by each replay."""
    replays: int = 0
    verified: int = 0
    """Number of the last step that was compared."""


class CapturedStep(Generic[B, R]):
    """A function of a batch whose launches are recorded once per batch size and then replayed.

    The first three steps and the first step of each size run eagerly, as do all steps on a CPU. Not thread-safe.

    Args:
        step: function of a batch that returns tensors or containers of tensors.
        layout: layout of the batches.
        watch: objects that the step reads and that may change.
        verify: number of replays per check; ``None``: in up to 1 % of the time; 0: never.

    Raises:
        InputError: ``step`` is not a function of one argument, or another argument is wrong.
    """

    def __init__(self, step: Callable[[B], R], layout: Layout[B], *, watch: object, verify: int | None) -> None:
        _check(step)
        functools.update_wrapper(self, step, updated=())
        self._step, self._layout = step, layout
        self._verify_every, self._next_check = None if verify is None else integer("verify", verify, 0), 0.0
        self._state = StepState(check_watched(watch), Replicas())
        self._warm = 0
        """Eager steps since the last change of objects."""
        self._moves = 0
        """Number of such changes since the last replay."""
        self._sizes: dict[Hashable, list[_Graph[R]]] = {}
        """The graphs of each size: one, unless gradients are accumulated."""
        self._recorder = functools.cache(recorder_of)
        self._stopped = False
        self.eager = 0
        """Steps that ran eagerly."""
        self.replayed = 0
        """Steps that were replayed."""

    @property
    def graphs(self) -> int:
        """Number of recorded graphs."""
        return sum(map(len, self._sizes.values()))

    def __call__(self, batch: B) -> R:
        """Run the step.

        Returns:
            The result of the step, with detached copies of tensors.

        Raises:
            StaleStepError: a compared replay differs from the eager step.
        """
        tensors, constants = self._layout.contents(batch)
        recorder = self._recorder(tensors[0].device) if tensors else None
        if recorder is None or self._stopped:
            if not self.eager:
                self._check_batch(batch, tensors)
            return self._run(batch, tensors, recorder)
        self._look()
        key = (*map(_FORM, tensors), constants, self._state.key(), modes(tensors[0].device.type))
        graphs = self._sizes.get(key)
        if graphs is None or self._warm < _WARM_UP:
            self._check_batch(batch, tensors)
            if graphs is None and len(self._sizes) >= _MOST_SIZES:
                before = next(reversed(self._sizes))
                self._stop(f"batches, or settings of optimizers, always differ: {_difference(before, key)}")
            self._sizes.setdefault(key, [])
            return self._run(batch, tensors, recorder)
        graph = next((known for known in graphs if known.gradients.fit()), None)
        if graph is None:
            made = self._record(batch, tensors, graphs, recorder)
            if isinstance(made, str):
                result = self._run(batch, tensors, recorder)  # which may raise an error of the user's for this batch
                self._stop(made)
                return result
            graph = made
        self._moves = 0
        self.replayed += 1
        if self._is_due(graph.replays):
            return self._verify(graph, batch, tensors, recorder)
        return self._replay(graph, tensors)

    def _is_due(self, replays: int) -> bool:
        """Return whether to check the next replay of a graph after this many."""
        if self._verify_every is None:
            return replays < _CHECKED or time.perf_counter() >= self._next_check
        return self._verify_every > 0 and (replays < _CHECKED or replays % self._verify_every == 0)

    def _look(self) -> None:
        """Delete graphs if objects or memory of the step were replaced."""
        if self._warm < _WARM_UP:
            self._state.note()
            return
        replaced = self._state.replaced()
        if replaced is None:
            return
        self._forget()
        self._moves += 1
        if self._moves > _MOST_OBJECTS:
            self._stop(f"{replaced} is another one in each step. Change it in place")

    def _forget(self) -> None:
        """Restart with eager steps."""
        self._state, self._warm = StepState(self._state.watched, self._state.replicas), 0
        self._sizes.clear()

    def _stop(self, reason: str) -> None:
        """Run all further steps eagerly, and log the reason."""
        if not self._stopped:
            logging.getLogger("manyhop").warning("The step runs eagerly, since %s", reason)
        self._stopped = True

    def _run(self, batch: B, tensors: Sequence[Tensor], recorder: CUDARecorder | None) -> R:
        """Run the step eagerly."""
        self.eager += 1
        self._warm += 1
        if recorder is None:
            return _each(_own, self._step(batch))
        first = tensors if self._warm == 1 else None
        with nullcontext() if self._stopped else self._state.observe(first), self._state.outside(now):
            return _each(_own, recorder.run(lambda: self._step(batch)))

    def _replay(self, graph: _Graph[R], tensors: Sequence[Tensor]) -> R:
        """Replay a graph on the tensors of a batch."""
        graph.inputs.write(tensors)
        self._state.write_rates()
        graph.replay()
        graph.inputs.launched()
        graph.gradients.put()
        graph.replays += 1
        return _each(torch.clone, graph.result)

    def _verify(self, graph: _Graph[R], batch: B, tensors: Sequence[Tensor], recorder: CUDARecorder) -> R:
        """Replay a graph, and compare it with an eager step from the same state."""
        if tensors[0].is_cuda:
            torch.cuda.current_stream(tensors[0].device).synchronize()  # otherwise the check includes enqueued work
        begin, number, replays = time.perf_counter(), self.eager + self.replayed, graph.replays

        def eagerly() -> R:
            own = self._layout.with_tensors(batch, [*map(torch.clone, tensors)])  # which the step may change
            with self._state.observe(None), self._state.outside(now):
                return _each(Tensor.detach, recorder.run(lambda: self._step(own)))

        self._state.write_rates()  # which is no part of a step that is undone
        try:
            comparison = Comparison(self._state, tensors[0].device)
        except torch.OutOfMemoryError:
            logging.getLogger("manyhop").warning("Replays are no longer checked, since copies of weights do not fit")
            self._verify_every = 0
            return self._replay(graph, tensors)
        comparison.eagerly(eagerly)
        result: R = comparison.again(lambda: self._replay(graph, tensors))
        found = comparison.differences(result)
        if stale(found, {}) is not None:  # unless eager runs differ as much from each other
            comparison.put(comparison.begin)
            noise = comparison.differences(comparison.again(eagerly))
            if (difference := stale(found, noise)) is not None:
                comparison.put(comparison.end)
                self._forget()
                since = graph.verified + 1 if replays else number
                steps = f"step {number}" if since == number else f"step {number}, and perhaps in those since {since}"
                raise StaleStepError(
                    f"Expected equal results of a replayed and an eager step, got another value of {difference} in "
                    f"{steps}. Replays repeat the numbers of their recording, including Lightning's batch_idx and "
                    "global_step. Add such a value to the batch, as a tensor, name changing objects in watch=, or run "
                    "the step without capture. The results of the eager step are in place."
                )
            comparison.put(comparison.begin)
            result = comparison.again(lambda: self._replay(graph, tensors))
        graph.replays, graph.verified = replays + 1, number
        self._next_check = time.perf_counter() + (time.perf_counter() - begin) / _SHARE
        return result

    def _check_batch(self, batch: B, tensors: Sequence[Tensor]) -> None:
        """Raise InputError if a batch is not padded. Run eagerly if its tensors cannot be copied."""
        self._layout.check(batch)
        devices = {tensor.device: None for tensor in tensors if tensor.numel()}
        if len(devices) > 1:
            self._stop(f"tensors of its batches are on {' and '.join(map(str, devices))}. Move all to one device")
        if any(tensor.requires_grad for tensor in tensors) and torch.is_grad_enabled():
            self._stop(
                "a tensor of its batches requires gradients, which would end at the copy. Calculate it in the step"
            )

    def _record(
        self, batch: B, tensors: Sequence[Tensor], graphs: list[_Graph[R]], recorder: CUDARecorder
    ) -> _Graph[R] | str:
        """Record the step for batches of a size, or return why that is impossible."""
        if (obstacle := self._state.obstacle()) is not None:
            return obstacle
        if len(graphs) >= _MOST_OF_SIZE:
            return "gradients are other tensors in each step, such as those of another step"
        if self.graphs >= _MOST_GRAPHS:
            return f"there are {_MOST_GRAPHS} graphs already: sizes or settings of optimizers change all the time"
        inputs = graphs[0].inputs if graphs else Inputs(tensors)
        inputs.write(tensors)
        gradients = Gradients(list(self._state.parameters.values()))
        try:
            with self._state.current_rates():
                replay, result = recorder.record(lambda: self._run_static(batch, inputs, recorder))
        except BaseException as error:
            gradients.restore()
            if not isinstance(error, Exception):  # the user has interrupted it
                raise
            return _reason(error)
        gradients.recorded(updates=bool(self._state.optimizers))
        inputs.rewind()
        graphs.append(_Graph(replay, inputs, gradients, result))
        return graphs[-1]

    def _run_static(self, batch: B, inputs: Inputs, recorder: CUDARecorder) -> R:
        """Copy the batch, and run the step on the tensors that its graphs read.

        Results are detached, since a remaining autograd graph would accumulate on the stream of the recording. Values
        derived from the batch, such as sorted edges, are derived in each replay.
        """
        inputs.copy()
        with self._state.outside(recorder.between), none_on_host(inputs.tensors[0].device):
            result = _each(Tensor.detach, self._step(self._layout.with_tensors(batch, inputs.tensors)))
        for leaf in pytree.tree_leaves(result):
            if not isinstance(leaf, (Tensor, *PLAIN)):
                raise InputError(
                    f"it returns a {type(leaf).__name__}. Return tensors, in tuples, lists or dictionaries"
                )
        return result


def _check(step: object) -> None:
    """Raise InputError unless a step is a function of one argument."""
    if not callable(step):
        raise InputError(f"Expected a function of a batch, got a {type(step).__name__}.")
    try:
        inspect.signature(step).bind(None)
    except ValueError:  # of builtins
        return
    except TypeError:
        name = getattr(step, "__qualname__", type(step).__name__)
        raise InputError(
            f"Expected a function of a batch, got {name}{inspect.signature(step)}. Add other values to the batch, as "
            "tensors; capture the method of an object, as capture(self.step), not that of its class."
        ) from None


def _difference(before: Hashable, now: Hashable) -> str:
    """Describe the difference of two keys of sizes."""
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now):
        if isinstance(now, torch.Size):
            return f"shapes {list(before)} and {list(now)}"
        if len(now) == 2 and isinstance(now[0], str) and before[0] == now[0]:
            return f"'{now[0]}' was {before[1]!r:.60} and is {now[1]!r:.60}"
        for a, b in zip(before, now, strict=True):
            if a != b:
                return _difference(a, b)
    return f"{before!r:.60} and {now!r:.60}"


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _each(function: Callable[[Tensor], Tensor], result: R) -> R:
    """Call a function for all tensors of a result."""
    found: R = pytree.tree_map_only(Tensor, function, result)
    return found


def _reason(error: BaseException) -> str:
    """Describe the user's line that cannot be recorded, and the reason."""
    first = error
    while first.__context__ is not None:  # ending a broken recording also fails
        first = first.__context__
    message = str(first).strip().partition("\n")[0] or type(first).__name__
    frames = [*zip(traceback.walk_tb(first.__traceback__), traceback.extract_tb(first.__traceback__), strict=True)]
    for (frame, number), summary in reversed(frames):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USERS and not package.startswith("manyhop"):
            return f"line {number} of {summary.filename} cannot be captured: `{summary.line}` ({message})"
    return f"it cannot be captured: {message}"
