"""What the GPU of a loader reads topology and features from, kept up to date."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import CachedRows, DistributedRows, RowRequest, is_pinnable
from manyhop.graph import Graph, PlacedGraph
from manyhop.loading.gpu.pinning import HostMemory
from manyhop.placement import GPUPlace, GPUPlacement
from manyhop.stores.copies import Copy, Version, is_movable
from manyhop.stores.spread import SPREAD_PLACES, Found, Held, SpreadRows, held, spread_graph, topology_place


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
        return self.held.place != "device" and not _is_cached(self.reader)

    def follow(self) -> bool:
        """Read the hot rows that another loader has chosen since; return whether there are any."""
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
        return any(_is_cached(resident.reader) for resident in self._residents.values())

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


def _is_cached(source: Any) -> bool:
    """Return whether this GPU keeps some of the rows of a source that it reads elsewhere."""
    return isinstance(source, CachedRows) or (isinstance(source, DistributedRows) and source.hot is not None)


def row_bytes(source: Any) -> int:
    """Return the bytes of a row of a tensor, an array, or rows that are spread over ranks."""
    return int(math.prod(source.shape[1:]) * source.dtype.itemsize)
