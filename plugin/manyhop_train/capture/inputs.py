"""What a graph reads and writes in fixed memory: copies of batches, and gradients."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Sequence
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor

from manyhop.system import triton_compiler

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

    Args:
        tensors: of a batch, on one device.
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
        from manyhop_train.capture.kernels import FIELDS, TILE, copy_tensors, fetch_addresses  # imports triton

        width, is_cuda = 1 << max(4, (len(self._copied) - 1).bit_length()), self._device.type == "cuda"
        spare = _spare[self._device, width]
        if spare:
            torch.cuda.synchronize(self._device)
        slots = spare.pop() if spare else torch.empty((_SLOTS, width), dtype=torch.int64, pin_memory=is_cuda)
        if is_cuda:
            weakref.finalize(self, spare.append, slots).atexit = False
        self._slots: Any = slots.numpy()
        self._memory = torch.zeros(1 + width, dtype=torch.int64, device=self._device)
        """Number of replays; addresses for the replay under way."""
        count, addresses = self._memory.data_ptr(), self._memory.data_ptr() + 8
        fetch = _kernel(fetch_addresses, (_SLOTS, width), num_warps=1)
        self._launches.append((fetch, 1, (slots.data_ptr(), count, addresses)))
        for begin in range(0, len(self._copied), _AT_ONCE):
            targets, programs = list[int](), 0
            for i in self._copied[begin : begin + _AT_ONCE]:
                targets += (self.tensors[i].data_ptr(), self.tensors[i].nbytes, programs)
                programs += -(-self.tensors[i].nbytes // TILE.value)
            kernel = _kernel(copy_tensors, (len(targets) // FIELDS.value,), targets=len(targets))
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


@functools.cache
def _kernel(function: Any, constants: tuple[int, ...], **options: int) -> Any:
    from manyhop.system.triton_launch import Kernel  # imports triton

    return Kernel(function, constants, **options)


class Gradients:
    """Gradients of parameters, which a graph reads and writes in the memory of the recording.

    Args:
        parameters: all parameters of the step.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [p.grad for p in parameters]
        self._versions = [_version(grad) for grad in self._before]
        self._after: list[tuple[torch.nn.Parameter, Tensor | None, int]] = []
        self._needed: list[tuple[torch.nn.Parameter, Tensor | None]] = []

    def recorded(self, *, updates: bool) -> None:
        """Store the gradients after recording.

        Args:
            updates: whether the step calls an optimizer. Otherwise a step that changes no gradients, as in evaluation,
                does not depend on them.
        """
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
