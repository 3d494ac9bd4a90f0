"""Objects outside of a batch that a step reads: their numbers are part of a graph's key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from operator import is_, itemgetter
from typing import Any, Final

import torch
from torch import Tensor

from manyhop.errors import InputError

_PLAIN: Final = frozenset({int, float, bool, str, complex, type(None)})
"""Values that are compared; of others, it matters which object they are."""


class Snapshot:
    """Values of dictionaries, as they were and as they are.

    Args:
        numbers: of these, the numbers and strings matter that they have now.
        parts: of these, it matters which objects they have.
        hooks: of these, it matters how many they have.
    """

    def __init__(
        self, numbers: Iterable[dict[str, Any]], parts: Iterable[dict[Any, Any]], hooks: Iterable[dict[int, Any]]
    ) -> None:
        named = [(where, [name for name, value in where.items() if type(value) in _PLAIN]) for where in numbers]
        # One call for all names of a place; with two names at least, it returns a tuple.
        self._getters = [(itemgetter(*names, names[0]), where) for where, names in named if names]
        self._names = [name for _, names in named if names for name in (*names, names[0])]
        self._parts = list(parts)
        self._counted = [*self._parts, *hooks]
        self._counts, self._values = self._now()
        self.plain: Hashable = tuple(zip(self._names, self._values, strict=False))
        """Names and values of the numbers and strings."""

    def replaced(self) -> str | None:
        """Look again. Return the name of an object in whose place another one is."""
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
        kinds = [(type(old) in _PLAIN) + (type(new) in _PLAIN) for old, new in zip(before, values, strict=True)]
        for name, kind in zip(self._names, kinds, strict=False):
            if kind != 2:
                return name
        for old, new, kind in zip(before, values, kinds, strict=True):
            if kind < 2 and old is not new:
                return next(str(name) for part in self._parts for name, value in part.items() if value is new)
        return None

    def _now(self) -> tuple[list[int], list[object]]:
        values = [value for get, where in self._getters for value in get(where)]
        values += chain.from_iterable(map(dict.values, self._parts))
        return list(map(len, self._counted)), values


class Watched:
    """What ``watch=`` names.

    Args:
        objects: have numbers, strings, tensors, arrays, and containers of them, as attributes or entries; of modules,
            attributes that are numbers and strings count.

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
        """All that is no object."""

    def replaced(self) -> str | None:
        """Look again. Return the name of an object in whose place another one is."""
        if not self._objects:
            return None
        plain, known = list[Hashable](), list[object]()
        for one in self._objects:
            _collect(one, plain, known, whole=True)
        same = len(known) == len(self._known) and all(map(is_, known, self._known))
        self.plain, self._known = tuple(plain), known
        return None if same else "what watch= names"


def _collect(value: Any, plain: list[Hashable], known: list[object], *, whole: bool = False) -> None:
    """Add the numbers of a value, and its objects; of an object that is ``whole``, its attributes, too."""
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
    elif whole and isinstance(value, torch.nn.Module):  # whose parts are noticed where they take part
        plain += [pair for pair in vars(value).items() if type(pair[1]) in _PLAIN]
    elif isinstance(value, Tensor):
        known.append(value)  # graphs read memory of a GPU as it is
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
    """Return the precision of matrix products: torch forbids to ask by the old name where the new one has been set."""
    ask = getattr(torch._C, "_get_fp32_precision_getter", None)
    return torch.get_float32_matmul_precision() if ask is None else ask("cuda", "matmul")
