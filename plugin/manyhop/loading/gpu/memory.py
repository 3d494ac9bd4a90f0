"""The memories that a loader's GPU reads topology and features from, kept up to date."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import CachedRows, DistributedRows, RowRequest, ShardedRows, is_pinnable
from manyhop.features.requests import row_layout
from manyhop.graph import Graph, PlacedGraph
from manyhop.loading.gpu.pinning import HostMemory
from manyhop.memory.placement import GPUPlacement
from manyhop.memory.places import SPREAD_PLACES, Place
from manyhop.memory.stores.copies import Copy, Version, is_movable
from manyhop.memory.stores.spread import (
    Held,
    ResidentMemory,
    SpreadRows,
    held,
    spread_edges,
    spread_graph,
    topology_place,
)

_ON_HOST = frozenset({"pinned", "host"})


class _Resident:
    """Rows that reside in their place for all loaders of the process, and the reader of one loader.

    Args:
        value: the user's tensor.
        rows: its rows in their place.
        held: state that all loaders share.
        owner: object to keep alive while rows are read.
    """

    def __init__(self, value: Any, rows: Any, held: Held, owner: object = None) -> None:
        self.value, self.held, self._rows, self._owner = value, held, rows, owner
        self.reader = held.reader(rows)

    @property
    def needs_hot_rows(self) -> bool:
        """Whether rows come from the host or other GPUs, and no loader has chosen hot rows."""
        return self.held.place != "device" and not _is_cached(self.reader)

    def follow(self) -> bool:
        """Use the hot rows that another loader has chosen since. Return whether there are any."""
        if self.held.hot is None or _is_cached(self.reader):
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
        exchanged: of rows that nodes hold in host memory: what GPUs exchange them by.
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
        self._graph: PlacedGraph | None = None  # kept alive if it is spread over GPUs
        self.cached: dict[int, tuple[Version, CachedRows]] = {}
        """By ``id`` of the source: its version when rows were cached, and the cache."""

    @property
    def topology(self) -> Place:
        """The place of the tables that the sampler reads."""
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
        """Register the contents of stores; spread tensors over GPUs as placed, unless they are ``resident`` there.

        All ranks call it if anything is still to be spread.
        """
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
        """Return the source of an attribute's rows; call ``watch`` with versions that must stay current meanwhile."""
        if isinstance(value, ShardedRows):
            value = self._exchanged.get(value, value)
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
        """Return whether rows come from the host or from other GPUs, so that a cache of hot rows pays."""
        source = request.source
        if request.changes:
            return False
        if self._kept_bytes is not None and request.name not in self._kept_bytes:
            return False
        for resident in self._residents.values():
            if source is resident.reader:
                return resident.needs_hot_rows
        if _ON_HOST.isdisjoint(self._places.values()) or not is_movable(source, self.device):
            return False
        return request.dim == 0 and row_layout(source, request.name) is not None

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
        """Return whether this GPU caches hot rows of a tensor of the user's."""
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
        """Return the place of attributes that were added later: that of the largest attribute."""
        largest = max(self.placement.features, key=lambda choice: choice.item.nbytes, default=self.placement.topology)
        return "host" if largest.place in ("sharded", "distributed") else largest.place


class Sources:
    """Place attributes, keep their copies, and detect changes of the user's tensors."""

    def __init__(self, memory: GPUMemory) -> None:
        self._memory, self._cached = memory, memory.cached
        self._watched: list[Version] = []

    def __call__(self, name: str, value: Any) -> Any:
        """Return the source of an attribute's rows."""
        return self._memory.placed(name, value, self._watched.append)

    def versions(self) -> list[tuple[Tensor, int]]:
        """Return the copied tensors with their versions at the time."""
        return [version.of_tensor for version in self._watched if version.of_tensor is not None]

    def is_current(self) -> bool:
        """Return whether caches are the same, and no copied tensor has been changed in place."""
        return self._cached is self._memory.cached and all([version.is_current() for version in self._watched])


def _is_cached(source: Any) -> bool:
    """Return whether this GPU caches rows of a source."""
    return isinstance(source, CachedRows) or (isinstance(source, DistributedRows) and source.hot is not None)


def row_bytes(source: Any) -> int:
    """Return the bytes of a row of a tensor, an array, or rows that are spread over ranks."""
    return int(math.prod(source.shape[1:]) * source.dtype.itemsize)
