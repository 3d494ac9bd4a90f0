"""Inputs of a step besides its batch: objects, whose numbers are part of a graph's key, and memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from manyhop.errors import InputError

_PLAIN: Final = frozenset({int, float, bool, str, complex, type(None)})
"""Values that are compared; of others, it matters which object they are."""


class Snapshot:
    """Compares dictionaries with their values at construction.

    Args:
        numbers: dictionaries whose current numbers and strings are compared.
        parts: dictionaries whose objects are compared by identity.
        hooks: dictionaries whose length is compared.
    """

    def __init__(
        self, numbers: Iterable[dict[str, Any]], parts: Iterable[dict[Any, Any]], hooks: Iterable[dict[int, Any]]
    ) -> None:
        named = [(where, [name for name, value in where.items() if type(value) in _PLAIN]) for where in numbers]
        # One call for all names of a dictionary; with at least two names, it returns a tuple.
        self._getters = [(itemgetter(*names, names[0]), where) for where, names in named if names]
        self._names = [name for _, names in named if names for name in (*names, names[0])]
        self._parts = list(parts)
        self._counted = [*self._parts, *hooks]
        self._counts, self._values = self._now()
        self.plain: Hashable = tuple(zip(self._names, self._values, strict=False))
        """Names and values of the numbers and strings."""

    def replaced(self) -> str | None:
        """Compare again. Return the name of an object that was replaced."""
        try:
            counts, values = self._now()
        except KeyError as missing:
            return str(missing.args[0])
        if counts != self._counts:
            return "a hook, a part or a state"
        if all(map(is_, values, self._values)):
            return None
        before, self._values = self._values, values
        self.plain = tuple(zip(self._names, values, strict=False))
        names = [*self._names, *chain.from_iterable(self._parts)]
        for name, old, new in zip(names, before, values, strict=True):
            if old is not new and not (type(old) in _PLAIN and type(new) in _PLAIN):
                return str(name)
        return None

    def _now(self) -> tuple[list[int], list[object]]:
        values = [value for get, where in self._getters for value in get(where)]
        values += chain.from_iterable(map(dict.values, self._parts))
        return list(map(len, self._counted)), values


class Watched:
    """The objects of ``watch=``.

    Args:
        objects: objects with numbers, strings, tensors, arrays or containers of them as attributes or entries; of
            modules, only numbers and strings are compared.

    Raises:
        InputError: no list of such objects.
    """

    def __init__(self, objects: object) -> None:
        if not isinstance(objects, list | tuple):
            raise InputError(f"Expected watch as a list of objects, got a {type(objects).__name__}. Pass [it].")
        for one in objects:
            if type(one) in _PLAIN:
                raise InputError(
                    f"Expected objects in watch, got {one!r}, which cannot change. Pass the object that has it."
                )
        self._objects = objects
        self._known: list[object] = []
        self.plain: Hashable = ()
        """Values that are not compared by identity."""

    def replaced(self) -> str | None:
        """Compare again. Return the name of an object that was replaced."""
        if not self._objects:
            return None
        plain, known = list[Hashable](), list[object]()
        for one in self._objects:
            _collect(one, plain, known, whole=True)
        same = len(known) == len(self._known) and all(map(is_, known, self._known))
        self.plain, self._known = tuple(plain), known
        return None if same else "what watch= names"


def _collect(value: Any, plain: list[Hashable], known: list[object], *, whole: bool = False) -> None:
    """Add the numbers and objects of a value and, if ``whole``, of its attributes."""
    if type(value) in _PLAIN:
        plain.append(value)
    elif isinstance(value, Mapping):
        plain.append(len(value))
        for key, entry in value.items():
            plain.append(key)
            _collect(entry, plain, known)
    elif isinstance(value, list | tuple):
        plain.append(len(value))
        for entry in value:
            _collect(entry, plain, known)
    elif whole and isinstance(value, torch.nn.Module):  # changes of its parts are noticed when it runs
        plain += [pair for pair in vars(value).items() if type(pair[1]) in _PLAIN]
    elif isinstance(value, Tensor):
        known.append(value)  # graphs read the current memory of a GPU
        host = value.device.type == "cpu" and not value.is_inference()
        plain += (value.data_ptr(), value._version if host else 0)
    elif type(value).__module__ == "numpy":  # an array, or a number
        plain.append(value.tobytes())
    else:
        known.append(value)
        if whole:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
            _collect(attributes | getattr(value, "__dict__", {}), plain, known)


def modes(device: str) -> Hashable:
    """Return the modes of torch that a graph repeats."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        _precision(),
    )


def _precision() -> Hashable:
    """Return the precision of matrix products; torch's old getter raises if the new setting was used."""
    ask = getattr(torch._C, "_get_fp32_precision_getter", None)
    return torch.get_float32_matmul_precision() if ask is None else ask("cuda", "matmul")


def whole(tensor: Tensor) -> Tensor | None:
    """Return the whole memory of a view as ``[n]`` of its dtype; ``None``: it has no memory."""
    try:
        storage = tensor.untyped_storage()
        if not storage.data_ptr() or storage.nbytes() % tensor.element_size():
            return None
    except (NotImplementedError, RuntimeError):  # sparse, or a custom class
        return None
    with torch.inference_mode(False):  # others write to it outside
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)


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
        """Handle the first change of outside memory, before it happens."""


class Undo(Reads):  # type: ignore[no-untyped-call]  # of torch
    """Restores the memory that operators have changed.

    Args:
        tensors: tensors that kernels outside of torch may change.
        ignored: tensors whose final values are not returned.
    """

    def __init__(self, tensors: Iterable[Tensor], ignored: Sequence[Tensor]) -> None:
        super().__init__()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        """Memory and a copy of its former contents, by address."""
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
        """Return copies of the current memory."""
        for place, (now, _) in self.before.items():
            self._after[place].copy_(now)
        return {place: value for place, value in self._after.items() if place not in self._ignored}

    @torch.no_grad()
    def restore(self, values: dict[int, Tensor] | None = None) -> None:
        """Write the former contents, or those returned by :meth:`values`."""
        for place, (now, before) in self.before.items():
            now.copy_(before if values is None else values.get(place, before))


def _places(tensors: Iterable[Tensor]) -> Iterable[tuple[int, Tensor]]:
    return ((memory.data_ptr(), memory) for tensor in tensors if (memory := whole(tensor)) is not None)
