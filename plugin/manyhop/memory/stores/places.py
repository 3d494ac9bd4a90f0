"""Rows of a store in the memory that its user names: one mechanism for the stores of all adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop.features import BufferPool, DistributedRows, RowRequest, ShardedRows, Shards, is_pinnable, pin
from manyhop.memory.places import GRAPH_PLACES, SPREAD_PLACES, STORE_PLACES, Place, check_place
from manyhop.memory.stores.rows_of_nodes import Fill, NodeRows, PlacedRows, begin_of, part_of_rows
from manyhop.memory.stores.spread import hold, make_memory
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.ranks.world import World
from manyhop.system.progress import to_device

if TYPE_CHECKING:
    from manyhop.features import GPUExchange, WholeMemory


def check_graph_place(place: Any, *, spreads: bool = False) -> None:
    """Raise InputError for an unknown ``placement`` of a graph, or one that needs a missing GPU.

    ``spreads``: whether the edges may be spread over all ranks, ``"distributed"``.
    """
    hint = " Edges of a folder stay in its files: open it with placement='mapped'." if place == "mapped" else ""
    check_place(place, (*GRAPH_PLACES, "distributed") if spreads else GRAPH_PLACES, hint=hint)
    if place in ("device", "pinned", "sharded"):
        store_device(place, "cuda", None)


def store_device(place: Any, device: Any, timeout: float | None) -> torch.device | None:
    """Return the GPU that a store's place is on, from its user's arguments; ``None``: host memory.

    If ``device`` is ``None``, places that need a GPU are on the current one.
    """
    check_place(place, STORE_PLACES)
    if timeout is not None and place in ("process", "mapped"):
        raise InputError(f"Expected rank_timeout only if ranks share tensors, got {timeout!r}. Leave it out.")
    if timeout is not None and not timeout > 0:
        raise InputError(f"Expected a rank_timeout of more than 0 seconds, got {timeout!r}.")
    on_gpu = place in ("pinned", "device", "distributed")
    if device is None and not on_gpu:
        return None
    try:
        found = torch.device("cuda" if device is None else device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type != "cuda" or not (on_gpu or place == "sharded"):
        raise InputError(
            f"Expected device='cuda' with placement='pinned', 'device', 'sharded' or 'distributed', else None, got "
            f"placement={place!r} and device={device!r}."
        )
    return _there(found, place)


def _there(device: torch.device, place: str) -> torch.device:
    if not (device.index or 0) < torch.cuda.device_count():
        raise InputError(
            f"Expected a GPU for placement={place!r}, got {device}, and {torch.cuda.device_count()} CUDA devices are "
            "found. Keep the rows in host memory: placement='shared'."
        )
    return device


def leaves_host(place: Place, device: Any) -> bool:
    """Return whether data that a node shares moves on to GPUs or over nodes; InputError if ranks do not share it."""
    on_host = store_device(place, device, None) is None
    if place in ("process", "mapped"):
        raise InputError(f"Expected a placement that ranks share, got {place!r}. Call load() without share().")
    return not on_host or place not in ("shared", "auto")


def rows_in(place: Place, device: torch.device | None, timeout: float | None) -> NodeRows | GPURows | None:
    """Return the object that places rows on what :func:`store_device` returned; ``None`` if a store holds its input."""
    if device is not None:
        return GPURows(place, device, timeout or DEFAULT_TIMEOUT)
    return None if place in ("process", "mapped") else NodeRows(place == "sharded", timeout or DEFAULT_TIMEOUT)


def as_it_is(value: Any) -> Any:
    """Return rows that need no placement, as a store holds them: of this package, or through DLPack; else ``None``."""
    if isinstance(value, ShardedRows | DistributedRows):
        return value
    if type(value).__name__ == "WholeMemory" and type(value).__module__.startswith("manyhop."):
        return rows_of_memory(value)
    if not isinstance(value, Tensor | np.ndarray) and (
        hasattr(value, "__dlpack__") or type(value).__name__ == "PyCapsule"
    ):
        return torch.utils.dlpack.from_dlpack(value)
    return None


def rows_of_memory(memory: WholeMemory) -> Tensor | DistributedRows:
    """Return the rows of a memory over GPUs as a store holds them."""
    if memory.division.kind == "distributed":
        distributed = memory.rows()
        return hold(distributed, "device" if distributed.is_whole else "distributed")
    return hold(memory.whole, "sharded")


class GPURows(PlacedRows):
    """Place rows where GPUs read them, and gather rows that ranks exchange. ``fill`` writes to GPUs, unless pinned.

    Args:
        place: ``pinned``, ``device``, ``sharded`` or ``distributed``.
        device: the GPU of this rank.
        timeout: seconds to wait for other ranks.
    """

    def __init__(self, place: Place, device: torch.device, timeout: float) -> None:
        super().__init__("GPU store", timeout)
        self._place, self._device = place, device
        self._host = NodeRows(False, timeout)
        self._exchange: GPUExchange | None = None

    def put(self, tensor: Any, index: Any, name: str) -> Tensor | DistributedRows:
        ours, what = world.init(timeout=self._timeout), f"{self._title}, {name}"
        place = self._place_in(ours)
        if place == "pinned":
            return self._pinned(self._host.put(tensor, index, name))
        begin = begin_of(tensor, index, name, what, self._timeout, on_gpu=True)
        if place == "device":
            whole = tensor if begin is None else self._host.put(tensor, index, name)
            return hold(to_device(as_tensor(name, whole).detach(), self._device, "features"), "device")
        part = as_tensor(name, tensor)
        if begin is None:
            memory = self._memory(part.shape, part.dtype, name)
            memory.copy_from(part)
        else:
            part, num_rows = part_of_rows(part, begin, what, self._timeout)
            memory = self._memory((num_rows, *part.shape[1:]), part.dtype, name)
            memory.put(part, begin)
        return rows_of_memory(memory)

    def make(self, shape: Sequence[int], dtype: torch.dtype, name: str, fill: Fill) -> Tensor | DistributedRows:
        place = self._place_in(world.init(timeout=self._timeout))
        if place == "pinned":
            return self._pinned(self._host.make(shape, dtype, name, fill))
        if place == "device":
            whole = torch.empty(tuple(shape), dtype=dtype, device=self._device)
            fill(range(shape[0]), whole)
            return hold(whole, "device")
        memory = self._memory(shape, dtype, name)
        fill(memory.local_rows, memory.local)
        memory.finish("is filled")
        return rows_of_memory(memory)

    def exchange(self, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        if self._exchange is None:
            from manyhop.features import GPUExchange

            self._exchange = GPUExchange(self._title, timeout=self._timeout)
            world.at_shutdown(self._exchange.close)
        device = next(iter(requests)).source.rows.device
        on_gpu = [RowRequest(r.source, r.index.to(device), r.dim, r.name, r.bound) for r in requests]
        try:
            return self._exchange.gather(on_gpu, (0, next(self._calls)), pool=pool)
        finally:
            self._exchange.rest()

    def _place_in(self, ours: World) -> Place:
        """Return the place, which is each rank's GPU where that has no others to share rows with."""
        nodes = ours.num_nodes if self._place == "sharded" else 1
        return "device" if self._place in SPREAD_PLACES and ours.world_size == nodes else self._place

    def _memory(self, shape: Sequence[int], dtype: torch.dtype, name: str) -> WholeMemory:
        return make_memory(shape, dtype, self._place, name, self._timeout)

    def _pinned(self, rows: Tensor | ShardedRows) -> Tensor:
        assert isinstance(rows, Tensor)
        return hold(page_locked(rows), "pinned")


