"""Where the GPU of a loader reads topology and features: decided when the loader is made, kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop import control, cuda
from manyhop.errors import FeatureError
from manyhop.features import CachedRows, DistributedRows, RowRequest, is_pinnable, pin
from manyhop.graph import Graph, PlacedGraph
from manyhop.placement import GPUMode, GPUPlace, GPUPlacement, Item, decide_gpu
from manyhop.stores.copies import Copy, Version, as_tensor, is_movable

_TOPOLOGY = "topology"


class GPUMemory:
    """The memories of one loader.

    A tensor or array in CPU memory whose place is the GPU is copied there once for all loaders of the process; a copy
    is renewed when the tensor has been changed in place (arrays have to be replaced to be noticed). Rows that are
    spread over GPUs are copied when the loader is made, by all ranks, and then stay what they are.

    Args:
        device: the GPU.
        placement: where topology and features go, the latter by name.
        also_there: whether tensors that are on the GPU already are placed, too.
        timeout: seconds to wait for other ranks.
        kept_bytes: bytes of rows to keep, by name; ``None``: as placed.
    """

    def __init__(
        self,
        device: torch.device,
        placement: GPUPlacement,
        *,
        also_there: bool,
        timeout: float,
        kept_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self.device, self.placement, self._kept_bytes = device, placement, kept_bytes
        self._also_there, self._timeout = also_there, timeout
        self._places = {choice.item.name: choice.place for choice in placement.features}
        self._spread: dict[str, tuple[Any, Any, Any]] = {}  # what the user has, the memory, what is read
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
    def cache_bytes(self) -> int:
        """Bytes for rows that are asked for often."""
        if self._kept_bytes is not None:
            return sum(self._kept_bytes.values())
        return sum(choice.cache_bytes for choice in self.placement.features)

    def spread(self, attributes: Sequence[tuple[str, Any]]) -> None:
        """Copy to the GPUs what is to be spread over them. All ranks call it."""
        for name, value in attributes:
            place = self._places.get(name)
            if place in ("sharded", "distributed"):
                from manyhop.features import WholeMemory

                rows = as_tensor(value)
                kind: Any = "continuous" if place == "sharded" else "distributed"
                memory = WholeMemory(tuple(rows.shape), rows.dtype, kind=kind, name=name, timeout=self._timeout)
                memory.copy_from(rows)
                self._spread[name] = value, memory, memory.whole if place == "sharded" else memory.rows()

    def placed(self, name: str, value: Any, watch: Callable[[Version], None]) -> Any:
        """What the rows of an attribute are read from; ``watch`` gets what must not change as long as they are."""
        if name in self._spread:
            known, _, source = self._spread[name]
            if known is not value:
                raise FeatureError(
                    f"Expected {name} to stay as it was, since its rows are spread over several GPUs, but it was "
                    "replaced. Make a new loader, on all ranks."
                )
            return self.cached[id(source)][1] if id(source) in self.cached else source
        if not is_movable(value, self.device, also_there=self._also_there):
            return value
        place = self._places.get(name, self._worst())
        if place == "pinned" and is_pinnable(value):
            pin(value)
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
        if isinstance(source, DistributedRows) or any(source is rows for _, _, rows in self._spread.values()):
            return True
        return "pinned" in self._places.values() and is_movable(source, self.device)

    def cache(self, cached: dict[int, CachedRows]) -> None:
        """From now on, read these sources through a cache."""
        self.cached = {key: (Version(rows.source), rows) for key, rows in cached.items()}

    def take_cache_counts(self) -> tuple[int, int]:
        """Rows asked for where there is a cache, and those of them that it had, since this was called before."""
        counts = [cached.take_counts() for _, cached in self.cached.values()]
        return sum(asked for asked, _ in counts), sum(found for _, found in counts)

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
    also_there = mode in ("sharded", "distributed")
    attributes = [a for a in named if is_movable(a[1], device, also_there=also_there)]
    nbytes = 0 if graph is None else graph.nbytes
    hardware = cuda.hardware(device, together=together, timeout=timeout)
    copied = {name for name, value in attributes if Copy.exists(value, device)}
    if graph is not None and PlacedGraph.exists(graph, device):
        copied.add(_TOPOLOGY)
    if together:  # all decide the same
        every = control.exchange("the copies for a loader", {"copied": sorted(copied)}, timeout=timeout)
        copied.intersection_update(*(facts["copied"] for facts in every))
    topology = Item(
        name=_TOPOLOGY,
        nbytes=nbytes,
        can_map=False,
        in_memory=True,
        can_shard=nbytes > 0,
        pointer_bytes=0 if graph is None else graph.pointer_bytes,
        on_gpu=_TOPOLOGY in copied,
    )
    items = [_item(*a, on_gpu=a[0] in copied) for a in attributes]
    placement = decide_gpu(topology, items, hardware, mode=mode or "auto")
    kept = kept_rows
    if kept is not None:
        kept = {name: kept[name] * int(value[:1].nbytes) for name, value in attributes if name in kept}
    memory = GPUMemory(device, placement, also_there=also_there, timeout=timeout, kept_bytes=kept)
    memory.spread(attributes)
    return memory


def reads_all(named: list[tuple[str, Any]], device: torch.device, placement: GPUPlacement) -> bool:
    """Whether the GPU reads all rows of features by itself: they reside there, or are placed where it reads."""
    placed = {choice.item.name for choice in placement.features if choice.place != "host"}
    return all(name in placed or (isinstance(value, Tensor) and value.device == device) for name, value in named)


def _item(name: str, value: Tensor | np.ndarray[Any, Any], *, on_gpu: bool) -> Item:
    mapped = isinstance(value, np.memmap)
    return Item(name=name, nbytes=int(value.nbytes), can_map=mapped, in_memory=True, on_gpu=on_gpu)
