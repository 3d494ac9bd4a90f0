"""Gather rows by index on a GPU: one launch for all tensors that its kernels can read."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyhop.features import _pinned
from manyhop.features._cached import CachedRows
from manyhop.features._checks import Checks, Suspect
from manyhop.features._gather import RowRequest, gather, index_by_itself
from manyhop.features._gpu._launch import Kernel
from manyhop.features._gpu.kernels.gather import COLUMNS, FIELDS, gather_rows
from manyhop.features._layout import RowLayout, row_layout

_TILE = 256  # words of 16 bytes of a program
_TILES = {
    16: _TILE,
    8: 2 * _TILE,
    4: 4 * _TILE,
    2: 4 * _TILE,
    1: 4 * _TILE,
}  # by bytes of a word, as in the kernel
_NUM_WARPS = 4
_SIZES = (1, 4, 16)  # requests of a launch; a kernel each
_MOST_PLANS = 256
_NEVER = 1 << 62  # the first program of a request that is not there
_LONGEST_ROW = 1 << 30  # bytes


def gather_on_gpu(
    requests: Sequence[RowRequest], device: torch.device, *, threads: int = 1, checks: Checks | None = None
) -> list[Any]:
    """What :func:`manyhop.features.gather` does where all indices lie on one GPU.

    Args:
        requests: with checked indices.
        device: where the indices lie; a CPU where triton interprets its kernels.
        threads: how many threads copy rows that the GPU cannot read.
        checks: told of row numbers that the kernel checks; ``None``: wait for it here.
    """
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            return gather_on_gpu(requests, device, threads=threads, checks=checks)
    plan = _plan_for(requests, device)
    results: list[Any] = [None] * len(requests)
    suspects = [launch(requests, results) for launch in plan.launches]
    if plan.staged:
        _through_staging(requests, plan.staged, results, device, threads)
    for i in plan.others:
        rows = index_by_itself(requests[i], requests[i].index)
        results[i] = rows.to(device) if isinstance(rows, Tensor) else rows
    ask, checks = checks is None, Checks() if checks is None else checks
    for suspect in suspects:
        if suspect is not None:
            checks.add(suspect)
    if ask:
        checks.ask(wait=True)
    return results


@dataclass(frozen=True)
class _Rows:
    """How a kernel reads and writes the rows of one source."""

    position: int  # in the list of requests
    num_rows: int
    words: int  # of a row
    tile: int  # words of a program
    tail: tuple[int, ...]
    dtype: torch.dtype


class _Launch:
    """One launch: up to 16 sources."""

    def __init__(self, sources: Sequence[tuple[_Rows, list[int]]], device: torch.device) -> None:
        size = next(n for n in _SIZES if n >= len(sources))
        table = [entry for _, entry in sources]
        mixed, hot = any(entry[4] != 16 for entry in table), any(entry[6] for entry in table)
        self._rows, self._device = [rows for rows, _ in sources], device
        self._table = torch.tensor(table, dtype=torch.int64).to(device)
        self._address = self._table.data_ptr()
        self._padding = (0, 0, 0, _NEVER) * (size - len(table))
        self._kernels = [_kernel(size, mixed, check, hot) for check in (False, True)]
        for kernel in self._kernels:
            kernel.prepare(device)

    def __call__(self, requests: Sequence[RowRequest], results: list[Any]) -> Suspect | None:
        """Enqueue the copies. Returns what has still to be checked."""
        calls: list[int] = []
        device, programs, check = self._device, 0, False
        for rows in self._rows:
            request = requests[rows.position]
            index = request.index.contiguous()
            count = index.shape[0]
            out = results[rows.position] = torch.empty(count, *rows.tail, dtype=rows.dtype, device=device)
            calls += (index.data_ptr(), count, out.data_ptr(), programs)
            programs += -(-count * rows.words // rows.tile)
            check = check or request.bound is None or request.bound > rows.num_rows
        if programs == 0:
            return None
        calls += self._padding
        if not check:
            self._kernels[False](device, programs, self._address, tuple(calls), 0)
            return None
        flag = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._kernels[True](device, programs, self._address, tuple(calls), flag.data_ptr())
        done = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        return Suspect(flag, done, [(requests[rows.position], rows.num_rows) for rows in self._rows])


class _Plan:
    """What is the same each time when rows are gathered from the same sources."""

    def __init__(self, requests: Sequence[RowRequest], device: torch.device) -> None:
        self.generation = _pinned.generation()
        self.staged: list[int] = []  # rows that the GPU cannot read
        self.others: list[int] = []  # sources that index themselves
        self._seen = [_seen(request.source) for request in requests]
        sources: list[tuple[_Rows, list[int]]] = []
        for i, request in enumerate(requests):
            source = request.source.source if isinstance(request.source, CachedRows) else request.source
            layout = row_layout(source, request.name) if request.dim == 0 else None
            if layout is None or not 0 < layout.row_bytes <= _LONGEST_ROW:
                self.others.append(i)
            elif layout.device == device or (layout.device.type == "cpu" and _pinned.is_pinned(source)):
                sources.append(_entry(i, request, layout))
            elif layout.device.type == "cpu":
                self.staged.append(i)
            else:
                self.others.append(i)
        most = _SIZES[-1]
        self.launches = [_Launch(sources[k : k + most], device) for k in range(0, len(sources), most)]

    def fits(self, requests: Sequence[RowRequest]) -> bool:
        """Are these the sources that it was made for, and are they where they were?"""
        if self.generation != _pinned.generation():
            return False
        for (ref, address, shape), request in zip(self._seen, requests, strict=True):
            source = request.source
            if ref() is not source:
                return False
            moved = shape is not None and (source.data_ptr() != address or source.shape != shape)
            if moved or (shape is not None and source.requires_grad):
                return False
        return True


def _seen(source: Any) -> tuple[Any, int, torch.Size | None]:
    """A source as it is when a plan is made: a weak reference to it, and where it lies."""
    try:
        ref: Any = weakref.ref(source)
    except TypeError:  # indexes itself, so nothing of it is in a plan
        return (lambda: source), 0, None
    plain = isinstance(source, Tensor) and source.layout is torch.strided
    return ref, source.data_ptr() if plain else 0, source.shape if plain else None


def _entry(position: int, request: RowRequest, layout: RowLayout) -> tuple[_Rows, list[int]]:
    """What the host and what the kernel has to know of a source."""
    word = math.gcd(16, layout.address, layout.stride, layout.row_bytes)
    words = layout.row_bytes // word
    wide = request.index.dtype == torch.int64
    entry = [layout.address, layout.stride, layout.num_rows, words, word, wide, 0, 0, 0]
    if isinstance(request.source, CachedRows) and request.source.hot.count:
        cached = request.source
        entry[6:] = cached.hot.groups.data_ptr(), cached.rows.data_ptr(), cached.counts.data_ptr()
    assert len(entry) == COLUMNS.value
    return _Rows(position, layout.num_rows, words, _TILES[word], layout.tail, layout.dtype), entry


_plans: dict[Any, _Plan] = {}


def _plan_for(requests: Sequence[RowRequest], device: torch.device) -> _Plan:
    key = (device, *[(id(r.source), r.dim, r.index.dtype) for r in requests])
    plan = _plans.get(key)
    if plan is None or not plan.fits(requests):
        if len(_plans) >= _MOST_PLANS or plan is not None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # a kernel may still read a plan's table
            _plans.clear()
        plan = _plans[key] = _Plan(requests, device)
    return plan


@functools.cache
def _kernel(size: int, mixed: bool, check: bool, hot: bool) -> Kernel:
    shape = (0, size * FIELDS.value, 0)
    return Kernel(gather_rows, shape, (size, mixed, check, hot, _TILE), num_warps=_NUM_WARPS)


def _through_staging(
    requests: Sequence[RowRequest], positions: Sequence[int], results: list[Any], device: torch.device, threads: int
) -> None:
    """Gather rows on the CPU into pinned memory, which torch takes back when it has been sent."""
    indices: dict[int, Tensor] = {}
    for i in positions:
        index = requests[i].index
        if id(index) not in indices:
            indices[id(index)] = index.cpu()
    asked = [replace(requests[i], index=indices[id(requests[i].index)]) for i in positions]
    for i, rows in zip(positions, gather(asked, pool=_staging, threads=threads), strict=True):
        results[i] = rows.to(device, non_blocking=True)


_staging = _pinned.PinnedPool()
