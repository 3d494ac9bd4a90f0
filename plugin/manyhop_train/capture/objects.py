"""Inputs of a step besides its batch: numbers and objects, which are part of a graph's key, and memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from manyhop.errors import InputError

PLAIN: Final = frozenset[type]({int, float, bool, str, complex, type(None)})
"""Values that are compared; of others, it matters which object they are."""


Dicts: TypeAlias = Sequence[dict[Any, Any]]


class Snapshot:
    """Compares dictionaries with their values before: numbers, parts by identity, and the numbers of hooks."""

    def __init__(self, numbers: Dicts, parts: Dicts, hooks: Dicts) -> None:
        self._numbers, self._parts, self._counted = numbers, parts, [*parts, *hooks]
        self._counts = list(map(len, self._counted))
        self._objects, self._values = self._objects_now(), list[object]()
        self.plain: Hashable = ()
        """Names and values of the numbers and strings."""
        self._read_numbers()

    def replaced(self) -> str | None:
        """Compare again. Return the name of an object that was replaced."""
        self._read_numbers()
        if list(map(len, self._counted)) != self._counts:
            return "a hook, a part or a state"
        before, self._objects = self._objects, self._objects_now()
        if same(before, self._objects):
            return None
        for name, old, new in zip(chain.from_iterable(self._parts), before, self._objects, strict=True):
            if old is not new and not (type(old) in PLAIN and type(new) in PLAIN):
                return str(name)
        return None

    def _objects_now(self) -> list[object]:
        return list(chain.from_iterable(map(dict.values, self._parts)))

    def _read_numbers(self) -> None:
        values = list(chain.from_iterable(map(dict.values, self._numbers)))
        if not same(values, self._values):
            self._values = values
            pairs = chain.from_iterable(map(dict.items, self._numbers))
            self.plain = tuple(pair for pair in pairs if type(pair[1]) in PLAIN)


def same(before: list[object], now: list[object]) -> bool:
    """Return whether two lists contain the same objects."""
    return len(before) == len(now) and all(map(is_, before, now))


def check_watched(objects: object) -> list[object]:
    """Return the objects of ``watch=``: numbers, strings, tensors, arrays and containers of them may change in them.

    Raises:
        InputError: no list of such objects.
    """
    if not isinstance(objects, list | tuple):
        raise InputError(f"Expected watch as a list of objects, got a {type(objects).__name__}. Pass [it].")
    for one in objects:
        if type(one) in PLAIN:
            raise InputError(
                f"Expected objects in watch, got {one!r}, which cannot change. Pass the object that has it."
            )
    return list(objects)


def collect(value: Any, plain: list[Hashable], known: list[object], *, whole: bool = False) -> None:
    """Add the numbers and objects of a value and, if ``whole``, of its attributes; of modules, only numbers."""
    if type(value) in PLAIN:
        plain.append(value)
    elif isinstance(value, Mapping):
        plain.append(len(value))
        for key, entry in value.items():
            plain.append(key)
            collect(entry, plain, known)
    elif isinstance(value, list | tuple):
        plain.append(len(value))
        for entry in value:
            collect(entry, plain, known)
    elif whole and isinstance(value, torch.nn.Module):  # changes of its parts are noticed when it runs
        plain += [pair for pair in vars(value).items() if type(pair[1]) in PLAIN]
    elif isinstance(value, Tensor):
        known.append(value)  # graphs read the current memory of a GPU
        plain.append(value.data_ptr())
        if value.device.type == "cpu" and not value.is_inference():
            plain.append(value.item() if value.numel() == 1 else value._version)
    elif type(value).__module__ == "numpy":  # an array, or a number
        plain.append(value.tobytes())
    else:
        known.append(value)
        if whole:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
            collect(attributes | getattr(value, "__dict__", {}), plain, known)


def modes(device: str) -> Hashable:
    """Return the modes of torch that a graph repeats."""
    # torch's old getter of the precision raises if the new setting was used.
    precision = getattr(torch._C, "_get_fp32_precision_getter", lambda *_: torch.get_float32_matmul_precision())
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        precision("cuda", "matmul"),
    )


def memory_of(tensor: Tensor) -> Tensor | None:
    """Return the whole memory of a view as ``[n]`` of its dtype; ``None``: it has no memory."""
    try:
        storage = tensor.untyped_storage()
        if not storage.data_ptr() or storage.nbytes() % tensor.element_size():
            return None
    except (NotImplementedError, RuntimeError):  # sparse, or a custom class
        return None
    with torch.inference_mode(False):  # others write to it outside
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)


def place_of(tensor: Tensor) -> int:
    """Return the address of a tensor's whole memory; 0: it has none."""
    memory = memory_of(tensor)
    return 0 if memory is None else memory.data_ptr()


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Keeps outside memory that a step reads alive, since graphs continue to read it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.read: dict[int, Tensor] = {}
        """Memory from outside, by its address."""
        self.written: dict[int, Tensor] = {}
        """The part that operators have changed."""
        self.scales = False
        """Whether a ``GradScaler`` has looked at gradients."""
        self.low = False
        """Whether numbers of 16 bits were calculated."""
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.scales |= "_amp_foreach_non_finite_check" in func.name()
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
                place = place_of(tensor)
                if place and place not in self.read:
                    self._made.add(place)
        return result

    def _note(self, tensor: Tensor, writes: bool) -> None:
        memory = memory_of(tensor)
        if memory is None or (place := memory.data_ptr()) in self._made:
            return
        self.read.setdefault(place, memory)
        if writes:
            self.before_change(place, memory)

    def before_change(self, place: int, memory: Tensor) -> None:
        """Keep memory that an operator changes."""
        self.written[place] = memory
