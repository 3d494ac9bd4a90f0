"""What needs memory, what there is, and what a choice of places takes of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyhop.arguments import at_least_one
from manyhop.errors import InputError
from manyhop.memory.places import Place

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
    resident: frozenset[Place] = frozenset()
    """Where it is already, for another loader: it takes no more memory there. Only GPU runs ask."""
    store_place: Place | None = None
    """The place that the user's store keeps it in, whatever the mode. Only GPU runs ask."""
    on_host: bool = False
    """Whether what a store keeps ``distributed`` is page-locked in the memory of all nodes, not on GPUs."""


def check_names(items: Sequence[Item]) -> None:
    """Raise InputError unless all names differ."""
    names = [item.name for item in items]
    if len(set(names)) != len(names):
        raise InputError(f"Expected features of different names, got {names}.")


def share_of(nbytes: int, parts: int) -> int:
    """Bytes of the largest of ``parts`` equal parts."""
    return -(-nbytes // parts)


GPU_RESERVE = 0.3
"""This share of the free memory of a GPU is left for the model, its activations and the batches on their way."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What there is for the ranks of a run, which have one GPU each. Where ranks differ, the least counts.

    Raises:
        InputError: numbers that make no sense.
    """

    gpu_memory: int
    """Free bytes of each GPU."""
    host_memory: int
    """Free bytes of each node."""
    gpus_per_node: int = 1
    """GPUs of a node that ranks use; as many as it has ranks."""
    num_nodes: int = 1
    """Nodes (machines)."""
    pinnable: int | None = None
    """Bytes that a process may page-lock; ``None``: no limit but the memory of the node (``ulimit -l`` is none for CUDA
    on Linux)."""
    peer_access: bool = False
    """Whether each GPU of a node reads the memory of all others of that node."""
    wholegraph: bool = False
    """Whether pylibwholegraph is installed."""
    cugraph: bool = False
    """Whether pylibcugraph, and what joins its GPUs, is installed."""
    together: bool = False
    """Whether all ranks make the loader together (``distributed=True``), which rows that are spread over them need."""

    def __post_init__(self) -> None:
        at_least_one(gpu_memory=self.gpu_memory, host_memory=self.host_memory)
        at_least_one(gpus_per_node=self.gpus_per_node, num_nodes=self.num_nodes)
        if self.pinnable is not None and self.pinnable < 0:
            raise InputError(f"Expected pinnable to be at least 0, or None, got {self.pinnable}.")

    @property
    def world_size(self) -> int:
        """Number of ranks, and of GPUs."""
        return self.gpus_per_node * self.num_nodes

    @property
    def gpu_usable(self) -> int:
        """Bytes of each GPU that may be given out."""
        return int(self.gpu_memory * (1 - GPU_RESERVE))

    @property
    def host_usable(self) -> int:
        """Bytes of each node that may be given out."""
        return int(self.host_memory * (1 - RESERVE))


def on_gpu(item: Item, place: Place, hardware: Hardware) -> int:
    """Bytes that an item takes of each GPU, hot rows apart, beside what is there already."""
    if place in item.resident:
        return 0
    if place == "device":
        return item.nbytes
    if place == "pinned":
        return item.pointer_bytes
    if place == "sharded":
        return share_of(item.nbytes, hardware.gpus_per_node)
    if place == "distributed":
        return share_of(item.nbytes if item.distributed_bytes is None else item.distributed_bytes, hardware.world_size)
    return 0


class Needs:
    """Bytes that ``places`` (item -> place) take."""

    def __init__(self, items: Mapping[str, Item], places: Mapping[str, Place], hardware: Hardware) -> None:
        self.hardware = hardware
        self.gpu = sum(on_gpu(items[name], place, hardware) for name, place in places.items())
        pinned = [items[name] for name, place in places.items() if place == "pinned"]
        left = [items[name] for name, place in places.items() if place == "host"]
        self.pinned = sum(item.nbytes - item.pointer_bytes for item in pinned)
        loaded = [item for item in pinned if not item.in_memory]
        loaded += [item for item in pinned if item.pinned_by_each] * (hardware.gpus_per_node - 1)
        loaded += [item for item in left if not item.in_memory and not item.can_map]
        self.host = sum(item.nbytes for item in loaded)
        self.mapped: set[str] = set()
        # What only CPUs read may stay in files; as much of it as fits is read into memory, the smallest first.
        for item in sorted((i for i in left if i.can_map and not i.in_memory), key=lambda item: item.nbytes):
            if self.host + item.nbytes <= hardware.host_usable:
                self.host += item.nbytes
            else:
                self.mapped.add(item.name)

    def lacking(self) -> dict[str, tuple[int, int]]:
        """Kind of memory -> bytes that are needed, bytes that there are; of those that do not suffice."""
        needs = {
            "gpu": (self.gpu, self.hardware.gpu_usable),
            "host": (self.host, self.hardware.host_usable),
            "pinned": (self.pinned, self.pinned if self.hardware.pinnable is None else self.hardware.pinnable),
        }
        return {kind: (needed, there) for kind, (needed, there) in needs.items() if needed > there}

    def fit(self) -> bool:
        """Whether all suffices."""
        return not self.lacking()
