"""Inputs and outputs of a graph: batches, results and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop.system import triton_compiler

if TYPE_CHECKING:
    from manyhop_train.capture.arguments import Arguments

R = TypeVar("R")

_MOST: Final = 8
"""Tensors of a result that a graph copies, at most."""
_SMALL: Final = 256
"""Bytes of such a tensor, at most: results that a caller keeps also keep the memory of others."""
_AT_ONCE: Final = 64
_ALIGNED: Final = 16
_NOWHERE: Final = (0,) * _MOST


class Buffers:
    """Tensors that graphs read, for batches of one size.

    Args:
        tensors: of such a batch, on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.device = tensors[0].device
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        by_kernel = triton_compiler.runs_on(self.device) and triton_compiler.usable()
        plain = [by_kernel and type(t) is Tensor and not t.is_complex() for t in tensors]
        self.copied = [i for i, is_plain in enumerate(plain) if is_plain and tensors[i].numel()]
        """Numbers of the tensors that graphs copy themselves."""
        self._others = [i for i, is_plain in enumerate(plain) if not is_plain]

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors that graphs do not copy, on the current stream."""
        if self._others:
            with torch.no_grad():
                torch._foreach_copy_([self.tensors[i] for i in self._others], [tensors[i] for i in self._others])


class Ends(Generic[R]):
    """Copies batches to buffers, and results to callers, as part of a graph: the host only writes addresses.

    Without compiled kernels, torch's operators copy both before and after a replay.

    Args:
        buffers: inputs of the graph.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._arguments: Arguments | None = None
        self._small: list[Tensor] = []
        self._addresses: list[tuple[int, ...]] = []  # of small results of the next replays
        self._parts: list[tuple[Tensor, ...]] = []
        self._stream: object = None
        self._latest: tuple[Tensor, ...] = ()
        if buffers.copied:
            from manyhop_train.capture.arguments import Arguments, prepare  # imports triton

            self._arguments = Arguments(len(buffers.copied) + _MOST, buffers.device)
            prepare(len(buffers.copied), _MOST, buffers.device)

    def recording(self, step: Callable[[], R]) -> Callable[[], R]:
        """Return the step with its copies, for recording."""
        arguments, buffers = self._arguments, self._buffers
        if arguments is None:
            return step
        from manyhop_train.capture.arguments import enqueue_copies

        def whole() -> R:
            arguments.fetch()
            enqueue_copies([buffers.tensors[i] for i in buffers.copied], 0, arguments, out=False)
            result = step()
            leaves = pytree.tree_leaves(result)
            enqueue_copies([leaves[i] for i in self._small_of(leaves)], len(buffers.copied), arguments, out=True)
            return result

        return whole

    def recorded(self, result: R) -> None:
        """Store the result that the graph writes."""
        self._result = result
        self._leaves, self._spec = pytree.tree_flatten(result)
        self._numbers = self._small_of(self._leaves)
        self._small = [self._leaves[i] for i in self._numbers]
        self._others = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor) and i not in self._numbers]
        if self._arguments is not None:
            self._arguments.rewind()

    def write(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Set the batch of the next replay.

        Args:
            tensors: tensors of the batch, in the order of the buffers.

        Returns:
            Tensors to keep alive until the replay is enqueued.
        """
        buffers, arguments = self._buffers, self._arguments
        buffers.fill(tensors)
        if arguments is None:
            return ()
        sources = [tensors[i] for i in buffers.copied]
        if not all([source.is_contiguous() for source in sources]):
            sources = [source.contiguous() for source in sources]
        arguments.write([*map(Tensor.data_ptr, sources), *(self._place() if self._small else _NOWHERE)])
        return sources

    def results(self) -> R:
        """Return the results of the last enqueued replay, as the caller's own tensors."""
        if self._arguments is not None:
            self._arguments.launched()
        if self._small and self._result is self._small[0]:
            return self._latest[0]  # type: ignore[return-value]  # R is Tensor
        leaves = list(self._leaves)
        for i, part in zip(self._numbers, self._latest, strict=True):
            leaves[i] = part
        for i in self._others:
            leaves[i] = leaves[i].clone()
        whole: R = pytree.tree_unflatten(leaves, self._spec)
        return whole

    def _small_of(self, leaves: Sequence[object]) -> list[int]:
        """Return the numbers of those leaves of a result that the graph copies."""
        device = None if self._arguments is None else self._buffers.device
        return [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and _is_small(leaf, device)][:_MOST]

    def _place(self) -> tuple[int, ...]:
        """Return where the next replay copies its small results."""
        device = self._buffers.device
        stream = torch._C._cuda_getCurrentStream(device.index) if device.type == "cuda" else None
        if not self._parts or stream != self._stream:
            self._stream = stream
            self._allocate(device)
        self._latest = self._parts.pop()
        return self._addresses.pop()

    def _allocate(self, device: torch.device) -> None:
        """Allocate memory for many replays; one allocation per replay would cost more."""
        parts, addresses = list[list[Tensor]](), list[range]()
        for tensor in self._small:
            step = -(-tensor.nbytes // _ALIGNED) * _ALIGNED
            own, whole = tensor.numel(), step // tensor.element_size()
            memory = torch.empty(whole * _AT_ONCE, dtype=tensor.dtype, device=device)
            # These are no views of one tensor: a change of one does not count as a change of all.
            own_parts = memory.unsafe_split_with_sizes([own, whole - own] * _AT_ONCE)[::2]
            parts.append([part.view(tensor.shape) for part in own_parts])
            first = own_parts[0].data_ptr()
            addresses.append(range(first, first + step * _AT_ONCE, step))
        self._parts = list(zip(*parts, strict=True))
        self._addresses = list(zip(*addresses, strict=True))


def copied(result: R) -> R:
    """Copy the tensors of a result."""
    if isinstance(result, Tensor):
        return result.clone()  # type: ignore[return-value]  # R is Tensor
    copies: R = pytree.tree_map_only(Tensor, torch.clone, result)
    return copies


def _is_small(tensor: Tensor, device: torch.device | None) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.device == device
        and tensor.layout is torch.strided
        and 0 < tensor.nbytes <= _SMALL
        and not tensor.is_complex()
        and not tensor.is_neg()
        and tensor.is_contiguous()
    )


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
            self._parameters, self._before = [], []
            return
        self._after = [(p, p.grad, 0 if p.grad is None else p.grad.data_ptr()) for p in self._parameters]
        self._needed = [
            (p, before)
            for p, before in zip(self._parameters, self._before, strict=True)
            if before is None or before is p.grad  # others were replaced, regardless of their values
        ]
        self.forget()  # until a replay has written them
        self._before = []

    def forget(self) -> None:
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
