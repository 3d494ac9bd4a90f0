"""What a GPU reads of a loader in host memory: in files, in memory, page-locked; and what cannot be page-locked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.features import is_pinnable, is_pinned, pin, unpin
from manyhop.graph import Graph, PlacedGraph
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.placement import GPUPlacement, Hardware, Item, decide_gpu
from manyhop.memory.places import Place
from manyhop.memory.stores.spread import TOPOLOGY
from manyhop.ranks import control, world

Table: TypeAlias = Tensor | np.ndarray[Any, Any]

_log = logging.getLogger("manyhop")


class HostMemory:
    """Topology and features of a loader as they are in host memory.

    Args:
        named: name and value of tensors and arrays of the user's; those on a GPU are left out.
        graph: the topology; ``None``: another sampler's.
        device: the GPU.
        required: whether the user has asked for places, so that memory that cannot be page-locked is an error.
    """

    def __init__(
        self, named: Sequence[tuple[str, Table]], graph: Graph | None, device: torch.device, *, required: bool
    ) -> None:
        self._values, self._graph, self._device, self._required = dict(named), graph, device, required
        self._locked: dict[str, list[Table]] = {}
        self._placed: PlacedGraph | None = None  # is kept, so that the sampler finds it
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
        """Names of what is in files, of which the system keeps in memory what is read often."""
        self.pinned = sum(int(table.nbytes) for (_, table), lock in zip(every, locked, strict=True) if lock)
        """Bytes that are page-locked already."""
        self.in_memory = sum(int(table.nbytes) for name, table in every if name in stays) - self.pinned
        """Bytes that are in memory, but not page-locked."""

    def pin(self, name: str, value: Table) -> bool:
        """Page-lock a tensor; return whether the system has let us.

        Raises:
            CapacityError: it has not, and the user has asked for it.
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
        """Page-lock what is to be, the smallest first, until the system refuses, and unlock what is not to be any more.

        Returns:
            How many bytes of the placement are page-locked; what cannot be, and why (empty: all of it is).
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
    """Decide where topology and features go, as :func:`manyhop.memory.placement.decide_gpu`.

    With ``auto``, what is to be pinned is page-locked at once. As long as the system refuses some of it, the limit is
    what it has let us lock, and all is decided anew: what is over goes to the next best place. If several ranks decide
    ``together``, the one with the least counts. Pinned memory that ``mode`` names has no limit but the system's.

    Raises:
        CapacityError: it does not fit as the user wants.
        InputError: a mode that this machine cannot have.
        RankError: ranks did not come in time.
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
    """Return the tables of edges, which are made if there are none; GPUs have copies of column pointers."""
    return [table for csc in graph.csc.values() for name, table in csc.made().tables().items() if name != "colptr"]


def _address(table: Table) -> int:
    """Return where a table begins in host memory; 0 for what is on a GPU, or empty."""
    if isinstance(table, Tensor):
        return table.data_ptr() if table.device.type == "cpu" and table.layout is torch.strided else 0
    return int(table.__array_interface__["data"][0]) if table.size else 0
