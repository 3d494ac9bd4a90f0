"""Where the GPU of a loader reads topology and features: decided when the loader is made, kept up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from manyhop import control, cuda, world
from manyhop.errors import FeatureError, InputError
from manyhop.features import CachedRows, DistributedRows, RowRequest, is_pinnable
from manyhop.graph import Graph, PlacedGraph
from manyhop.loading.gpu.pinning import HostMemory, decide_and_lock
from manyhop.placement import GPUMode, GPUPlace, GPUPlacement, Hardware, Item
from manyhop.stores.copies import Copy, Version, is_movable
from manyhop.stores.spread import SPREAD_PLACES, TOPOLOGY, Found, Held, SpreadRows, held, spread_graph, topology_place


class _Resident:
    """Rows that are in their place for all loaders of the process, and how one of them reads them.

    Args:
        value: what the user has.
        rows: where its rows are.
        held: what all loaders know of them.
        owner: is kept as long as they are read.
    """

    def __init__(self, value: Any, rows: Any, held: Held, owner: object = None) -> None:
        self.value, self.held, self._rows, self._owner = value, held, rows, owner
        self.reader = held.reader(rows)

    @property
    def wants_hot_rows(self) -> bool:
        """Whether rows come from the host or other GPUs, and no loader has chosen any that this GPU keeps."""
        return self.held.place != "device" and not is_cached(self.reader)

    def follow(self) -> bool:
        """Read the hot rows that another loader has chosen since; return whether there are any."""
        if self.held.hot is None or is_cached(self.reader):
            return False
        self.reader = self.held.reader(self._rows)
        return True


class GPUMemory:
    """The memories of one loader.

    A tensor or array in CPU memory whose place is the GPU is copied there once for all loaders of the process; a copy
    is renewed when the tensor has been changed in place (arrays have to be replaced to be noticed). What is spread over
    GPUs is also there once for all loaders; it is made with a loader, by all ranks, and then stays what it is. What a
    store holds in a place of the GPU's is read there.

    Args:
        device: the GPU.
        placement: where topology and features go, the latter by name.
        host: topology and features in host memory.
        also_there: whether tensors that are on the GPU already are placed, too.
        timeout: seconds to wait for other ranks.
        together: whether all ranks made it, so that they have chosen hot rows of what is spread, for all loaders.
        kept_bytes: bytes of rows to keep, by name; ``None``: as placed.
    """

    def __init__(
        self,
        device: torch.device,
        placement: GPUPlacement,
        host: HostMemory,
        *,
        also_there: bool,
        timeout: float,
        together: bool = False,
        kept_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self.device, self.placement, self._kept_bytes = device, placement, kept_bytes
        self._host, self._also_there, self._timeout, self._together = host, also_there, timeout, together
        self._places = {choice.item.name: choice.place for choice in placement.features}
        self._residents: dict[str, _Resident] = {}
        self._graph: PlacedGraph | None = None  # is kept, where it is spread over GPUs
        self.cached: dict[int, tuple[Version, CachedRows]] = {}
        """By the ``id`` of the source: how it was when its rows were kept, and what is read in its place."""

    @property
    def topology(self) -> GPUPlace:
        """The place of the tables that the sampler reads."""
        return self.placement.topology.place

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange rows for every batch."""
        return "distributed" in self._places.values()

    @property
    def has_hot_rows(self) -> bool:
        """Whether this GPU keeps rows of what is spread."""
        return any(is_cached(resident.reader) for resident in self._residents.values())

    @property
    def cache_bytes(self) -> int:
        """Bytes for rows that are asked for often, of which no other loader has chosen any yet."""
        there = {name for name, resident in self._residents.items() if not resident.wants_hot_rows}
        kept = self._kept_bytes
        if kept is None:
            kept = {choice.item.name: choice.cache_bytes for choice in self.placement.features}
        return sum(nbytes for name, nbytes in kept.items() if name not in there)

    def reside(self, named: Sequence[tuple[str, Any]], graph: Graph | None, found: Found) -> None:
        """Note what stores hold, and spread over the GPUs what is to be, unless it is ``found`` there.

        All ranks call it, if anything is to be spread that is not.
        """
        for name, value in named:
            there, place = held(value), self._places.get(name)
            if there is not None:
                self._residents[name] = _Resident(value, value, there)
            elif place in SPREAD_PLACES:
                spread = found.rows(name, place) or SpreadRows.of(value, place, name, self._timeout)
                self._residents[name] = _Resident(value, spread.rows, spread.held, spread)
        if graph is None or self.topology == "host":
            return
        if self.topology == "sharded":
            self._graph = found.graph or spread_graph(graph, self.device, self._timeout)
        store = topology_place(graph)
        if store is not None:
            store.keep(graph, self._graph or PlacedGraph.of(graph, self.device, self.topology))

    def placed(self, name: str, value: Any, watch: Callable[[Version], None]) -> Any:
        """What the rows of an attribute are read from; ``watch`` gets what must not change as long as they are."""
        if name in self._residents:
            if self._residents[name].value is not value:
                raise FeatureError(
                    f"Expected {name} to stay as it was, since its rows are in a place of their own, for all loaders, "
                    "but it was replaced. Make a new loader, on all ranks."
                )
            return self._residents[name].reader
        if not is_movable(value, self.device, also_there=self._also_there):
            return value
        place = self._places.get(name, self._worst())
        if place == "pinned" and is_pinnable(value):
            if not self._host.pin(name, value):
                self._places[name] = "host"
                return value
            version, cached = self.cached.get(id(value), (None, None))
            if version is None or not version.is_current():
                return value
            watch(version)
            return cached
        if place not in ("device", "pinned"):
            return value
        copy = Copy.of(value, self.device)
        watch(copy)
        return copy.there

    def is_slow(self, request: RowRequest) -> bool:
        """Whether rows come from the host or from other GPUs, so that it is worth while to keep some of them."""
        source = request.source
        if self._kept_bytes is not None and request.name not in self._kept_bytes:
            return False
        for resident in self._residents.values():
            if source is resident.reader:
                return resident.wants_hot_rows
        return "pinned" in self._places.values() and is_movable(source, self.device)

    def cache(self, cached: dict[int, CachedRows]) -> None:
        """From now on, read these sources through a cache."""
        for resident in self._residents.values():
            reader = resident.reader
            if id(reader) in cached:
                reader = resident.reader = cached[id(reader)]
                chosen = reader.hot, reader.rows
            elif isinstance(reader, DistributedRows) and reader.hot is not None and reader.hot_rows is not None:
                chosen = reader.hot, reader.hot_rows
            else:
                continue
            if self._together:
                resident.held.hot = chosen
        readers = [resident.reader for resident in self._residents.values()]
        theirs = {id(reader.source) for reader in readers if isinstance(reader, CachedRows)}
        self.cached = {key: (Version(rows.source), rows) for key, rows in cached.items() if key not in theirs}

    def take_cache_counts(self) -> tuple[int, int]:
        """Rows asked for where there is a cache, and those of them that it had, since this was called before."""
        every = [rows for _, rows in self.cached.values()]
        readers = [resident.reader for resident in self._residents.values()]
        every += [reader for reader in readers if isinstance(reader, CachedRows)]
        counts = [cached.take_counts() for cached in every]
        return sum(asked for asked, _ in counts), sum(found for _, found in counts)

    def take_hot_rows(self) -> None:
        """Use the hot rows of what resides, where another loader has chosen them since this one was made."""
        if any([resident.follow() for resident in self._residents.values()]):
            self.cached = dict(self.cached)  # sources are found anew

    def _worst(self) -> GPUPlace:
        """For attributes that came later: where the largest of the others is, as far as there is one."""
        largest = max(self.placement.features, key=lambda choice: choice.item.nbytes, default=self.placement.topology)
        return "host" if largest.place in ("sharded", "distributed") else largest.place


