"""Values outside of a batch that a step reads: graphs repeat those of the recording."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import is_, itemgetter
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer


class Where(Protocol):
    """Where values have names: a dictionary or a variable of a closure."""

    def __getitem__(self, name: str, /) -> object:
        """Return a value, or raise KeyError."""
        ...


Named: TypeAlias = tuple[Where, str]

_PLAIN: Final = frozenset({int, float, bool, str, complex, type(None)})
"""Values that are compared; of others, it matters which object they are."""


class Values:
    """Named values, as they were and as they are."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[Where, list[str]]] = {}
        self._getters: list[tuple[Callable[[Where], tuple[object, ...]], Where]] = []
        self._values: list[object] = []
        self.plain: Hashable = ()
        """Names and values of numbers and strings."""

    def add(self, named: Iterable[Named]) -> None:
        """Add values, as they are."""
        for where, name in named:
            names = self._places.setdefault(id(where), (where, []))[1]
            if name not in names:
                names.append(name)
        # One call for all names of a place; with two names at least, it returns a tuple.
        self._getters = [(itemgetter(*names, names[0]), where) for where, names in self._places.values()]
        self._update(self._now())

    def replaced(self) -> str | None:
        """Look again. Return the name of an object in whose place another one is."""
        values = self._now()
        if all(map(is_, values, self._values)):
            return None
        before = self._values
        self._update(values)
        for name, old, new in zip(self._names(), before, values, strict=True):
            if old is not new and not (type(old) in _PLAIN and type(new) in _PLAIN):
                return name
        return None

    def _now(self) -> list[object]:
        try:
            return [value for get, where in self._getters for value in get(where)]
        except KeyError:  # not assigned yet, or deleted
            return [_value(where, name) for where, names in self._places.values() for name in (*names, names[0])]

    def _names(self) -> Iterator[str]:
        for _, names in self._places.values():
            yield from (*names, names[0])

    def _update(self, values: list[object]) -> None:
        self._values = values
        pairs = zip(self._names(), values, strict=True)
        self.plain = tuple([(name, value) for name, value in pairs if type(value) in _PLAIN and value is not None])


def _value(where: Where, name: str) -> object:
    try:
        return where[name]
    except KeyError:
        return None


def of_module(module: torch.nn.Module) -> Iterable[Named]:
    """What a module reads: its numbers, such as ``training`` and ``momentum``, and which parts it has."""
    yield from of_object(module)
    for parts in parts_of(module):
        yield from ((parts, name) for name in parts)


def parts_of(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module has its modules, parameters and buffers."""
    return module._modules, module._parameters, module._buffers


def of_object(value: object) -> Iterable[Named]:
    """The numbers among the attributes of an object."""
    attributes = vars(value)
    yield from ((attributes, name) for name, number in attributes.items() if type(number) in (int, float, bool))


class Memory:
    """Where a step has weights, buffers and states of optimizers: graphs read and write there."""

    def __init__(self) -> None:
        self._pointers: list[int] = []
        self._states: list[object] = []

    def moved(self, tensors: Iterable[Tensor], optimizers: Iterable[Optimizer]) -> bool:
        """Whether any is elsewhere than at the last call."""
        pointers = [tensor.data_ptr() for tensor in tensors]
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        if pointers == self._pointers and len(states) == len(self._states) and all(map(is_, states, self._states)):
            return False
        self._pointers, self._states = pointers, states
        return True