def page_locked(rows: Tensor) -> Tensor:
    """Return rows in page-locked memory: in place, unless this process alone has them and they are few."""
    if not is_pinnable(rows) and world.current().local_world_size == 1:
        return rows.pin_memory()
    pin(rows)
    return rows


class StoreExchange:
    """Gathers rows of a store that ranks exchange, outside of a loader. All ranks create and call it."""

    def __init__(self, place: NodeRows | GPURows | None) -> None:
        self._places = {} if place is None else {isinstance(place, GPURows): place}

    def __call__(self, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        """Gather rows whose sources are all sharded over nodes, or all distributed over GPUs."""
        return self.place_of(requests[0].source).exchange(requests, pool)

    def place_of(self, rows: ShardedRows | DistributedRows) -> NodeRows | GPURows:
        """Return the object that places and gathers rows like these."""
        on_gpus = isinstance(rows, DistributedRows)
        if on_gpus not in self._places:  # they were stored unchanged
            found = rows_in("distributed" if on_gpus else "sharded", rows.rows.device if on_gpus else None, None)
            assert found is not None
            self._places[on_gpus] = found
        return self._places[on_gpus]


def exchanged_on_gpus(named: Sequence[tuple[str, Any]], timeout: float) -> dict[ShardedRows, DistributedRows]:
    """Let GPUs exchange the rows that nodes hold in host memory, which is page-locked. All ranks call it.

    Returns:
        For each :class:`ShardedRows` among them, the rows that GPUs exchange: one object for all loaders.
    """
    spread = [rows for _, rows in named if isinstance(rows, ShardedRows) and not rows.is_whole]
    if not spread:
        return {}
    found = control.attempt("rows that GPUs exchange", lambda: list(map(_part_of_rank, spread)), timeout=timeout)
    return dict(zip(spread, found, strict=True))


def _part_of_rank(rows: ShardedRows) -> DistributedRows:
    if rows.part_of_rank is None:
        world, of_node = rows.world, rows.shards.rows_of(rows.world.node)
        if not _is_even(world):
            raise InputError(
                "Expected nodes with the same number of ranks, numbered consecutively, for GPUs to exchange rows of "
                f"the nodes' memory, got ranks on nodes {list(world.nodes)}. Pass device='cpu', or place the rows on "
                "GPUs: placement='distributed'."
            )
        part = Shards(rows.num_rows, world.world_size).rows_of(world.rank)
        mine = rows.rows[part.start - of_node.start : part.stop - of_node.start]
        rows.part_of_rank = DistributedRows(page_locked(mine), rows.num_rows, world, on_host=True)
    return rows.part_of_rank


def _is_even(world: World) -> bool:
    """Return whether the parts of a node's ranks together are the part of the node."""
    return world.nodes == tuple(rank * world.num_nodes // world.world_size for rank in range(world.world_size)) and (
        world.world_size % world.num_nodes == 0
    )
