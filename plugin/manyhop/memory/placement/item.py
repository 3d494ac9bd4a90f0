"""What needs memory, and how much of it is never given out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from manyhop.errors import InputError

GPUPlace = Literal["device", "sharded", "pinned", "host", "distributed"]
"""``device``: a copy on each GPU. ``sharded``: each GPU of a node holds a part of the rows, and its peers read there.
``pinned``: page-locked memory of the node, which GPUs read; of a topology, all but the column pointers, of which each
GPU has a copy. ``host``: memory or files of the node, which only the CPU reads. ``distributed``: each GPU of all nodes
holds a part, and ranks exchange rows in lockstep; of a topology, cuGraph samples it, called by all ranks together."""

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
    """Whether it is in a file that can be mapped."""
    can_shard: bool = True
    """Whether nodes, or GPUs, may hold a part of its rows each."""
    in_memory: bool = False
    """Whether it is in the node's memory already, where all ranks that need it read it. Only GPU runs ask."""
    pinned_by_each: bool = False
    """Whether each rank of a node that page-locks it has a copy in memory: a file that ranks map for themselves. Only
    GPU runs ask."""
    pointer_bytes: int = 0
    """How many of its bytes are column pointers of a topology. They are looked up
    before each read of the rest, so they reside on each GPU even where the rest is pinned. Only GPU runs ask."""
    can_distribute: bool = True
    """Whether GPUs of all nodes may hold a part each. Only GPU runs ask."""
    distributed_bytes: int | None = None
    """Its size in all GPUs together where it is distributed; ``None``: ``nbytes``. Only GPU runs ask."""
    there: frozenset[GPUPlace] = frozenset()
    """Where it is already, for another loader: it takes no more memory there. Only GPU runs ask."""
    held: GPUPlace | None = None
    """The place that the user's store keeps it in, whatever the mode. Only GPU runs ask."""
    on_host: bool = False
    """Whether what is held in the place ``distributed`` is page-locked in the memory of all nodes, not on GPUs."""


def check_names(items: Sequence[Item]) -> None:
    """Raise InputError unless all names differ."""
    names = [item.name for item in items]
    if len(set(names)) != len(names):
        raise InputError(f"Expected features of different names, got {names}.")


def share_of(nbytes: int, parts: int) -> int:
    """Bytes of the largest of ``parts`` equal parts."""
    return -(-nbytes // parts)
