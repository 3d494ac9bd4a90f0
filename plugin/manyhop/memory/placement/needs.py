"""What a choice of places takes of each kind of memory."""

from __future__ import annotations

from collections.abc import Mapping

from manyhop.memory.placement.hardware import Hardware
from manyhop.memory.placement.item import GPUPlace, Item, share_of


def on_gpu(item: Item, place: GPUPlace, hardware: Hardware) -> int:
    """Bytes that an item takes of each GPU, hot rows apart, beside what is there already."""
    if place in item.there:
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

    def __init__(self, items: Mapping[str, Item], places: Mapping[str, GPUPlace], hardware: Hardware) -> None:
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
