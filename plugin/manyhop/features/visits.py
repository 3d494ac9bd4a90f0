"""Rows that batches request most often: counted over the first batches, then cached in faster memory.

The counts choose rows of slow memory for a GPU (:func:`keep_hot`), rows of other ranks for a GPU
(:meth:`manyhop.features.GPUExchange.keep`), and rows of other nodes for a node (:func:`keep_on_nodes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.features.buffers import BufferPool
from manyhop.features.cached_files import not_counting
from manyhop.features.exchange.host import Exchange
from manyhop.features.exchange.spread import node_memory
from manyhop.features.gathering import gather
from manyhop.features.requests import RowRequest
from manyhop.features.sources import CachedRows, HotRows, RowsInParts, ShardedRows
from manyhop.memory.sharing import share
from manyhop.ranks import control
from manyhop.system.arrays import RowLayout, row_layout

CACHE_TAG = (-2, 0)
"""Tag of the exchange that fills a cache: no epoch has it."""

_MOST_VISITS = 255
_PIECE_BYTES = 64 << 20  # copied at once: rows that only the CPU reads pass through pinned memory


@dataclass
class _Group:
    """Tensors that are read by the same ids."""

    sources: list[Any]
    row_bytes: int  # of all of them
    visits: Tensor  # [num_rows] uint8


class Visits:
    """Counts the batches that request a row; tensors that are read by the same ids are counted together.

    Args:
        device: device of the counts, a byte per row of a table.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._groups: dict[tuple[int, ...], _Group] = {}
        self.rows = 0
        """Number of rows requested, once per batch and index."""

    def add(self, requests: Sequence[RowRequest]) -> None:
        """Count the requests of one batch. Rows of :class:`RowsInParts` that this rank or node has are not counted.

        Raises:
            InputError: rows of a source are not contiguous.
        """
        by_index: dict[tuple[int, int], list[RowRequest]] = {}
        for request in requests:
            by_index.setdefault((id(request.index), len(request.source)), []).append(request)
        for (_, num_rows), together in by_index.items():
            sources = [request.source for request in together]
            group = self._groups.get(tuple(map(id, sources)))
            if group is None:
                visits = torch.zeros(num_rows, dtype=torch.uint8, device=self._device)
                group = _Group(sources, sum(_row_bytes(request) for request in together), visits)
                self._groups[tuple(map(id, sources))] = group
            ids = torch.unique(together[0].index.to(self._device).long())
            ids = ids[(ids >= 0) & (ids < num_rows)]  # others raise when batches request them
            if isinstance(sources[0], RowsInParts):
                own = sources[0].own_rows
                ids = ids[(ids < own.start) | (ids >= own.stop)]
            before = group.visits[ids]
            group.visits[ids] = before + (before < _MOST_VISITS)
            self.rows += ids.numel()

    def __call__(self, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        """Count the requests of one batch instead of an exchange; return rows of undefined content."""
        self.add(requests)
        return [pool.empty((r.index.numel(), *r.source.shape[1:]), r.source.dtype) for r in requests]

    def hottest(self, size: float | int, *, near: range | None = None) -> list[tuple[list[Any], Tensor]]:
        """Return the rows requested most often, by tensors read by the same ids: ``[count] int64``, ascending.

        Args:
            size: a float, share of the rows of each tensor; an integer, bytes of all together. Among rows with equal
                counts, lower ids precede others.
            near: rows that this GPU has itself, which are left out.
        """
        groups = list(self._groups.values())
        counted = [group.visits.nonzero()[:, 0] for group in groups]
        if near is not None:
            counted = [ids[(ids < near.start) | (ids >= near.stop)] for ids in counted]
        if isinstance(size, float):
            chosen = [
                ids[_descending(group.visits[ids])[: int(size * group.visits.numel())]]
                for group, ids in zip(groups, counted, strict=True)
            ]
        else:
            chosen = self._fitting(groups, counted, size)
        return [(group.sources, ids.sort().values) for group, ids in zip(groups, chosen, strict=True)]

    def _fitting(self, groups: Sequence[_Group], counted: Sequence[Tensor], size: int) -> list[Tensor]:
        """Return the ids of each group that fit into ``size`` bytes, the most frequent ones of all groups first."""
        none = torch.empty(0, dtype=torch.int64, device=self._device)
        visits = torch.cat([none.byte(), *(group.visits[ids] for group, ids in zip(groups, counted, strict=True))])
        number = torch.cat([none, *(torch.full_like(ids, k) for k, ids in enumerate(counted))])
        widths = torch.tensor([group.row_bytes for group in groups], dtype=torch.int64, device=self._device)
        order, ids = _descending(visits), torch.cat([none, *counted])
        order = order[widths[number[order]].cumsum(0) <= size]
        return [ids[order[number[order] == k]] for k in range(len(groups))]


def keep_hot(hottest: Sequence[tuple[list[Any], Tensor]], device: torch.device) -> dict[int, CachedRows]:
    """Copy rows to a GPU.

    Args:
        hottest: sources, and their rows to copy: see :meth:`Visits.hottest`.
        device: the GPU.

    Returns:
        By ``id(source)``: the source to gather from instead.

    Raises:
        CapacityError: the GPU has not enough memory left.
    """
    cached: dict[int, CachedRows] = {}
    for sources, ids in hottest:
        ids = ids.to(device)
        requests = [RowRequest(source, ids, name="the cache", bound=len(source)) for source in sources]
        require_gpu_memory(sum(map(_row_bytes, requests)) * ids.numel() + len(sources[0]) // 4, device)
        hot = HotRows.of(ids, len(sources[0]))
        for source, rows in zip(sources, _copies(requests, device), strict=True):
            cached[id(source)] = CachedRows(source, hot, rows)
    return cached


def keep_on_nodes(hottest: Sequence[tuple[list[ShardedRows], Tensor]], exchange: Exchange, *, timeout: float) -> None:
    """Copy rows of other nodes, chosen by each node, to memory that its ranks share. All ranks call it.

    Raises:
        RankError: another rank failed or is late.
        CapacityError: there is not enough memory.
    """
    requests, reads = [], exchange.world.local_rank == 0
    for sources, ids in hottest:
        index = ids if reads else ids[:0]
        requests += [RowRequest(source, index, name="the cache") for source in sources]
    gathered = iter(exchange.gather(requests, CACHE_TAG, pool=BufferPool(0)))
    for sources, ids in hottest:
        hot = share(lambda ids=ids, n=sources[0].num_rows: HotRows.of(ids, n), what="the index of a cache")  # type: ignore[misc]
        for source in sources:
            kept, rows = node_memory((len(ids), *source.shape[1:]), source.dtype, "a cache"), next(gathered)
            if reads:
                kept.copy_(rows)
            source.hot_rows = kept
        for source in sources:
            source.hot = hot
    control.exchange("the cache is filled", {}, timeout=timeout)


def rows_wanted(sources: Sequence[ShardedRows], size: float | int) -> int:
    """Return about how many rows a cache of this size holds (see :meth:`Visits.hottest`)."""
    if isinstance(size, float):
        return sum(int(size * source.num_rows) for source in sources)
    return size // max(1, min((source.row_bytes for source in sources), default=1))


def require_gpu_memory(needed: int, device: torch.device) -> None:
    """Raise CapacityError if a cache of this many bytes does not fit."""
    if device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed > free:
        raise CapacityError(
            f"Expected {needed / 2**30:.2f} GiB of GPU memory for a cache of rows, got {free / 2**30:.2f} GiB free. "
            "Make the cache smaller."
        )


def _copies(requests: Sequence[RowRequest], device: torch.device) -> list[Tensor]:
    """Return the rows of requests of the same ids, on the GPU."""
    ids, layouts = requests[0].index, [_layout(request) for request in requests]
    copies = [torch.empty((ids.numel(), *rows.tail), dtype=rows.dtype, device=device) for rows in layouts]
    step = max(1, _PIECE_BYTES // max(1, sum(rows.row_bytes for rows in layouts)))
    for begin in range(0, ids.numel(), step):
        piece = ids[begin : begin + step]
        with not_counting():
            found = gather(replace(request, index=piece) for request in requests)
        for copy, rows in zip(copies, found, strict=True):
            copy[begin : begin + step] = rows
    return copies


def _descending(visits: Tensor) -> Tensor:
    return torch.argsort(visits, descending=True, stable=True)


def _row_bytes(request: RowRequest) -> int:
    source = request.source
    return source.row_bytes if isinstance(source, RowsInParts) else _layout(request).row_bytes


def _layout(request: RowRequest) -> RowLayout:
    layout = row_layout(request.source, request.name)
    if layout is None:
        raise InputError(f"Expected contiguous rows of {request.name}, to keep some on the GPU. Call contiguous().")
    return layout
