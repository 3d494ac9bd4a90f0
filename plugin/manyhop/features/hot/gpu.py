"""A cache of rows on a GPU: the ones that batches ask for most often, chosen and copied once, then only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.features.gathering.gather import gather
from manyhop.features.hot.files import not_counting
from manyhop.features.layout import RowLayout, row_layout
from manyhop.features.requests import RowRequest
from manyhop.features.sources.cached import CachedRows, HotRows
from manyhop.features.sources.distributed import DistributedRows

_PIECE_BYTES = 64 << 20  # copied at once: rows that only the CPU reads pass through pinned memory


@dataclass
class _Group:
    """Tensors that are read by the same ids."""

    sources: list[Any]
    row_bytes: int  # of all of them
    visits: Tensor  # [num_rows] int32


class GPUVisits:
    """Which rows batches ask for; tensors that are read by the same ids are counted together.

    Args:
        device: the GPU that will keep rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: dict[tuple[int, ...], _Group] = {}
        self.rows = 0
        """How often a row was asked for; once per batch and index."""

    def add(self, requests: Sequence[RowRequest]) -> None:
        """Note what one batch asks of sources that a GPU reads slowly; the index may lie anywhere.

        Rows that this rank has itself of :class:`DistributedRows` do not count.

        Raises:
            InputError: a source whose rows do not lie contiguously.
        """
        by_index: dict[tuple[int, int], list[RowRequest]] = {}
        for request in requests:
            by_index.setdefault((id(request.index), len(request.source)), []).append(request)
        for (_, num_rows), together in by_index.items():
            sources = [request.source for request in together]
            group = self._groups.get(tuple(map(id, sources)))
            if group is None:
                row_bytes = sum(_layout(request).row_bytes for request in together)
                visits = torch.zeros(num_rows, dtype=torch.int32, device=self._device)
                group = self._groups[tuple(map(id, sources))] = _Group(sources, row_bytes, visits)
            ids = torch.unique(together[0].index.to(self._device).long())
            ids = ids[(ids >= 0) & (ids < num_rows)]  # others raise when batches ask for them
            if isinstance(sources[0], DistributedRows):
                mine = sources[0].shards.rows_of(sources[0].world.rank)
                ids = ids[(ids < mine.start) | (ids >= mine.stop)]
            group.visits[ids] += 1
            self.rows += ids.numel()

    def hottest(self, size: float | int, *, near: range | None = None) -> list[tuple[list[Any], Tensor]]:
        """The rows asked for most often, by tensors that are read by the same ids: ``[count] int64``, ascending.

        Args:
            size: a float, share of the rows of each tensor; an integer, bytes of all together. Of rows that are asked
                for as often, those of lower id are taken.
            near: rows that this GPU has itself.
        """
        groups = list(self._groups.values())
        counted = []
        for group in groups:
            visits = group.visits
            if near is not None:
                visits = visits.clone()
                visits[near.start : near.stop] = 0
            ids = visits.nonzero()[:, 0]
            counted.append((ids, visits[ids]))
        if isinstance(size, float):
            taken = [
                ids[_descending(visits)[: int(size * group.visits.numel())]]
                for group, (ids, visits) in zip(groups, counted, strict=True)
            ]
        else:
            taken = _fitting(counted, [group.row_bytes for group in groups], size, self._device)
        return [(group.sources, ids.sort().values) for group, ids in zip(groups, taken, strict=True)]


def keep_hot(hottest: Sequence[tuple[list[Any], Tensor]], device: torch.device) -> dict[int, CachedRows]:
    """Copy rows to the GPU.

    Args:
        hottest: sources, and which of their rows: see :meth:`GPUVisits.hottest`.
        device: where to.

    Returns:
        By ``id(source)``: what to gather from instead.

    Raises:
        CapacityError: the GPU has not enough memory left.
    """
    cached: dict[int, CachedRows] = {}
    for sources, ids in hottest:
        ids = ids.to(device)
        requests = [RowRequest(source, ids, name="the cache", bound=len(source)) for source in sources]
        needed = sum(_layout(request).row_bytes * ids.numel() for request in requests) + len(sources[0]) // 4
        require_gpu_memory(needed, device)
        hot = HotRows.of(ids, len(sources[0]))
        for source, rows in zip(sources, _copied(requests, device), strict=True):
            cached[id(source)] = CachedRows(source, hot, rows)
    return cached


def _copied(requests: Sequence[RowRequest], device: torch.device) -> list[Tensor]:
    """The rows of requests of the same ids, on the GPU."""
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


def _fitting(
    counted: Sequence[tuple[Tensor, Tensor]], widths: Sequence[int], size: int, device: torch.device
) -> list[Tensor]:
    """The ids of each group that fit, the most frequent ones of all groups first."""
    none = [torch.empty(0, dtype=torch.int64, device=device)]
    ids, visits = torch.cat(none + [ids for ids, _ in counted]), torch.cat(none + [visits for _, visits in counted])
    group = torch.cat(none + [torch.full_like(ids, g) for g, (ids, _) in enumerate(counted)])
    width = torch.cat(none + [torch.full_like(ids, n) for n, (ids, _) in zip(widths, counted, strict=True)])
    order = _descending(visits)
    order = order[width[order].cumsum(0) <= size]
    return [ids[order[group[order] == g]] for g in range(len(counted))]


def _descending(visits: Tensor) -> Tensor:
    return torch.argsort(visits, descending=True, stable=True)


def _layout(request: RowRequest) -> RowLayout:
    source = request.source.rows if isinstance(request.source, DistributedRows) else request.source
    layout = row_layout(source, request.name)
    if layout is None:
        raise InputError(f"Expected contiguous rows of {request.name}, to keep some on the GPU. Call contiguous().")
    return layout


def require_gpu_memory(needed: int, device: torch.device) -> None:
    """Raise CapacityError if a cache of so many bytes does not fit."""
    if device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed > free:
        raise CapacityError(
            f"a cache of rows needs about {needed / 2**30:.2f} GiB of GPU memory, {free / 2**30:.2f} GiB are free: "
            "make it smaller"
        )
