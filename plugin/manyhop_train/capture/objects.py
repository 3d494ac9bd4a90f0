"""Objects outside of a batch that a step reads: their numbers are part of a graph's key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor

from manyhop.errors import InputError

_PLAIN: Final = frozenset({int, float, bool, str, complex, type(None)})
"""Values that are compared; of others, it matters which object they are."""


class Snapshot:
    """The values of dictionaries, as they were and as they are.

    Args:
        numbers: of these, numbers and strings count.
        parts: of these, it matters which objects they have.
    """

    def __init__(self, numbers: Iterable[dict[str, Any]], parts: Iterable[dict[Any, Any]]) -> None:
        self._numbers, self._parts = list(numbers), list(parts)
        self._all = [*self._numbers, *self._parts]
        self._values = [*chain.from_iterable(map(dict.values, self._all))]
        self._names = [*chain.from_iterable(self._all)]
        self.plain = self._plain()
        """Names and values of the numbers and strings."""

    def replaced(self) -> str | None:
        """Look again. Return the name of an object in whose place another one is."""
        values = [*chain.from_iterable(map(dict.values, self._all))]
        if len(values) == len(self._values) and all(map(is_, values, self._values)):
            return None
        names = [*chain.from_iterable(self._all)]
        before, self._values = self._values, values
        others, self._names = self._names, names
        if len(names) != len(others) or not all(map(is_, names, others)):
            return next((str(name) for name in names if isinstance(name, str) and name not in others), "a part")
        self.plain = self._plain()
        count = sum(map(len, self._numbers))
        for number, (name, old, new) in enumerate(zip(names, before, values, strict=True)):
            numbers = (type(old) in _PLAIN) + (type(new) in _PLAIN)
            if old is not new and (numbers == 1 or (numbers == 0 and number >= count)):
                return name if isinstance(name, str) else "the state of an optimizer"
        return None

    def _plain(self) -> Hashable:
        return tuple([pair for where in self._numbers for pair in where.items() if type(pair[1]) in _PLAIN])


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
    matmul = torch.backends.cuda.matmul
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        # torch forbids to ask by the old name where the new one has been set.
        getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision(),
    )
