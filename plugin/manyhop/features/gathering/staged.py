"""Rows that only the CPU reads, for a GPU: gathered into pinned memory and sent, but for those that the GPU keeps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import PinnedPool
from manyhop.features.exchange.gpu.moving import move
from manyhop.features.gathering.cpu import gather_on_cpu
from manyhop.features.kernels.hot import TILE, find_slots
from manyhop.features.requests import RowRequest
from manyhop.features.sources.cached import CachedRows
from manyhop.system.triton_launch import Kernel


@dataclass
class _Lookup:
    """Which rows of an index the CPU has to read."""

    ids: Tensor
    """``[missing]``, on the host: their numbers."""
    slots: Tensor
    """``[count] int64``: places in the cache; 0 where the row is missing. Without a cache, empty."""
    places: Tensor
    """``[missing] int32``: positions of the missing ones in the index. Without a cache, empty."""


def gather_staged(
    requests: Sequence[RowRequest], positions: Sequence[int], results: list[Any], device: torch.device, threads: int
) -> None:
    """Gather rows on the CPU into pinned memory, which torch takes back when it has been sent.

    Rows that the GPU keeps (:class:`CachedRows`) are copied there, while the CPU reads the others.

    Args:
        requests: with indices on the GPU.
        positions: which of them to answer.
        results: where to put the rows, ``[len(requests)]``.
        device: the GPU.
        threads: how many threads copy.

    Raises:
        FeatureError: a row number is out of range.
    """
    lookups: dict[tuple[int, int], _Lookup] = {}
    asked: list[RowRequest] = []
    for i in positions:
        request, cached = requests[i], _cache_of(requests[i].source, device)
        key = id(request.index), id(None if cached is None else cached.hot)
        if key not in lookups:
            lookups[key] = _look_up(request.index, cached)
        lookup = lookups[key]
        if cached is not None:
            results[i] = _kept_rows(cached, lookup.slots)
            cached.count(lookup.slots.numel(), lookup.slots.numel() - lookup.ids.numel())
        asked.append(replace(request, index=lookup.ids))
    try:
        found = gather_on_cpu(asked, _staging, threads)
    except FeatureError:  # gives the position among the missing rows
        gather_on_cpu([replace(requests[i], index=requests[i].index.cpu()) for i in positions], _staging, threads)
        raise
    for i, request, rows in zip(positions, asked, found, strict=True):
        sent = rows.to(device, non_blocking=True)
        cached = _cache_of(request.source, device)
        if cached is None:
            results[i] = sent
            continue
        places = lookups[id(requests[i].index), id(cached.hot)].places
        source, target, row_bytes = sent.data_ptr(), results[i].data_ptr(), _row_bytes(sent)
        move(source, target, places.numel(), row_bytes, device, target_rows=places.data_ptr())


def _cache_of(source: Any, device: torch.device) -> CachedRows | None:
    """Return the cache of a source, if this GPU has one."""
    if isinstance(source, CachedRows) and source.hot.count and source.rows.device == device:
        return source
    return None


def _look_up(index: Tensor, cached: CachedRows | None) -> _Lookup:
    """Find the rows of an index in a cache; waits for the GPU."""
    if cached is None:
        return _Lookup(index.cpu(), index[:0], index[:0])
    index = index.long().contiguous()
    slots, groups, count = torch.empty_like(index), cached.hot.groups.data_ptr(), index.numel()
    if count:
        programs = -(-count // int(TILE.value))
        _finder()(index.device, programs, groups, index.data_ptr(), count, cached.shape[0], slots.data_ptr())
    missing = (slots < 0).nonzero()[:, 0]
    return _Lookup(index[missing].cpu(), slots.clamp_(min=0), missing.int())


def _kept_rows(cached: CachedRows, slots: Tensor) -> Tensor:
    """Return rows ``[count, ...]``: those of the cache, and any where they are missing."""
    kept = cached.rows
    out = torch.empty((slots.numel(), *kept.shape[1:]), dtype=kept.dtype, device=kept.device)
    source, target, row_bytes = kept.data_ptr(), out.data_ptr(), _row_bytes(kept)
    move(source, target, slots.numel(), row_bytes, kept.device, source_rows=slots.data_ptr(), id_bytes=8)
    return out


def _row_bytes(rows: Tensor) -> int:
    return rows[:1].numel() * rows.element_size() if rows.shape[0] else 0


@functools.cache
def _finder() -> Kernel:
    return Kernel(find_slots, (0,) * 5, (), num_warps=4)


_staging = PinnedPool()
