"""Pipes of minibatches: their base, their functional names, and arguments that are hints only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterDataPipe

from manyhop.errors import InputError
from manyhop_dgl.nested import Composite, apply_nested
from manyhop_graphbolt.types import GONE, missing

Pipe = TypeVar("Pipe", bound=type[Any])
M = TypeVar("M", bound="Movable")

_functions: dict[str, Any] = {}


class DataPipe(IterDataPipe[Any]):
    """A torch ``IterDataPipe`` that finds this package's functional forms first.

    DGL's own GraphBolt may have registered names such as ``sample_neighbor`` in the same process.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _functions:
            return functools.update_wrapper(functools.partial(_functions[name], self), _functions[name], ("__doc__",))
        if name in GONE:
            raise missing("a pipe", name)
        return super().__getattr__(name)


def functional_datapipe(name: str) -> Callable[[Pipe], Pipe]:
    """Decorate a class of pipes: ``datapipe.name(...)`` is then ``Class(datapipe, ...)``, for pipes of any kind.

    Args:
        name: the functional form.

    Raises:
        InputError: a name of a different class of this package, or of the user.
    """

    def register(kind: Pipe) -> Pipe:
        if _functions.setdefault(name, kind) is not kind:
            raise InputError(
                f"Expected a functional name that is free, got {name!r}, which belongs to {_functions[name].__name__}. "
                "Choose another."
            )
        if name not in IterDataPipe.functions:  # otherwise DGL's own GraphBolt was first
            IterDataPipe.register_datapipe_as_function(name, kind)
        return kind

    return register


def move(value: object, device: torch.device | str, non_blocking: bool, known: dict[int, object]) -> object:
    """Move everything in ``value`` that can be moved to a device; ``known`` has the copies of tensors, by their id."""

    def move_one(part: object) -> object:
        if isinstance(part, Tensor):
            if id(part) not in known:
                known[id(part)] = part.to(device, non_blocking=non_blocking)
            return known[id(part)]
        if isinstance(part, Movable):
            return part.moved(device, non_blocking, known)
        return part.to(device) if hasattr(part, "to") else part

    return apply_nested(value, move_one)


class Movable(Composite):
    """The base of objects whose attributes can be moved in place."""

    def moved(self: M, device: torch.device | str, non_blocking: bool, known: dict[int, object]) -> M:
        """Move the attributes in place, with the arguments of :func:`move`; return ``self``."""
        for name in self.moving():
            value = getattr(self, name)
            if value is not None:  # as most are, of a minibatch
                setattr(self, name, move(value, device, non_blocking, known))
        return self

    def to(self: M, device: torch.device | str, non_blocking: bool = False) -> M:
        """Move the attributes to a device, in place; return ``self``."""
        return self.moved(device, non_blocking, {})


def show(title: str, named: dict[str, object]) -> str:
    """Format ``title(name=value, ...)``, one name per line, with the lines of a value below each other."""
    lines = [f"{name}=" + _text(value).replace("\n", "\n" + " " * (len(name) + 1)) for name, value in named.items()]
    indent = " " * (len(title) + 1)
    return f"{title}(" + f",\n{indent}".join(line.replace("\n", "\n" + indent) for line in lines) + ")"


def _text(value: object) -> str:
    """Format a value, with the elements of a list one below the other."""
    if isinstance(value, list):
        return "[" + ",\n".join(map(str, value)).replace("\n", "\n ") + "]"
    return str(value)


_COUNTS = {"num_gpu_cached_edges": 0, "gpu_cache_threshold": 0, "max_uva_threads": 1}
"""Those that are numbers, and the least that they can be."""


def check_hints(known: Collection[str] = (), **hints: object) -> None:
    """Check the values of hints by their names."""
    for name, value in hints.items():
        if known and name not in known:
            raise InputError(f"Expected further arguments among {list(known)}, got {name!r}. Leave it out.")
        if name in _COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or value < _COUNTS[name]:
                raise InputError(f"Expected {name} as an integer of at least {_COUNTS[name]}, got {value!r}.")
        elif not isinstance(value, bool):
            raise InputError(f"Expected {name} as True or False, got {value!r}.")
    if hints.get("cooperative"):
        raise InputError(
            "Expected cooperative=False, got True. Leave it out: each rank samples its own minibatches. "
            "To exchange fewer rows, pass seed_parts to the DistributedItemSampler."
        )
