"""CUDA graphs: their recording, and what they read and write in fixed memory: copies of batches, and gradients."""

from __future__ import annotations

import random
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.system import triton_compiler

R = TypeVar("R")

_MODE: Final = "thread_local"
"""Other threads may use the GPU while a graph is recorded."""


class CUDARecorder:
    """Records and runs eagerly on its own stream of a GPU, since autograd stays on one stream."""

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
    """Raise InputError after the block if Python, numpy or torch has drawn in it, but on the device itself."""
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


_SLOTS: Final = 256
"""Number of replays that the host may be ahead of the GPU."""
_AT_ONCE: Final = 32
"""Tensors that a launch copies, at most."""
_spare: dict[tuple[torch.device, int], list[Tensor]] = defaultdict(list)
"""Slots of deleted inputs, which the GPU may still read, so their memory is not freed."""


class Inputs:
    """Copies of the tensors of a batch, which all graphs of its size read.

    Graphs make the copies. The host only writes addresses to page-locked memory: to a ring of slots, from which the
    first kernel of a replay reads; graphs count replays as the host does. Without compiled kernels, torch's operators
    copy before each replay.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._device = tensors[0].device
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        by_kernel = triton_compiler.runs_on(self._device) and triton_compiler.usable()
        plain = [by_kernel and type(t) is Tensor and not t.is_complex() for t in tensors]
        self._copied = [i for i, is_plain in enumerate(plain) if is_plain and tensors[i].numel()]
        self._others = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._sources: list[Tensor] = []
        self._launches: list[tuple[Any, int, tuple[Any, ...]]] = []
        """Kernels of a graph, numbers of programs, and arguments."""
        self._launched, self._is_open = 0, False
        if self._copied:
            self._prepare()

    def _prepare(self) -> None:
        """Allocate the ring, and compile or load the kernels, which is impossible during recording."""
        from manyhop.system.triton_launch import Kernel  # imports triton
        from manyhop_train.capture.kernels import FIELDS, TILE, copy_tensors, fetch_addresses

        width, is_cuda = 1 << max(4, (len(self._copied) - 1).bit_length()), self._device.type == "cuda"
        spare = _spare[self._device, width]
        if spare:
            torch.cuda.synchronize(self._device)
        slots = (
            spare.pop() if spare else torch.empty((_SLOTS, width), dtype=torch.int64, device="cpu", pin_memory=is_cuda)
        )
        if is_cuda:
            weakref.finalize(self, spare.append, slots).atexit = False
        self._slots: Any = slots.numpy()
        self._memory = torch.zeros(1 + width, dtype=torch.int64, device=self._device)
        """Number of replays; addresses for the replay under way."""
        count, addresses = self._memory.data_ptr(), self._memory.data_ptr() + 8
        fetch = Kernel(fetch_addresses, (_SLOTS, width), num_warps=1)
        self._launches.append((fetch, 1, (slots.data_ptr(), count, addresses)))
        for begin in range(0, len(self._copied), _AT_ONCE):
            targets, programs = list[int](), 0
            for i in self._copied[begin : begin + _AT_ONCE]:
                targets += (self.tensors[i].data_ptr(), self.tensors[i].nbytes, programs)
                programs += -(-self.tensors[i].nbytes // TILE.value)
            kernel = Kernel(copy_tensors, (len(targets) // FIELDS.value,), targets=len(targets))
            self._launches.append((kernel, programs, (addresses + 8 * begin, tuple(targets))))
        for kernel, *_ in self._launches:
            kernel.prepare(self._device)

    def write(self, tensors: Sequence[Tensor]) -> None:
        """Set the batch of the next replay: tensors in the order of the first batch's."""
        if self._others:
            with torch.no_grad():
                torch._foreach_copy_([self.tensors[i] for i in self._others], [tensors[i] for i in self._others])
        if not self._copied:
            return
        if self._is_open:  # an interrupt came before or after the launch
            self.rewind()
        self._is_open, slot = True, self._launched % _SLOTS
        if slot == 0:  # once per round of the ring
            self._wait()
        self._sources = [tensors[i].contiguous() for i in self._copied]  # alive until the replay is enqueued
        self._slots[slot, : len(self._sources)] = [*map(Tensor.data_ptr, self._sources)]

    def launched(self) -> None:
        """Note that the replay of the batch is enqueued."""
        self._launched += 1
        self._is_open, self._sources = False, []

    def copy(self) -> None:
        """Enqueue the copies of a graph that is recorded, on the current stream."""
        for kernel, programs, arguments in self._launches:
            kernel(self._device, programs, *arguments)

    def rewind(self) -> None:
        """Begin with the first slot again, as after a recording."""
        if self._copied:
            self._wait()
            self._memory.zero_()
        self._launched, self._is_open = 0, False

    def _wait(self) -> None:
        """Wait for enqueued replays; other streams may be recorded."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


class Gradients:
    """Gradients of parameters, which a graph reads and writes in the memory of the recording."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [p.grad for p in parameters]
        self._versions = [_version(grad) for grad in self._before]
        self._after: list[tuple[torch.nn.Parameter, Tensor | None, int]] = []
        self._needed: list[tuple[torch.nn.Parameter, Tensor | None]] = []

    def recorded(self, *, updates: bool) -> None:
        """Store the gradients after recording. Without updates, a step that changes none does not depend on them."""
        after = [p.grad for p in self._parameters]
        same = all(map(is_, after, self._before))
        if not updates and same and [_version(grad) for grad in after] == self._versions:
            return
        self._after = [(p, p.grad, 0 if p.grad is None else p.grad.data_ptr()) for p in self._parameters]
        self._needed = [
            (p, before)
            for p, before in zip(self._parameters, self._before, strict=True)
            if before is None or before is p.grad  # others were replaced, regardless of their values
        ]
        self.restore()  # until a replay has written them
        self._before = []

    def restore(self) -> None:
        """Restore the gradients from before the recording."""
        for p, grad in zip(self._parameters, self._before, strict=True):
            p.grad = grad

    def fit(self) -> bool:
        """Return whether the graph adds to the current gradients, in the memory of its recording."""
        return all([p.grad is grad for p, grad in self._needed]) and all(
            [grad is None or grad.data_ptr() == place for _, grad, place in self._after]
        )

    def put(self) -> None:
        """Set the gradients of parameters to the gradients that the graph has written."""
        for p, grad, _ in self._after:
            if p.grad is not grad:
                p.grad = grad


def _version(grad: Tensor | None) -> int | None:
    """Return the number of changes in place."""
    return None if grad is None else grad._version
