"""What a graph reads and writes in fixed memory: copies of batches, and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyhop.system import triton_compiler

if TYPE_CHECKING:
    from manyhop_train.capture.ring import Ring


class Inputs:
    """Copies of the tensors of a batch, which all graphs of its size read.

    Graphs make the copies: the host only writes addresses. Without compiled kernels, torch's operators copy before each
    replay.

    Args:
        tensors: of a batch, on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        by_kernel = triton_compiler.runs_on(device) and triton_compiler.usable()
        plain = [by_kernel and type(t) is Tensor and not t.is_complex() for t in tensors]
        self._copied = [i for i, is_plain in enumerate(plain) if is_plain and tensors[i].numel()]
        self._others = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._sources: list[Tensor] = []
        self._ring: Ring | None = None
        if self._copied:
            from manyhop_train.capture.ring import Ring  # imports triton

            self._ring = Ring([self.tensors[i] for i in self._copied])

    def write(self, tensors: Sequence[Tensor]) -> None:
        """Set the batch of the next replay: tensors in the order of the first batch's."""
        if self._others:
            with torch.no_grad():
                torch._foreach_copy_([self.tensors[i] for i in self._others], [tensors[i] for i in self._others])
        if self._ring is not None:
            self._sources = [tensors[i].contiguous() for i in self._copied]  # alive until the replay is enqueued
            self._ring.write([*map(Tensor.data_ptr, self._sources)])

    def copy(self) -> None:
        """Enqueue the copies of a graph that is recorded."""
        if self._ring is not None:
            self._ring.copy()

    def recorded(self) -> None:
        """Begin with the first replay of a new graph."""
        if self._ring is not None:
            self._ring.rewind()

    def launched(self) -> None:
        """Note that the replay of the batch is enqueued."""
        self._sources = []
        if self._ring is not None:
            self._ring.launched()


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
