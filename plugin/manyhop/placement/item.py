"""What needs memory, and how much of it is never given out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhop.errors import InputError

RESERVE = 0.2
"""This share of the free memory of a node is left for the model, for batches and for sorting."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that needs memory."""

    name: str
    """What to call it."""
    nbytes: int
    """Its size in memory."""
    can_map: bool
    """Whether it lies in a file that can be mapped."""
    can_shard: bool = True
    """Whether nodes, or GPUs, may hold a part of its rows each."""
    in_memory: bool = False
    """Whether it lies in the node's memory already, where all ranks that need it read it. Only GPU runs ask."""
    pointer_bytes: int = 0
    """How many of its bytes say where the rest of it begins: the column pointers of a topology. They are looked up
    before each read of the rest, so they lie on each GPU even where the rest is pinned. Only GPU runs ask."""
    on_gpu: bool = False
    """Whether each GPU has a copy already, that of another loader: it takes no more memory there. Only GPU runs ask."""


def check_names(items: Sequence[Item]) -> None:
    """Raise InputError unless all names differ."""
    names = [item.name for item in items]
    if len(set(names)) != len(names):
        raise InputError(f"Expected features of different names, got {names}.")


def share_of(nbytes: int, parts: int) -> int:
    """Bytes of the largest of ``parts`` equal parts."""
    return -(-nbytes // parts)
