"""Where data resides: the words of every ``placement=``, and the words that each argument accepts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal, cast

from manyhop.errors import InputError

Place = Literal[
    "auto", "process", "shared", "mapped", "pinned", "device", "sharded", "distributed", "host",
    "cuda-cuda", "pinned-cuda", "cpu-cuda",
]  # fmt: skip
"""A place, in addition to a device.

- ``auto``: decided by sizes and free memory.
- ``process``: memory of this process.
- ``shared``: host memory, one copy per node, which its ranks read.
- ``mapped``: its file: the operating system keeps frequently read pages in memory.
- ``pinned``: page-locked host memory, one copy per node, which GPUs read. Column pointers of a topology are copied to
  each GPU instead.
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
"""Places of a graph on disk that CPUs read."""

STORE_PLACES: Final[tuple[Place, ...]] = (
    "process", "shared", "mapped", "pinned", "device", "sharded", "distributed", "auto",
)  # fmt: skip
"""Places of the rows of a store. ``auto`` is ``shared``, and loaders place the rows that their GPUs read."""

GRAPH_PLACES: Final[tuple[Place, ...]] = ("process", "shared", "pinned", "device", "sharded", "auto")
"""Places of edges. From ``pinned`` on: where GPUs read the topology; ``auto``: the first loader decides."""

LOADER_PLACES: Final[tuple[Place, ...]] = ("auto", "device", "sharded", "pinned", "distributed", "host", *ALIASES)
"""Places of topology and features that a loader on a GPU reads."""

SPREAD_PLACES: Final[tuple[Place, ...]] = ("sharded", "distributed")
"""Places that hold a part on each GPU."""


def check_place(place: Any, allowed: Collection[Place], *, name: str = "placement", hint: str = "") -> Place:
    """Return a place that an argument accepts.

    Args:
        place: place that the user passed.
        allowed: all that make sense.
        name: of the argument.
        hint: what to do instead, for the error.

    Raises:
        InputError: anything else.
    """
    if not isinstance(place, str) or place not in allowed:
        raise InputError(f"Expected {name} to be one of {list(allowed)}, got {place!r}.{hint}")
    return cast(Place, place)
