"""A recorder for CPUs that repeats operators on the memory of the recording, as a CUDA graph does: without Python."""

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


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Taping(TorchDispatchMode):
    """Notes operators, and what memory was before the first one that changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [
            tensor
            for number, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(args[number] if number < len(args) else kwargs.get(argument.name))
        ]
        if "batch_norm" in func.name() and "backward" not in func.name():
            written += [tensor for tensor in args[3:5] if isinstance(tensor, Tensor)]  # which its schema does not say
        for tensor in written:
            if _memory(tensor) not in self._made | self._before.keys():
                with torch.inference_mode(False):
                    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[_memory(tensor)] = whole, whole.clone()
        read = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        made = [tensor for tensor in _tensors(result) if _memory(tensor) not in read]
        self._made |= {_memory(tensor) for tensor in made}
        if made or written:  # others are views
            # Memory counts, not which tensors are there later on.
            args, kwargs, made = pytree.tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs, made))
            self.calls.append((func, args, kwargs, made))
        return result

    def undo(self) -> None:
        """Nothing that is recorded runs."""
        for whole, before in self._before.values():
            whole.copy_(before)


class Tape:
    """Records as CUDA does: what the host would have to wait for raises an error, unless ``strict=False``."""

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self.recorded = 0
        self.recording = False

    def run(self, function: Callable[[], Any]) -> Any:
        return function()

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recording, self._taping = True, (taping := _Taping())
        try:
            with NeverWaits() if self._strict else nullcontext(), taping:
                result = function()
        finally:
            self.recording = False
            taping.undo()
        self.recorded += 1

        @torch.inference_mode()
        def replay() -> None:
            for func, args, kwargs, made in taping.calls:
                if func is None:
                    args()
                    continue
                again = [t for t in _tensors(func(*args, **kwargs)) if _memory(t) not in map(_memory, _tensors(args))]
                for old, new in zip(made, again, strict=True):
                    old.copy_(new)

        return replay, result

    def between(self, function: Callable[[], None]) -> None:
        if self.recording:  # which calls it in each replay
            self._taping.calls.append((None, function, None, []))
        else:
            function()
