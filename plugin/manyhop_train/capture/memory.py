"""Memory that a step reads and changes, as torch's operators show while it runs eagerly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def whole(tensor: Tensor) -> Tensor | None:
    """Return all memory that a tensor is a view of, as ``[n]`` of its dtype; ``None``: it has none of its own."""
    try:
        storage = tensor.untyped_storage()
        if not storage.data_ptr() or storage.nbytes() % tensor.element_size():
            return None
    except (NotImplementedError, RuntimeError):  # sparse, or a class of its own
        return None
    with torch.inference_mode(False):  # others write to it outside
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Keeps memory alive that a step reads from outside, for graphs would go on reading what is gone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.read: dict[int, Tensor] = {}
        """Memory from outside, by its address."""
        self.written: dict[int, Tensor] = {}
        """What operators have changed of it."""
        self.low = False
        """Whether numbers of 16 bits were calculated."""
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in pytree.tree_leaves(value):
                if isinstance(tensor, Tensor):
                    self._note(tensor, writes)
        result = func(*args, **kwargs)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.low |= tensor.dtype in (torch.bfloat16, torch.float16)
                memory = whole(tensor)
                if memory is not None and memory.data_ptr() not in self.read:
                    self._made.add(memory.data_ptr())
        return result

    def _note(self, tensor: Tensor, writes: bool) -> None:
        memory = whole(tensor)
        if memory is None or (place := memory.data_ptr()) in self._made:
            return
        self.read.setdefault(place, memory)
        if writes and place not in self.written:
            self.written[place] = memory
            self.before_change(place, memory)

    def before_change(self, place: int, memory: Tensor) -> None:
        """Is called before memory from outside is changed for the first time."""


class Undo(Reads):  # type: ignore[no-untyped-call]  # of torch
    """Puts back what operators have changed.

    Args:
        tensors: which others may change, such as kernels that torch does not launch.
        ignored: nobody asks for what these become.
    """

    def __init__(self, tensors: Iterable[Tensor], ignored: Sequence[Tensor]) -> None:
        super().__init__()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        """Memory and what it was, by its address."""
        self._after: dict[int, Tensor] = {}
        self._ignored = {place for place, _ in _places(ignored)}
        for place, memory in _places(tensors):
            self.before_change(place, memory)

    def before_change(self, place: int, memory: Tensor) -> None:
        """Copy memory."""
        if place not in self.before:
            with torch.inference_mode(False):
                self.before[place] = memory, memory.clone()
                self._after[place] = torch.empty_like(memory)  # memory may be too small now, not after a change

    @torch.no_grad()
    def values(self) -> dict[int, Tensor]:
        """Return copies of what the memory is now."""
        for place, (now, _) in self.before.items():
            self._after[place].copy_(now)
        return {place: value for place, value in self._after.items() if place not in self._ignored}

    @torch.no_grad()
    def restore(self, values: dict[int, Tensor] | None = None) -> None:
        """Write what the memory was, or what :meth:`values` has returned."""
        for place, (now, before) in self.before.items():
            now.copy_(before if values is None else values.get(place, before))


def _places(tensors: Iterable[Tensor]) -> Iterable[tuple[int, Tensor]]:
    return ((memory.data_ptr(), memory) for tensor in tensors if (memory := whole(tensor)) is not None)
