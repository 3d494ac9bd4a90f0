"""A recorder for CPUs: what it records changes nothing, and each replay writes where the recording did."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class StandIn:
    """Records steps of a model and an optimizer.

    Args:
        modules: have state that a recording must not change.
    """

    def __init__(self, *modules: Any) -> None:
        self._modules = modules
        self.recorded = 0
        self.recording = False

    def run(self, function: Callable[[], Any]) -> Any:
        return function()

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        parameters = [p for module in self._modules for p in getattr(module, "parameters", list)()]
        before, grads = self._tensors(), [p.grad for p in parameters]
        values = [value.clone() for value in (*before, *(g for g in grads if g is not None))]
        self.recording = True
        try:
            result = function()
        finally:
            self.recording = False
            for tensor, value in zip((*before, *(g for g in grads if g is not None)), values, strict=True):
                tensor.detach().copy_(value)
        self.recorded += 1
        static = [p.grad for p in parameters]

        def replay() -> None:
            for p, grad in zip(parameters, grads, strict=True):
                p.grad = grad
            again = function()
            for old, new in zip(pytree.tree_leaves(result), pytree.tree_leaves(again), strict=True):
                if isinstance(old, Tensor):
                    old.detach().copy_(new.detach())
            for p, grad in zip(parameters, static, strict=True):
                if grad is not None and p.grad is not grad:
                    grad.copy_(p.grad)
                p.grad = None  # a replay changes no attribute

        return replay, result

    def _tensors(self) -> list[Tensor]:
        return [
            value
            for module in self._modules
            for value in pytree.tree_leaves(
                module.state_dict(keep_vars=True) if isinstance(module, torch.nn.Module) else dict(module.state)
            )
            if isinstance(value, Tensor)
        ]
