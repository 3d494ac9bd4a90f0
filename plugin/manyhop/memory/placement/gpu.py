"""Placement of data that GPUs read: a copy or a part on each GPU, host memory, or batches that the CPU makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from manyhop.errors import CapacityError, InputError, MissingExtraError
from manyhop.memory.placement.host import Choice, Placement
from manyhop.memory.placement.needs import Hardware, Item, Needs, check_names, reason, too_much
from manyhop.memory.places import ALIASES, LOADER_PLACES, Place, check_place
from manyhop.system.units import in_units

CACHE_SHARE = 0.2
"""No more than this share of a feature is cached on each GPU as hot rows."""

_MOST_NAMES = 4  # in a line

# Smaller features move together: hundreds of types are decided quickly.
_ONE_BY_ONE = 12

_FOR_ALL: tuple[Place, ...] = ("device", "pinned", "host")
# Best first, for undecided items: sharded and distributed apply to features that can be divided.
_OPEN: dict[str, tuple[Place, ...]] = {
    "auto": ("device", "sharded", "pinned", "distributed", "host"),
    "sharded": ("device", "sharded"),
    "distributed": ("device", "sharded", "pinned"),
}


@dataclass(frozen=True, kw_only=True)
class GPUPlacement(Placement):
    """Decision of :func:`decide_gpu`; ``str`` describes it in sentences."""

    gpu_usable: int
    """Bytes of each GPU that are used."""
    gpu_bytes: int
    """Bytes that each GPU needs, hot rows included."""
    pinned_bytes: int
    """Bytes that each process page-locks; other processes of the node lock the same memory."""

    def summary(self) -> str:
        """Return where everything is in a line: items of a place together, with the reason of the largest.

        A topology that is not a copy on the GPU has its own reason: GPUs read it otherwise than rows.
        """
        found: dict[tuple[Place, bool], list[Choice]] = {}
        for choice in (self.topology, *self.features):
            alone = choice is self.topology and choice.place != "device"
            found.setdefault((choice.place, alone), []).append(choice)
        parts = []
        for (place, _), choices in found.items():
            names = ", ".join(choice.item.name for choice in choices[:_MOST_NAMES])
            more = f" and {len(choices) - _MOST_NAMES} more" if len(choices) > _MOST_NAMES else ""
            largest = max(choices, key=lambda choice: choice.item.nbytes)
            parts.append(f"{names}{more}: {place} ({largest.reason.rstrip('.')})")
        return "; ".join(parts)

    def _lines(self) -> list[str]:
        *lines, per_node = super()._lines()
        return [*lines, f"Needed per GPU: {in_units(self.gpu_bytes)} of {in_units(self.gpu_usable)} usable.", per_node]


def decide_gpu(topology: Item, features: Sequence[Item], hardware: Hardware, *, mode: Place = "auto") -> GPUPlacement:
    """Place topology and features for ranks that have one GPU each.

    ``auto`` copies data to each GPU if all fits. Otherwise it first shards the largest features over the GPUs of a
    node, then the topology, and pins the rest. If the memory of the node is too small, it distributes features over all
    GPUs, and the topology if cuGraph is installed, which then samples it. The CPU reads the remaining data. As few
    items as possible move at each step, the largest features first, the topology last. GPUs cache hot rows of features
    that they do not hold.

    ``device``, ``pinned`` and ``host`` place all data there, with cached hot rows only for pinned data. ``sharded`` and
    ``distributed`` apply to features that support it; other data is placed in the fastest memory.

    Args:
        topology: the tables that samplers read, in the size they have there.
        features: all other tensors, except tensors on a GPU.
        hardware: the available hardware.
        mode: places that are fixed.

    Raises:
        CapacityError: it does not fit; the message names the shortage and remedies.
        InputError: an unknown mode, or one that this hardware, or a loader made by each rank for itself, cannot have.
        MissingExtraError: ``sharded`` without pylibwholegraph.
    """
    asked = check_place(mode, LOADER_PLACES)
    mode = ALIASES.get(asked, asked)
    check_names([topology, *features])
    _check_mode(mode, hardware)
    search = _Search(topology, features, hardware, mode)
    places = search.best()
    if places is None:
        auto = mode != "auto" and _Search(topology, features, hardware, "auto").best() is not None
        raise CapacityError(too_much(search.items, search.most_modest(), hardware, asked, auto))
    return _placement(topology, features, hardware, mode, places)


def _check_mode(mode: Place, hardware: Hardware) -> None:
    if mode not in ("sharded", "distributed") or hardware.world_size == 1:
        return
    if not hardware.together:
        raise InputError(
            f"placement={mode!r} spreads rows over the GPUs of multiple ranks, which must create the loader "
            "together: pass distributed=True, or another placement."
        )
    if mode == "sharded" and hardware.gpus_per_node > 1:
        if not hardware.peer_access:
            raise InputError(
                "placement='sharded' needs GPUs that read each other's memory (peer access), which is not "
                "possible on this machine. Pass placement='distributed', which sends rows instead, or 'pinned-cuda'."
            )
        if not hardware.wholegraph:
            raise MissingExtraError("pylibwholegraph", "cu13", "placement='sharded'")


class _Search:
    """Search for the best places that a mode allows."""

    def __init__(self, topology: Item, features: Sequence[Item], hardware: Hardware, mode: Place) -> None:
        self.topology, self.hardware = topology, hardware
        self.items = {item.name: item for item in (topology, *features)}
        self.fixed: dict[str, Place] = {}
        if mode in _FOR_ALL:
            self.fixed = dict.fromkeys(self.items, mode)
        elif mode == "sharded":
            # With one GPU, scripts that request parts run unchanged: it holds all of them.
            part: Place = "device" if hardware.gpus_per_node == 1 else "sharded"
            self.fixed = {item.name: part for item in features if item.can_shard}
        elif mode == "distributed":
            part = "device" if hardware.world_size == 1 else "distributed"
            self.fixed = {item.name: part for item in features if item.can_shard}
        for item in self.items.values():
            resident = [place for place in _OPEN["auto"] if place in item.resident]
            if item.store_place is not None:
                self.fixed[item.name] = item.store_place
            elif resident and (mode == "auto" or (mode == "sharded" and "sharded" in resident)):
                self.fixed[item.name] = resident[0] if mode == "auto" else "sharded"
        open_ = sorted((i for i in features if i.name not in self.fixed), key=lambda item: item.nbytes, reverse=True)
        small = open_[_ONE_BY_ONE:]
        alike = [[i for i in small if i.can_shard], [i for i in small if not i.can_shard]]
        self.order = [*([item] for item in open_[:_ONE_BY_ONE]), *filter(None, alike)]
        """Undecided items, in the order of leaving the best places."""
        if topology.name not in self.fixed:
            self.order.append([topology])
        self.can = _available(hardware, _OPEN.get(mode, ("device",)))

    def best(self) -> dict[str, Place] | None:
        """Return the places by item; ``None`` if nothing fits."""
        for places in self._ways(self.order, self.can):
            if self._fit({**self.fixed, **places}):
                return self._promoted({**self.fixed, **places})
        return None

    def most_modest(self) -> dict[str, Place]:
        """Return the worst place of each item in this mode."""
        return {**self.fixed, **{i.name: [p for p in self.can if self._can_be(i, p)][-1] for i in chain(*self.order)}}

    def _ways(self, order: Sequence[Sequence[Item]], places: Sequence[Place]) -> Iterator[dict[str, Place]]:
        """Yield all ways to cut ``order`` into a run for each of ``places``; as few items as possible for the last."""
        worst, better = places[-1], places[:-1]
        takes = [items for items in order if all(self._can_be(item, worst) for item in items)]
        for count in range(len(takes) + 1) if better else ([len(takes)] if takes == order else []):
            taken = dict.fromkeys((item.name for item in chain(*takes[:count])), worst)
            rest = [items for items in order if items not in takes[:count]]
            for way in self._ways(rest, better) if better else [{}]:
                yield {**way, **taken}

    def _promoted(self, places: dict[str, Place]) -> dict[str, Place]:
        """Move items back to a better place if they fit there: runs were moved as a whole."""
        for item in reversed(list(chain(*self.order))):
            for place in self.can[: self.can.index(places[item.name])]:
                if self._can_be(item, place) and self._fit({**places, item.name: place}):
                    places = {**places, item.name: place}
                    break
        return places

    def _can_be(self, item: Item, place: Place) -> bool:
        if place == "distributed":
            return item.can_shard and (item is not self.topology or (item.can_distribute and self.hardware.cugraph))
        return place != "sharded" or item.can_shard

    def _fit(self, places: dict[str, Place]) -> bool:
        return Needs(self.items, places, self.hardware).fit()


def _available(hardware: Hardware, places: Sequence[Place]) -> list[Place]:
    """Return the ``places`` that this hardware has, best first."""
    several = hardware.together and hardware.world_size > 1
    peers = several and hardware.gpus_per_node > 1 and hardware.peer_access and hardware.wholegraph
    # Inside a node of peers, distributed rows need as much memory as sharded ones.
    has = {"sharded": peers, "distributed": several and not (peers and hardware.num_nodes == 1)}
    return [place for place in places if has.get(place, True)]


def _placement(
    topology: Item, features: Sequence[Item], hardware: Hardware, mode: Place, places: Mapping[str, Place]
) -> GPUPlacement:
    items = {item.name: item for item in (topology, *features)}
    needs = Needs(items, places, hardware)
    without: set[Place] = {"device", "host"} if mode == "host" else {"device"}
    cached = [i for i in features if i.can_shard and places[i.name] not in without]
    room, total = hardware.gpu_usable - needs.gpu, sum(item.nbytes for item in cached)
    caches = {i.name: min(int(i.nbytes * CACHE_SHARE), room * i.nbytes // max(total, 1)) for i in cached}

    def choose(item: Item) -> Choice:
        place, cache = places[item.name], caches.get(item.name, 0)
        asked = item.store_place is not None or (mode != "auto" and (mode in _FOR_ALL or place == mode))
        why = reason(item, place, hardware, asked=asked, mapped=item.name in needs.mapped, cache=cache)
        return Choice(item=item, place=place, cache_bytes=cache, reason=why)

    return GPUPlacement(
        topology=choose(topology),
        features=tuple(choose(item) for item in features),
        gpu_usable=hardware.gpu_usable,
        gpu_bytes=needs.gpu + sum(caches.values()),
        host_usable=hardware.host_usable,
        host_bytes=needs.host,
        pinned_bytes=needs.pinned,
    )
