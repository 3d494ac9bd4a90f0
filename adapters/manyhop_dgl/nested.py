"""Batches as samplers and users return them: values in nested dictionaries, lists and tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Composite:
    """A batch, or a part of one, that consists of its attributes."""

    def moving(self) -> Iterable[str]:
        """Return the names of the attributes that go to a GPU."""
        return tuple(vars(self))


def apply_nested(value: object, function: Callable[[object], object]) -> Any:
    """Apply ``function`` to everything in nested dictionaries, lists and tuples; return the results, nested alike.

    Classes of the user that are derived from these become plain ones, but for named tuples.
    """
    if isinstance(value, Mapping):
        return {name: apply_nested(part, function) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(apply_nested(part, function) for part in value))
    if isinstance(value, list | tuple):
        parts = [apply_nested(part, function) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return function(value)


def all_in_nested(kind: type[T], value: object) -> list[T]:
    """Return the objects of a class in nested dictionaries, lists and tuples."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    found: list[T] = []
    for part in value:
        found += all_in_nested(kind, part)
    return found
