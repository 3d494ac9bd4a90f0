"""The memory that a loader's GPU reads topology and features from, page-locked host memory included."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError, FeatureError
from manyhop.features import CachedRows, DistributedRows, RowRequest, ShardedRows, is_pinnable, is_pinned, pin, unpin
from manyhop.graph import Graph, PlacedGraph
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.placement import GPUPlacement, Hardware, Item, decide_gpu
from manyhop.memory.places import SPREAD_PLACES, Place
from manyhop.memory.stores.copies import Copy, is_movable
from manyhop.memory.stores.spread import (
    TOPOLOGY,
    Held,
    ResidentMemory,
    SpreadRows,
    held,
    spread_edges,
    spread_graph,
    topology_place,
)
from manyhop.ranks import control, world
from manyhop.system.arrays import Version, row_layout

Table: TypeAlias = Tensor | np.ndarray[Any, Any]

_log = logging.getLogger("manyhop")


class HostMemory:
    """Topology and features of a loader in host memory.

    Args:
        named: name and value of the user's tensors and arrays; those on a GPU are ignored.
        graph: the topology; ``None``: another sampler's.
        required: whether the user has chosen places, so that failures to page-lock are errors.
    """

    def __init__(
        self, named: Sequence[tuple[str, Table]], graph: Graph | None, device: torch.device, *, required: bool
    ) -> None:
        self._values, self._graph, self._device, self._required = dict(named), graph, device, required
        self._locked: dict[str, list[Table]] = {}
        self._placed: PlacedGraph | None = None  # for the sampler, which looks it up
        tables: dict[str, Sequence[Table]] = {name: [value] for name, value in named if _address(value)}
        if graph is not None and graph.is_made:
            placed = PlacedGraph.find(graph, device, "pinned")  # for another loader
            edges = _edges(graph if placed is None else placed.graph)
            tables[TOPOLOGY] = [table for table in edges if _address(table)]
        every = [(name, table) for name, of_name in tables.items() for table in of_name]
        on_disk = reside_in_files([_address(table) for _, table in every])
        locked = [is_pinnable(table) and is_pinned(table) for _, table in every]
        stays = {name for (name, _), file, lock in zip(every, on_disk, locked, strict=True) if lock or not file}
        self.mapped: frozenset[str] = frozenset(name for name, _ in every) - stays
        """Names of mapped tensors, whose hot pages the system caches."""
        self.pinned = sum(int(table.nbytes) for (_, table), lock in zip(every, locked, strict=True) if lock)
        """Bytes that are already page-locked."""
        self.in_memory = sum(int(table.nbytes) for name, table in every if name in stays) - self.pinned
        """Bytes that are in memory, but not page-locked."""

    def pin(self, name: str, value: Table) -> bool:
        """Page-lock a tensor; return whether the system allows it.

        Raises:
            CapacityError: the system refuses the user's placement.
        """
        try:
            pin(value)
        except CapacityError as error:
            if self._required:
                raise
            _log.warning("%s is left to the CPU, as it cannot be page-locked: %s", name, str(error))
            return False
        return True

    def lock(self, placement: GPUPlacement) -> tuple[int, str]:
        """Page-lock pinned items, the smallest first, until the system refuses; unlock items that are no longer pinned.

        Returns:
            The bytes of the placement that are page-locked, and the reason of a refusal (empty: none).
        """
        chosen = [choice.item for choice in (placement.topology, *placement.features) if choice.place == "pinned"]
        for name in self._locked.keys() - {item.name for item in chosen}:
            self._unlock(name)
        nbytes = 0
        for item in sorted(chosen, key=lambda item: item.nbytes):
            try:
                if item.store_place is None and item.name not in self._locked:
                    self._lock(item.name)
            except CapacityError as error:
                self._unlock(item.name)
                return nbytes, f"{item.name} cannot be page-locked: {error}"
            nbytes += item.nbytes - item.pointer_bytes
        return nbytes, ""

    def _lock(self, name: str) -> None:
        graph = self._graph if name == TOPOLOGY else None
        tables = [self._values[name]] if graph is None else _edges(graph)
        self._locked[name] = [table for table in tables if is_pinnable(table) and not is_pinned(table)]
        if graph is not None:
            self._placed = PlacedGraph.of(graph, self._device, "pinned")
            return
        for table in self._locked[name]:
            pin(table)

    def _unlock(self, name: str) -> None:
        if name == TOPOLOGY:
            self._placed = None
        for table in self._locked.pop(name):
            unpin(table)


def decide_and_lock(
    topology: Item,
    features: Sequence[Item],
    hardware: Hardware,
    mode: Place,
    memory: HostMemory,
    *,
    together: bool,
    timeout: float,
) -> GPUPlacement:
    """Decide the placement of topology and features, see :func:`manyhop.memory.placement.decide_gpu`.

    With ``auto``, pinned memory is page-locked at once. If the system refuses, the amount granted becomes the limit,
    and placement is decided again: the rest moves to the next best place. If ranks decide ``together``, the smallest
    limit applies. Pinned memory that ``mode`` names has only the system's limit.

    Raises:
        CapacityError: not enough memory for the user's placement.
        InputError: a placement that this machine does not support.
        RankError: ranks are late.
    """
    if mode != "auto":
        return decide_gpu(topology, features, replace(hardware, pinnable=None), mode=mode)
    while True:
        placement = decide_gpu(topology, features, hardware)
        if placement.pinned_bytes == 0:
            return placement
        locked, refused = memory.lock(placement)
        if together:
            facts = {"locked": locked, "refused": refused}
            every = control.exchange("the page-locked memory of a loader", facts, timeout=timeout)
            reasons = [f"Rank {rank}: {one['refused']}" for rank, one in enumerate(every) if one["refused"]]
            locked, refused = min(one["locked"] for one in every), next(iter(reasons), "")
        if not refused:
            return placement
        if not together or world.current_rank() == 0:
            _log.warning("What goes to the next best place: %s", refused)
        hardware = replace(hardware, pinnable=min(locked, placement.pinned_bytes - 1))


def _edges(graph: Graph) -> list[Tensor]:
    """Return the tables of edges, built if needed, without column pointers, which GPUs copy."""
    return [table for csc in graph.csc.values() for name, table in csc.made().tables().items() if name != "colptr"]


def _address(table: Table) -> int:
    """Return the address of a table in host memory; 0 if it is on a GPU, or empty."""
    if isinstance(table, Tensor):
        return table.data_ptr() if table.device.type == "cpu" and table.layout is torch.strided else 0
    return int(table.__array_interface__["data"][0]) if table.size else 0


_ON_HOST = frozenset({"pinned", "host"})


class _Resident:
    """Rows shared by all loaders of the process, and the reader of one loader.

    Args:
        value: the user's tensor.
        rows: its rows in their place.
        held: state that all loaders share.
        owner: object to hold while rows are read.
    """

    def __init__(self, value: Any, rows: Any, held: Held, owner: object = None) -> None:
        self.value, self.held, self._rows, self._owner = value, held, rows, owner
        self.reader = held.reader(rows)

    @property
    def needs_hot_rows(self) -> bool:
        """Whether rows are on the host or other GPUs, and no loader has chosen hot rows."""
        return self.held.place != "device" and not _is_cached(self.reader)

    def follow(self) -> bool:
        """Use the hot rows that another loader has chosen since. Return whether there are any."""
        if self.held.hot is None or _is_cached(self.reader):
            return False
        self.reader = self.held.reader(self._rows)
        return True


class GPUMemory:
    """The memory of one loader.

    Tensors and arrays whose place is the GPU are copied once for all loaders of the process. A copy is renewed after
    its tensor was changed in place (arrays must be replaced). Tensors spread over GPUs are also shared by all loaders;
    all ranks create them with a loader, and they never change. Tensors of a store on the GPU are read there.

    Args:
        also_there: whether tensors that are already on the GPU are also placed.
        together: whether all ranks created it, and chose hot rows of spread tensors for all loaders.
        kept_bytes: bytes of rows to cache, by name; ``None``: according to the placement.
        exchanged: for rows in the host memory of nodes, the rows by which GPUs exchange them.
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
        exchanged: Mapping[ShardedRows, DistributedRows] | None = None,
    ) -> None:
        self.device, self.placement, self._kept_bytes = device, placement, kept_bytes
        self._exchanged = exchanged or {}
        self._host, self._also_there, self._timeout, self._together = host, also_there, timeout, together
        self._places = {choice.item.name: choice.place for choice in placement.features}
        self._residents: dict[str, _Resident] = {}
        self._kept: list[Any] = []  # the tensors of ``kept_bytes``
        self._graph: PlacedGraph | None = None  # kept alive if it is spread over GPUs
        self.cached: dict[int, tuple[Version, CachedRows]] = {}
        """Version of a source when its rows were cached, and the cache, by ``id`` of the source."""

    @property
    def topology(self) -> Place:
        """The place of the topology."""
        return self.placement.topology.place

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange rows for every batch."""
        return "distributed" in self._places.values()

    @property
    def has_hot_rows(self) -> bool:
        """Whether this GPU caches hot rows of resident sources."""
        return any(_is_cached(resident.reader) for resident in self._residents.values())

    @property
    def cache_bytes(self) -> int:
        """Bytes for hot rows of the tensors for which no loader has chosen any yet."""
        there = {name for name, resident in self._residents.items() if not resident.needs_hot_rows}
        kept = self._kept_bytes
        if kept is None:
            kept = {choice.item.name: choice.cache_bytes for choice in self.placement.features}
        return sum(nbytes for name, nbytes in kept.items() if name not in there)

    def reside(self, named: Sequence[tuple[str, Any]], graph: Graph | None, resident: ResidentMemory) -> None:
        """Register the tensors of stores; spread other tensors over GPUs as placed, unless they are ``resident`` there.

        All ranks call it if tensors are still to be spread.
        """
        kept = self._kept_bytes or {}
        self._kept = [value for name, value in named if name in kept]
        for name, value in named:
            there, place = held(value), self._places.get(name)
            if there is not None:
                self._residents[name] = _Resident(value, value, there)
            elif place in SPREAD_PLACES:
                spread = resident.rows(name, place) or SpreadRows.of(value, place, name, self._timeout)
                self._residents[name] = _Resident(value, spread.rows, spread.held, spread)
        if graph is None or self.topology == "host":
            return
        if self.topology == "sharded":
            self._graph = resident.graph("sharded") or spread_graph(graph, self.device, self._timeout)
        elif self.topology == "distributed":
            self._graph = resident.graph("distributed") or spread_edges(graph, self.device, self._timeout)
        store = topology_place(graph)
        if store is not None:
            store.keep(graph, self._graph or PlacedGraph.of(graph, self.device, self.topology))

    def placed(self, name: str, value: Any, watch: Callable[[Version], None]) -> Any:
        """Return the source of an attribute's rows; call ``watch`` with versions that must remain current."""
        if isinstance(value, ShardedRows):
            value = self._exchanged.get(value, value)
        if name in self._residents:
            if self._residents[name].value is not value:
                raise FeatureError(
                    f"Expected {name} unchanged, since all loaders share its rows, got a replacement. Create a new "
                    "loader, on all ranks."
                )
            return self._residents[name].reader
        if not is_movable(value, self.device, also_there=self._also_there):
            return value
        place = self._places.get(name, self._worst())
        if place == "pinned" and is_pinnable(value) and not self._host.pin(name, value):
            place = self._places[name] = "host"
        if place == "device" or (place == "pinned" and not is_pinnable(value)):
            copy = Copy.of(value, self.device)
            watch(copy)
            return copy.there
        version, cached = self.cached.get(id(value), (None, None))
        if version is None or not version.is_current():
            return value
        watch(version)
        return cached

    def is_slow(self, request: RowRequest) -> bool:
        """Return whether rows are on the host or other GPUs, so that caching hot rows helps."""
        source = request.source
        if request.changes:
            return False
        for resident in self._residents.values():
            if source is resident.reader:
                return resident.needs_hot_rows and self._may_cache(resident.value)
        if not self._may_cache(source) or _ON_HOST.isdisjoint(self._places.values()):
            return False
        movable = is_movable(source, self.device) and request.dim == 0
        return movable and row_layout(source, request.name) is not None

    def _may_cache(self, value: Any) -> bool:
        """Return whether hot rows of a user's tensor are wanted."""
        return self._kept_bytes is None or any(value is kept for kept in self._kept)

    def cache(self, cached: dict[int, CachedRows]) -> None:
        """Read these sources, by ``id``, through caches from now on."""
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

    def caches(self, value: Any) -> bool:
        """Return whether this GPU caches hot rows of a user's tensor."""
        _, cached = self.cached.get(id(value), (None, None))
        return cached is not None and cached.hot.count > 0

    def take_cache_counts(self) -> tuple[int, int]:
        """Return the rows requested from caches, and the hits among them, since the last call."""
        every = [rows for _, rows in self.cached.values()]
        readers = [resident.reader for resident in self._residents.values()]
        every += [reader for reader in readers if isinstance(reader, CachedRows)]
        counts = [cached.take_counts() for cached in every]
        return sum(asked for asked, _ in counts), sum(found for _, found in counts)

    def take_hot_rows(self) -> None:
        """Use the hot rows of resident sources that other loaders have chosen since."""
        if any([resident.follow() for resident in self._residents.values()]):
            self.cached = dict(self.cached)  # a new object makes `Sources` outdated

    def _worst(self) -> Place:
        """Return the place of attributes added later: that of the largest attribute."""
        largest = max(self.placement.features, key=lambda choice: choice.item.nbytes, default=self.placement.topology)
        return "host" if largest.place in ("sharded", "distributed") else largest.place


def _is_cached(source: Any) -> bool:
    return isinstance(source, CachedRows) or (isinstance(source, DistributedRows) and source.hot is not None)


def row_bytes(source: Any) -> int:
    """Return the bytes of a row of a tensor, an array, or spread rows."""
    return int(math.prod(source.shape[1:]) * source.dtype.itemsize)
