"""Decide the placement of a loader's topology and features, alone or with all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.graph import Graph
from manyhop.loading.gpu.memory import GPUMemory, HostMemory, decide_and_lock, row_bytes
from manyhop.loading.options import EngineName
from manyhop.memory.placement import GPUPlacement, Hardware, Item
from manyhop.memory.places import LOADER_PLACES, SPREAD_PLACES, Place, check_place
from manyhop.memory.stores.copies import is_movable
from manyhop.memory.stores.spread import TOPOLOGY, Held, ResidentMemory, held, topology_place
from manyhop.ranks import control, cuda, world
from manyhop.sampling.engines import collective_backend


def decide_memory(
    named: list[tuple[str, Any]],
    graph: Graph | None,
    device: torch.device,
    mode: Place | None,
    *,
    together: bool,
    timeout: float,
    kept_rows: Mapping[str, int] | None = None,
    exchanged: Mapping[ShardedRows, DistributedRows] | None = None,
    engine: EngineName | None = None,
    can_distribute: bool = False,
) -> GPUMemory:
    """Decide the placement of a loader's topology and features. All ranks that create the loader ``together`` call
    this.

    Args:
        named: name and value of the user's tensors.
        graph: topology that the engine samples; ``None``: another sampler's topology, which is not moved.
        together: whether all ranks decide together.
        kept_rows: how many rows of each tensor the GPU caches, by name; ``None``: as many as its memory allows.
        exchanged: for rows in the host memory of nodes, the rows by which GPUs exchange them.
        engine: the user's engine: ``"cugraph"`` distributes the topology.
        can_distribute: whether cuGraph supports the loader's sampling.

    Raises:
        CapacityError: not enough memory for the user's placement.
        InputError: a placement that this machine does not support.
    """
    mode = mode or _mode_of_environment()
    also_there = mode in SPREAD_PLACES
    found_by = exchanged or {}
    named = [(name, found_by.get(value, value) if isinstance(value, ShardedRows) else value) for name, value in named]
    of_stores = [(*a, store) for a in named if (store := held(a[1])) is not None]
    movable = [a for a in named if held(a[1]) is None and is_movable(a[1], device, also_there=also_there)]
    resident = ResidentMemory(movable, graph, device)
    lacking = [name for name, _ in movable if "sharded" not in resident.places(name, together=False)]
    if not together:  # the environment may require that a loader of one rank spreads rows
        by_environment = mode == "sharded" == _mode_of_environment() and world.current_size() > 1
        together = by_environment and bool(lacking)
    host = HostMemory(movable, graph, device, required=(mode or "auto") != "auto")
    pinned = host.pinned + sum(value.nbytes for _, value, store in of_stores if store.place == "pinned")
    hardware = cuda.hardware(device, together=together, timeout=timeout, in_memory=host.in_memory, pinned=pinned)
    mapped = set(host.mapped)
    if together:  # all ranks decide the same by what is resident on all, and mapped on any
        facts = {"mapped": sorted(mapped), **resident.facts()}
        of_ranks = control.exchange("the memory of a loader", facts, timeout=timeout)
        mapped.update(*(facts["mapped"] for facts in of_ranks))
        resident.keep_common(of_ranks)
    else:
        _check_alone(mode, lacking)
    topology = _topology_item(
        graph, resident.places(TOPOLOGY, together=together), hardware, mapped=TOPOLOGY in mapped,
        on_all=engine == "cugraph", can_distribute=can_distribute,
    )  # fmt: skip
    items = [_item_of_store(*a, together=together) for a in of_stores]
    for name, value in movable:
        maps = name in mapped
        items.append(Item(
            name=name, nbytes=int(value.nbytes), can_map=maps, in_memory=not maps, pinned_by_each=maps,
            resident=resident.places(name, together=together),
        ))  # fmt: skip
    placement = decide_and_lock(topology, items, hardware, mode or "auto", host, together=together, timeout=timeout)
    every, kept = [*(a[:2] for a in of_stores), *movable], kept_rows
    if kept is not None:
        kept = {name: kept[name] * row_bytes(value) for name, value in every if name in kept}
    memory = GPUMemory(
        device, placement, host, also_there=also_there, timeout=timeout, together=together, kept_bytes=kept,
        exchanged=exchanged,
    )  # fmt: skip
    memory.reside(every, graph, resident)
    return memory


def _topology_item(
    graph: Graph | None,
    resident: frozenset[Place],
    hardware: Hardware,
    *,
    mapped: bool,
    on_all: bool,
    can_distribute: bool,
) -> Item:
    """Return the topology as an item to place; ``on_all``: distributed over all GPUs for the user's engine."""
    nbytes, distributed_bytes = 0, None
    if graph is not None:
        nbytes = graph.nbytes
        distributed_bytes = collective_backend().build_bytes(graph)
        if not hardware.together:
            distributed_bytes //= world.current_size()
    store = topology_place(graph)
    store_place = None if store is None else _place_of_store(store.place, resident, hardware)
    return Item(
        name=TOPOLOGY,
        nbytes=nbytes,
        can_map=mapped,
        in_memory=not mapped,
        can_shard=nbytes > 0,
        pointer_bytes=0 if graph is None else graph.pointer_bytes,
        can_distribute=can_distribute,
        distributed_bytes=distributed_bytes,
        resident=resident,
        store_place="distributed" if on_all else store_place,
    )