class Sources:
    """Places attributes, and knows whether what their rows are read from still is what the user has. Keeps copies."""

    def __init__(self, memory: GPUMemory) -> None:
        self._memory, self._cached = memory, memory.cached
        self._watched: list[Version] = []

    def __call__(self, name: str, value: Any) -> Any:
        """What the rows of an attribute are read from."""
        return self._memory.placed(name, value, self._watched.append)

    def versions(self) -> list[tuple[Tensor, int]]:
        """Return the tensors of which there are copies, and the versions that were copied."""
        return [version.of_tensor for version in self._watched if version.of_tensor is not None]

    def is_current(self) -> bool:
        """Whether there is no other cache, and no tensor of which there are copies has been changed in place."""
        return self._cached is self._memory.cached and all([version.is_current() for version in self._watched])


def decide_memory(
    named: list[tuple[str, Any]],
    graph: Graph | None,
    device: torch.device,
    mode: GPUMode | None,
    *,
    together: bool,
    timeout: float,
    kept_rows: Mapping[str, int] | None = None,
) -> GPUMemory:
    """Decide where a loader's topology and features reside. All ranks that make the loader ``together`` call this.

    Args:
        named: name and value of the user's tensors.
        graph: what the engine samples; ``None``: another sampler's topology, which stays where it is.
        device: this rank's GPU.
        mode: the user's ``placement``.
        together: whether all ranks decide together.
        timeout: seconds to wait for them.
        kept_rows: how many rows of which tensors the GPU keeps, by name; ``None``: as its memory allows.

    Raises:
        CapacityError: it does not fit as the user wants.
        InputError: a mode that this machine cannot have.
    """
    mode = mode or mode_of_environment()
    also_there = mode in ("sharded", "distributed")
    kept_there = [a for a in named if held(a[1]) is not None]
    attributes = [a for a in named if held(a[1]) is None and is_movable(a[1], device, also_there=also_there)]
    nbytes = 0 if graph is None else graph.nbytes
    found = Found(attributes, graph, device)
    if not together:
        together = _asks_all(mode, [name for name, _ in attributes], found)
    host = HostMemory(attributes, graph, device, required=(mode or "auto") != "auto")
    pinned = host.pinned + sum(value.nbytes for _, value in kept_there if _is_pinned_by_store(value))
    hardware = cuda.hardware(device, together=together, timeout=timeout, in_memory=host.in_memory, pinned=pinned)
    mapped = set(host.mapped)
    copied = {name for name, value in attributes if Copy.exists(value, device)}
    if graph is not None and PlacedGraph.find(graph, device, "device") is not None:
        copied.add(TOPOLOGY)
    if together:  # all decide the same
        facts = {"copied": sorted(copied), "mapped": sorted(mapped), "spread": found.numbers()}
        every = control.exchange("the memory of a loader", facts, timeout=timeout)
        copied.intersection_update(*(facts["copied"] for facts in every))
        mapped.update(*(facts["mapped"] for facts in every))
        found.keep([facts["spread"] for facts in every])
    else:
        _check_alone(mode, [name for name, _ in attributes], found)

    def there(name: str) -> frozenset[GPUPlace]:
        places = found.places(name, together=together)
        return places | {"device"} if name in copied else places

    store = topology_place(graph)
    topology = Item(
        name=TOPOLOGY,
        nbytes=nbytes,
        can_map=TOPOLOGY in mapped,
        in_memory=TOPOLOGY not in mapped,
        can_shard=nbytes > 0,
        pointer_bytes=0 if graph is None else graph.pointer_bytes,
        there=there(TOPOLOGY),
        held=None if store is None else _topology_held(store.place, there(TOPOLOGY), hardware),
    )
    items = [_held_item(*a, together=together) for a in kept_there]
    items += [_item(*a, there(a[0]), mapped=a[0] in mapped) for a in attributes]
    placement = decide_and_lock(topology, items, hardware, mode or "auto", host, together=together, timeout=timeout)
    kept = kept_rows
    if kept is not None:
        kept = {name: kept[name] * row_bytes(value) for name, value in kept_there + attributes if name in kept}
    memory = GPUMemory(
        device, placement, host, also_there=also_there, timeout=timeout, together=together, kept_bytes=kept
    )
    memory.reside(kept_there + attributes, graph, found)
    return memory


