"""Where data resides: the words of every ``placement=``, and which of them an argument takes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal, cast

from manyhop.errors import InputError

Place = Literal[
    "auto", "process", "shared", "mapped", "pinned", "device", "sharded", "distributed", "host",
    "cuda-cuda", "pinned-cuda", "cpu-cuda",
]  # fmt: skip
"""A place, beside a device.

- ``auto``: decided by sizes and free memory.
- ``process``: memory of this process.
- ``shared``: host memory, one copy per node, which its ranks read.
- ``mapped``: its file, of which the operating system keeps in memory what is read often.
- ``pinned``: page-locked host memory, one copy per node, which GPUs read; of a topology, all but the column pointers,
  of which each GPU has a copy.
- ``device``: a copy on each GPU.
- ``sharded``: a part of the rows in the host memory of each node or, on a GPU, on each GPU of the node, where its peers
  read them.
- ``distributed``: a part on each GPU of all nodes, whose ranks exchange rows in lockstep; of a topology, cuGraph
  samples it, called by all ranks together.
- ``host``: memory or files of the node, which only the CPU reads.
- ``cuda-cuda``, ``pinned-cuda``, ``cpu-cuda``: of loaders, other words for ``device``, ``pinned`` and ``host``.
"""

ALIASES: Final[dict[Place, Place]] = {"cuda-cuda": "device", "pinned-cuda": "pinned", "cpu-cuda": "host"}

FOLDER_PLACES: Final[tuple[Place, ...]] = ("auto", "process", "shared", "mapped", "sharded")
"""Of what CPUs read of a graph on disk."""

STORE_PLACES: Final[tuple[Place, ...]] = (
    "process", "shared", "mapped", "pinned", "device", "sharded", "distributed", "auto",
)  # fmt: skip
"""Of the rows of a store. ``auto`` is ``shared``, and loaders decide what their GPUs read."""

GRAPH_PLACES: Final[tuple[Place, ...]] = ("process", "shared", "pinned", "device", "sharded", "auto")
"""Of edges. From ``pinned`` on: where GPUs read the topology made of them; ``auto`` has the first loader decide."""

LOADER_PLACES: Final[tuple[Place, ...]] = ("auto", "device", "sharded", "pinned", "distributed", "host", *ALIASES)
"""Of topology and features that a loader on a GPU reads."""

SPREAD_PLACES: Final[tuple[Place, ...]] = ("sharded", "distributed")
"""Of which each GPU holds a part."""


def check_place(place: Any, allowed: Collection[Place], *, name: str = "placement", hint: str = "") -> Place:
    """Return a place of those that an argument takes.

    Args:
        place: the user's.
        allowed: all that make sense.
        name: of the argument.
        hint: what to do instead, for the error.

    Raises:
        InputError: anything else.
    """
    if not isinstance(place, str) or place not in allowed:
        raise InputError(f"Expected {name} to be one of {list(allowed)}, got {place!r}.{hint}")
    return cast(Place, place)