def reads_all(named: list[tuple[str, Any]], device: torch.device, placement: GPUPlacement) -> bool:
    """Return whether the GPU itself reads all rows of features."""
    placed = {choice.item.name for choice in placement.features if choice.place != "host"}
    return all(name in placed or (isinstance(value, Tensor) and value.device == device) for name, value in named)


def _check_alone(mode: Place | None, lacking: Sequence[str]) -> None:
    """Raise InputError if a loader of one rank needs rows, ``lacking`` here, that only all ranks can spread."""
    if mode not in SPREAD_PLACES or world.current_size() == 1:
        return
    if mode == "distributed":
        raise InputError(
            "Expected distributed=True with placement='distributed', for which all ranks exchange rows, got False. "
            "Pass distributed=True on all ranks, or placement='sharded' to read alone."
        )
    if lacking:
        raise InputError(
            "Expected rows that all ranks have spread over their GPUs for placement='sharded' with distributed=False, "
            f"got {lacking[0]}, which is not spread. Pass distributed=True on all ranks, or first create a loader over "
            "the same data with placement='sharded' and distributed=True, on all ranks."
        )


def _mode_of_environment() -> Place | None:
    """Return the default placement of ``MANYHOP_PLACEMENT``.

    Raises:
        InputError: an unknown placement.
    """
    found = os.environ.get("MANYHOP_PLACEMENT")
    return check_place(found, LOADER_PLACES, name="MANYHOP_PLACEMENT") if found else None


def _place_of_store(place: Place | None, resident: frozenset[Place], hardware: Hardware) -> Place | None:
    """Return the place of a topology for a store's placement.

    Raises:
        InputError: it must be sharded by all ranks.
    """
    if place != "sharded" or "sharded" in resident:
        return place
    if not hardware.together and world.current_size() > 1:
        raise InputError(
            "Expected a topology that all ranks have sharded over their GPUs, by the store's placement, for a loader "
            "of this rank alone, got one that is not sharded. First create a loader over the same store with all ranks "
            "(distributed=True)."
        )
    return "device" if hardware.gpus_per_node == 1 else "sharded"


def _item_of_store(name: str, value: Tensor | DistributedRows, store: Held, *, together: bool) -> Item:
    """Return the item of a store's tensor, which is not moved.

    Raises:
        InputError: ranks exchange its rows, but do not create the loader together.
    """
    if store.place == "distributed" and not together:
        raise InputError(
            f"Expected distributed=True, as {name} is distributed over the GPUs of all ranks, which exchange rows for "
            "every batch. Pass distributed=True on all ranks, or keep the rows in a store with placement='sharded'."
        )
    nbytes = len(value) * value.row_bytes if isinstance(value, DistributedRows) else value.nbytes
    return Item(
        name=name, nbytes=nbytes, can_map=False, in_memory=True, resident=frozenset({store.place}),
        store_place=store.place,
        on_host=isinstance(value, DistributedRows) and value.on_host,
    )  # fmt: skip