def reads_all(named: list[tuple[str, Any]], device: torch.device, placement: GPUPlacement) -> bool:
    """Whether the GPU reads all rows of features by itself: they reside there, or are placed where it reads."""
    placed = {choice.item.name for choice in placement.features if choice.place != "host"}
    return all(name in placed or (isinstance(value, Tensor) and value.device == device) for name, value in named)


def is_cached(source: Any) -> bool:
    """Return whether this GPU keeps some of the rows of a source that it reads elsewhere."""
    return isinstance(source, CachedRows) or (isinstance(source, DistributedRows) and source.hot is not None)


def _check_alone(mode: GPUMode | None, names: Sequence[str], found: Found) -> None:
    """Raise InputError where a loader that each rank makes for itself is to read what only all ranks can make."""
    if mode not in SPREAD_PLACES or world.current_size() == 1:
        return
    lacking = [name for name in names if "sharded" not in found.places(name, together=False)]
    if mode == "distributed":
        raise InputError(
            "placement='distributed' has all ranks exchange rows for every batch, so they have to make the loader "
            "together: pass distributed=True on all ranks, or placement='sharded' for one that reads alone."
        )
    if lacking:
        raise InputError(
            "placement='sharded' with distributed=False reads what all ranks have spread over their GPUs before, got "
            f"{lacking[0]}, which is not. Make a loader over the same data with placement='sharded' and "
            "distributed=True first, on all ranks, and keep it; or pass distributed=True here, on all ranks."
        )


