"""``DistributedDataParallel`` in a captured step: its collectives run between two graphs.

NCCL requires that either all ranks capture a collective or none, and that all replay the same capture. Batch sizes, and
so graphs, differ between ranks, and a rank runs a new size eagerly: no collective may be part of a graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

Between: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls a function of the host now; or, while a graph is recorded, between two graphs of each replay."""


class Replicas:
    """The ``DistributedDataParallel`` modules of a step."""

    def __init__(self) -> None:
        self._all: dict[int, _Replica] = {}
        self._between: Between = now
        self.call: Callable[[Tensor, Callable[[Tensor], Any]], None] = call_now
        """Calls collectives; in compared steps, only once."""

    def add(self, module: DistributedDataParallel) -> str | None:
        """Add a module. Return why its steps cannot be captured; ``None``: they can."""
        if id(module) not in self._all:
            self._all[id(module)] = _Replica(module, self.exchange)
        return _obstacle(module)

    @contextmanager
    def running(self, between: Between) -> Iterator[None]:
        """Run the collectives of a step through ``between``, and those of its gradients after each backward pass."""
        if not self._all:
            yield
            return
        self._between, original, thread = between, torch.autograd.backward, threading.get_ident()

        def backward(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            if threading.get_ident() == thread:
                for replica in self._all.values():
                    replica.collect()

        with ExitStack() as stack:
            for replica in self._all.values():
                stack.enter_context(replica.running())
            torch.autograd.backward = backward
            stack.callback(setattr, torch.autograd, "backward", original)
            yield

    def exchange(self, flat: Tensor, collective: Callable[[Tensor], Any]) -> None:
        """Call a collective on a tensor, between graphs."""
        self._between(lambda: self.call(flat, collective))


class _Replica:
    """A ``DistributedDataParallel`` in a captured step: one all-reduce averages all gradients of a backward pass.

    DDP keeps the gradient accumulators of its parameters on its stream, which cannot be captured. So the module runs
    with other tensors over the same memory, whose gradients are then added to those of the parameters.
    """

    def __init__(self, wrapper: DistributedDataParallel, exchange: Callable[[Tensor, Any], None]) -> None:
        self._wrapper, self._call = wrapper, exchange
        self._parameters = {
            name: p
            for name, p in wrapper.module.named_parameters()
            if p.requires_grad and name not in wrapper.parameters_to_ignore
        }
        self._leaves: dict[str, Tensor] = {}
        self._flat: dict[object, Tensor] = {}
        self._used = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Replace the module's forward function."""
        self._used = False
        vars(self._wrapper)["forward"] = self._forward
        try:
            yield
        finally:
            del vars(self._wrapper)["forward"]
            for leaf in self._leaves.values():
                leaf.grad = None  # of a step that broke off

    def collect(self) -> None:
        """Add the gradients of a backward pass and, outside of ``no_sync()``, average them over the ranks."""
        if not self._used:
            return
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                leaf = self._leaves[name]
                if parameter.grad is None:
                    parameter.grad = leaf.grad
                elif leaf.grad is not None:
                    parameter.grad.add_(leaf.grad)
                leaf.grad = None
            if self._wrapper.require_backward_grad_sync:
                group = self._wrapper.process_group
                self._exchange(
                    [p if p.grad is None else p.grad for p in self._parameters.values()],
                    [p.grad is not None for p in self._parameters.values()],
                    lambda flat: dist.all_reduce(flat.div_(group.size()), group=group),
                )

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        wrapper = self._wrapper
        if wrapper.broadcast_buffers and wrapper.require_backward_grad_sync and wrapper.modules_buffers:
            group, buffers = wrapper.process_group, list(wrapper.modules_buffers)
            first = dist.get_global_rank(group, 0)
            with torch.no_grad():
                self._exchange(buffers, [True] * len(buffers), lambda flat: dist.broadcast(flat, first, group=group))
        if not torch.is_grad_enabled():
            return wrapper.module(*args, **kwargs)
        for name, parameter in self._parameters.items():
            leaf = self._leaves.get(name)
            if leaf is None or leaf.data_ptr() != parameter.data_ptr():
                self._leaves[name] = parameter.detach().requires_grad_()
        self._used = True
        return functional_call(wrapper.module, self._leaves, args, kwargs)

    def _exchange(self, tensors: Sequence[Tensor], there: Sequence[bool], collective: Callable[[Tensor], Any]) -> None:
        """Copy tensors to one piece of memory per dtype, call a collective on it, and copy the results back.

        Those that are not ``there`` count as zeros and get no result.
        """
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            chosen = [(t, ok) for t, ok in zip(tensors, there, strict=True) if t.dtype == dtype]
            key = dtype, tuple(t.shape for t, _ in chosen)
            if key not in self._flat:
                self._flat[key] = chosen[0][0].new_zeros(sum(t.numel() for t, _ in chosen))
            flat = self._flat[key]
            parts = torch.split(flat, [t.numel() for t, _ in chosen])
            views = [part.view_as(t) for part, (t, ok) in zip(parts, chosen, strict=True) if ok]
            values = [t for t, ok in chosen if ok]
            if len(values) < len(chosen):
                flat.zero_()
            torch._foreach_copy_(views, values)
            self._call(flat, collective)
            torch._foreach_copy_(values, views)


def _obstacle(wrapper: DistributedDataParallel) -> str | None:
    parameters = [p for p in wrapper.module.parameters() if p.requires_grad]
    obstacles = {
        "find_unused_parameters=True looks for parameters anew in each step": wrapper.find_unused_parameters,
        "it has a communication hook": wrapper._comm_hooks,
        "it has a mixed_precision": wrapper.mixed_precision is not None,
        "its parameters have hooks": any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters),
        "it has sparse gradients": any(getattr(module, "sparse", False) is True for module in wrapper.modules()),
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


def call_now(flat: Tensor, collective: Callable[[Tensor], Any]) -> None:
    """Call a collective on a tensor."""
    collective(flat)


def now(function: Callable[[], None]) -> None:
    """Call a function at once."""
    function()
