"""A recorder for CPUs: what it records changes nothing, and each replay writes where the recording did."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class NeverWaits(TorchDispatchMode):
    """Fails as CUDA does where the host would have to wait for a number: it cannot be recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name()
        waits = any(part in name for part in ("_local_scalar_dense", "nonzero", "unique", "masked_select"))
        if name.startswith(("aten::index.", "aten::index_put", "aten::_index_put")):
            waits |= any(isinstance(i, Tensor) and i.dtype == torch.bool for i in (args[1] or ()))
        if waits or ("repeat_interleave" in name and kwargs.get("output_size") is None):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **kwargs)


class StandIn:
    """Records steps of a model and an optimizer.

    Args:
        modules: have state that a recording must not change.
        strict: recordings fail where a GPU would make the host wait; updates of Adam do so on a CPU.
    """

    def __init__(self, *modules: Any, strict: bool = False) -> None:
        self._modules, self._strict = modules, strict
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
            with NeverWaits() if self._strict else nullcontext():
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

    def between(self, function: Callable[[], None]) -> None:
        if not self.recording:  # a recording calls it later, in each replay
            function()

    def _tensors(self) -> list[Tensor]:
        return [
            value
            for module in self._modules
            for value in pytree.tree_leaves(
                module.state_dict(keep_vars=True) if isinstance(module, torch.nn.Module) else dict(module.state)
            )
            if isinstance(value, Tensor)
        ]
