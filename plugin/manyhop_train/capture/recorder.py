"""Recording of CUDA graphs, and eager runs on the same stream."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import torch

from manyhop.errors import InputError

R = TypeVar("R")

_MODE: Final = "thread_local"
"""Other threads may use the GPU while a graph is recorded."""


class CUDARecorder:
    """Records and runs eagerly on its own stream, since autograd stays on one stream.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch
        self._pool = torch.cuda.graph_pool_handle()  # graphs run in turn, so they share memory
        self._graphs = weakref.WeakSet[torch.cuda.CUDAGraph]()
        self._recording: torch.cuda.graph | None = None
        self._parts: list[Callable[[], None]] = []

    def run(self, function: Callable[[], R]) -> R:
        """Run a function on the stream of recordings; the current stream waits for it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return function()
        finally:
            current.wait_stream(self._stream)

    def record(self, function: Callable[[], R]) -> tuple[Callable[[], None], R]:
        """Record the launches of a function in one CUDA graph, and another one after each call of :meth:`between`.

        Returns:
            A function that replays them, and the function's result, whose tensors each replay writes.
        """
        current = torch.cuda.current_stream(self._device)
        if not self._graphs:  # torch cannot record into a pool without graphs
            self._pool = torch.cuda.graph_pool_handle()
        recording = torch.cuda.graph(self._graph(), pool=self._pool, stream=self._stream, capture_error_mode=_MODE)
        self._recording = recording
        self._parts = parts = []
        torch.clear_autocast_cache()  # of weights that were cast by eager steps
        try:
            with recording:
                result = function()
        except BaseException:
            torch.cuda.set_stream(current)
            self._recover()
            raise
        finally:
            self._recording, self._parts = None, []
            torch.clear_autocast_cache()
        parts.append(recording.cuda_graph.replay)

        def replay() -> None:
            for part in parts:
                part()

        return replay, result

    def between(self, function: Callable[[], None]) -> None:
        """Call a host function at this point of each replay: end the graph that is recorded, and begin the next one."""
        recording = self._recording
        assert recording is not None
        recording.cuda_graph.capture_end()
        self._parts += [recording.cuda_graph.replay, function]
        recording.cuda_graph = self._graph()
        recording.cuda_graph.capture_begin(pool=self._pool, capture_error_mode=_MODE)

    def _graph(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self._graphs.add(graph)
        return graph

    def _recover(self) -> None:
        """Record successfully, since torch's generator treats a failed recording as unfinished."""
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode=_MODE):
            torch.zeros(1, device=self._device)


def recorder_of(device: torch.device) -> CUDARecorder | None:
    """Return the recorder of a device; ``None`` on a CPU."""
    return CUDARecorder(device) if device.type == "cuda" else None


@contextmanager
def none_on_host(device: torch.device) -> Iterator[None]:
    """Raise InputError after the block if Python, numpy or torch has drawn on the host in it.

    Args:
        device: where the block computes; there, torch may draw.
    """
    before = _states(device)
    yield
    for name, state in _states(device).items():
        if state != before[name]:
            raise InputError(f"it draws random numbers from {name} on the host. Draw them before the step")


def _states(device: torch.device) -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = (state[1].tobytes(), *state[2:])
    if device.type != "cpu":
        states["torch's generator"] = torch.get_rng_state().numpy().tobytes()
    return states