def row_bytes(value: Any) -> int:
    """Return the bytes of a row of a tensor, an array, or rows that are spread over ranks."""
    return int(value.row_bytes if isinstance(value, DistributedRows) else value[:1].nbytes)


def mode_of_environment() -> GPUMode | None:
    """Return the placement that ``MANYHOP_PLACEMENT`` names for loaders that name none.

    Raises:
        InputError: it names none.
    """
    found = os.environ.get("MANYHOP_PLACEMENT") or None
    for mode in get_args(GPUMode):
        if found == mode:
            return cast(GPUMode, mode)
    if found is not None:
        raise InputError(f"Expected MANYHOP_PLACEMENT to be one of {list(get_args(GPUMode))}, got {found!r}.")
    return None


def _asks_all(mode: GPUMode | None, names: Sequence[str], found: Found) -> bool:
    """Whether a loader that each rank makes for itself spreads rows all the same, as the environment says."""
    if mode != "sharded" or mode_of_environment() != mode or world.current_size() == 1:
        return False
    return any("sharded" not in found.places(name, together=False) for name in names)


def _topology_held(place: GPUPlace | None, there: frozenset[GPUPlace], hardware: Hardware) -> GPUPlace | None:
    """Return where a topology goes that a store wants in a place.

    Raises:
        InputError: it is to be sharded, which takes all ranks.
    """
    if place != "sharded" or "sharded" in there:
        return place
    if not hardware.together and world.current_size() > 1:
        raise InputError(
            "Expected a topology that all ranks have sharded over their GPUs before, as the store's placement says, "
            "for a loader that this rank makes alone, got one that is not. Make a loader over the same store with all "
            "ranks first (distributed=True)."
        )
    return "device" if hardware.gpus_per_node == 1 else "sharded"


def _is_pinned_by_store(value: Tensor | DistributedRows) -> bool:
    there = held(value)
    return there is not None and there.place == "pinned"


def _held_item(name: str, value: Tensor | DistributedRows, *, together: bool) -> Item:
    """Return what a store holds, which stays in its place.

    Raises:
        InputError: ranks exchange its rows, but do not make the loader together.
    """
    there = held(value)
    assert there is not None
    if there.place == "distributed" and not together:
        raise InputError(
            f"Expected distributed=True, as {name} is distributed over the GPUs of all ranks, which exchange rows for "
            "every batch. Pass distributed=True on all ranks, or keep the rows in a store with placement='sharded'."
        )
    nbytes = len(value) * value.row_bytes if isinstance(value, DistributedRows) else value.nbytes
    places = frozenset({there.place})
    return Item(name=name, nbytes=nbytes, can_map=False, in_memory=True, there=places, held=there.place)


def _item(name: str, value: Tensor | np.ndarray[Any, Any], there: frozenset[GPUPlace], *, mapped: bool) -> Item:
    return Item(name=name, nbytes=int(value.nbytes), can_map=mapped, in_memory=not mapped, there=there)
