"""Items that need memory, the memory of the ranks, the needs of a choice of places, and its reasons in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyhop.arguments import at_least_one
from manyhop.errors import InputError
from manyhop.memory.places import ALIASES, Place
from manyhop.system.units import in_units

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
    """Bytes of the column pointers of a topology. Each read of the rest follows a read of them, so they reside on each
    GPU even if the rest is pinned. Only GPU runs ask."""
    can_distribute: bool = True
    """Whether GPUs of all nodes may hold a part each. Only GPU runs ask."""
    distributed_bytes: int | None = None
    """Its size in all GPUs together if it is distributed; ``None``: ``nbytes``. Only GPU runs ask."""
    resident: frozenset[Place] = frozenset()
    """The places where it resides for another loader already, without further memory. Only GPU runs ask."""
    store_place: Place | None = None
    """The place of the user's store, regardless of the mode. Only GPU runs ask."""
    on_host: bool = False
    """Whether its ``distributed`` rows are page-locked in the memory of all nodes, not on GPUs."""


def check_names(items: Sequence[Item]) -> None:
    """Raise InputError unless all names differ."""
    names = [item.name for item in items]
    if len(set(names)) != len(names):
        raise InputError(f"Expected features of different names, got {names}.")


def share_of(nbytes: int, parts: int) -> int:
    """Return the bytes of the largest of ``parts`` equal parts."""
    return -(-nbytes // parts)


GPU_RESERVE = 0.3
"""This share of the free memory of a GPU is left for the model, its activations and the batches on their way."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware of the ranks of a run, which have one GPU each. If ranks differ, the minimum counts.

    Raises:
        InputError: numbers that make no sense.
    """

    gpu_memory: int
    """Free bytes of each GPU."""
    host_memory: int
    """Free bytes of each node."""
    gpus_per_node: int = 1
    """GPUs of a node that ranks use: one per rank."""
    num_nodes: int = 1
    """Nodes (machines)."""
    pinnable: int | None = None
    """Bytes that a process may page-lock; ``None``: only the memory of the node limits it (``ulimit -l`` does not limit
    CUDA on Linux)."""
    peer_access: bool = False
    """Whether each GPU of a node reads the memory of all others of that node."""
    wholegraph: bool = False
    """Whether pylibwholegraph is installed."""
    cugraph: bool = False
    """Whether pylibcugraph, and what joins its GPUs, is installed."""
    together: bool = False
    """Whether all ranks create the loader together (``distributed=True``), as spread rows require."""

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
        """Bytes of each GPU that may be used."""
        return int(self.gpu_memory * (1 - GPU_RESERVE))

    @property
    def host_usable(self) -> int:
        """Bytes of each node that may be used."""
        return int(self.host_memory * (1 - RESERVE))


def on_gpu(item: Item, place: Place, hardware: Hardware) -> int:
    """Return the additional bytes of each GPU that an item needs, without hot rows."""
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
    """The bytes that ``places`` (item -> place) need."""

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
        # Data that only CPUs read may remain in files; as much as fits is read into memory, the smallest first.
        for item in sorted((i for i in left if i.can_map and not i.in_memory), key=lambda item: item.nbytes):
            if self.host + item.nbytes <= hardware.host_usable:
                self.host += item.nbytes
            else:
                self.mapped.add(item.name)

    def lacking(self) -> dict[str, tuple[int, int]]:
        """Return the needed and the available bytes of each kind of memory that does not suffice."""
        needs = {
            "gpu": (self.gpu, self.hardware.gpu_usable),
            "host": (self.host, self.hardware.host_usable),
            "pinned": (self.pinned, self.pinned if self.hardware.pinnable is None else self.hardware.pinnable),
        }
        return {kind: (needed, there) for kind, (needed, there) in needs.items() if needed > there}

    def fit(self) -> bool:
        """Return whether all suffices."""
        return not self.lacking()


def reason(item: Item, place: Place, hardware: Hardware, *, asked: bool, mapped: bool, cache: int) -> str:
    """Return the reason for a place: it was ``asked`` for, it fits, or no better place does."""
    size, part = in_units(item.nbytes), in_units(on_gpu(item, place, hardware))
    gpus = "the GPU" if hardware.world_size == 1 else "each GPU"
    hot = f" {in_units(cache)} of hot rows are kept on {gpus}." if cache else ""
    if item.on_host:
        return f"{size} are sharded over the memory of all nodes, page-locked; GPUs exchange rows once per batch.{hot}"
    if place in item.resident:
        return f"{size} are {_RESIDENT[place].format(gpus=gpus)} already.{hot}"
    if place == "device":
        return f"{size} {'are asked for' if asked else 'fit'} on {gpus}."
    why = f"{size} do not fit beside the rest in the {in_units(hardware.gpu_usable)} that are usable on {gpus}"
    if asked:
        why = f"{size}, as asked"
    elif place == "host":
        why += ", nor page-locked in the memory of the node"
    home = "their file" if mapped else "the memory of the node"
    pointers = f", but for {part} of column pointers, which reside on {gpus}" if item.pointer_bytes else ""
    is_topology = item.distributed_bytes is not None
    distributed = _DISTRIBUTED[is_topology].format(part=part)
    how = {
        "sharded": f"each of {hardware.gpus_per_node} GPUs holds {part}, where the others read.",
        "distributed": f"each of {hardware.world_size} GPUs {distributed}.",
        "pinned": f"they are page-locked in {home}, where {gpus} reads{pointers}.",
        "host": f"they stay in {home}, where only the CPU reads.",
    }[place]
    if is_topology and place == "host":
        how = f"they stay in {home}; the CPU samples them and sends the samples.{_without_cugraph(item, hardware)}"
    return f"{why}: {how}{hot}"


def _without_cugraph(item: Item, hardware: Hardware) -> str:
    """Return the condition for GPUs to sample a topology that is too large for a node, in a sentence."""
    if not item.can_distribute or hardware.world_size == 1:
        return ""
    if not hardware.together:
        return " With distributed=True, cuGraph may sample it on all GPUs."
    return "" if hardware.cugraph else " With cuGraph installed, all GPUs could hold and sample it."


_DISTRIBUTED = {
    False: "holds {part}; ranks exchange rows, once per batch",
    True: "takes {part} while cuGraph builds it; all ranks then call cuGraph together",
}
"""How distributed features (``False``) and topologies (``True``) are held and read."""

_RESIDENT = {
    "device": "on {gpus}",
    "sharded": "spread over the GPUs of the node, which read each other's memory,",
    "pinned": "page-locked in the memory of the node, where {gpus} reads,",
    "host": "in the memory of the node, where only the CPU reads,",
    "distributed": "spread over the GPUs of all nodes, whose ranks exchange rows once per batch,",
}


def too_much(
    items: Mapping[str, Item], places: Mapping[str, Place], hardware: Hardware, mode: Place, auto: bool
) -> str:
    """Return what ``places``, the most modest of this mode, lack, and what would help: among it ``placement="auto"``,
    where ``auto`` finds that it fits.
    """
    remedies, meant = [], ALIASES.get(mode, mode)
    if auto:
        remedies.append("pass placement='auto', with which all fits")
    shortages, lacking = [], Needs(items, places, hardware).lacking()
    for kind, where, reserve, unit in (
        ("gpu", "on each GPU", GPU_RESERVE, "GPUs"), ("host", "in the memory of each node", RESERVE, "nodes"),
    ):  # fmt: skip
        if kind in lacking:
            needed, usable = lacking[kind]
            shortages.append(
                f"{in_units(needed)} {where}, where {in_units(usable)} are usable ({1 - reserve:.0%} of what is free)"
            )
            remedies.append(f"use {unit} with {in_units(int(needed / (1 - reserve)) + 1)} of free memory")
    if "pinned" in lacking:
        needed, limit = lacking["pinned"]
        shortages.append(f"{in_units(needed)} of page-locked memory, of which a process may have {in_units(limit)}")
        remedies.append("raise that limit")
    stuck = [item.name for item in items.values() if not item.can_map and not item.in_memory]
    if "host" in lacking and stuck and meant in ("auto", "host"):
        remedies.append(
            f"convert what cannot be mapped ({', '.join(stuck)}) with `manyhop convert` or manyhop.files.write, and "
            "leave it in its files"
        )
    if meant in ("auto", "device") and "gpu" in lacking and hardware.world_size > 1 and not hardware.together:
        remedies.append("let the GPUs hold a part each (distributed=True)")
    remedies.append("store features as float16 or bfloat16")
    return f"placement={mode!r} needs {' and '.join(shortages)}. One of these may help: {'; '.join(remedies)}."
