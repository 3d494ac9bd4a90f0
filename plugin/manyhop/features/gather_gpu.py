"""Gather rows by index on a GPU: one launch for all tensors that its kernels can read; other rows are staged."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool, PinnedPool
from manyhop.features.kernels.gather import COLUMNS, FIELDS, TILE, find_slots, gather_rows
from manyhop.features.kernels.move import move
from manyhop.features.requests import Checks, RowRequest, Suspect, index_by_itself
from manyhop.features.sources import CachedRows
from manyhop.memory import pinned
from manyhop.system.arrays import RowLayout, row_layout
from manyhop.system.triton_launch import Kernel

OnCPU: TypeAlias = Callable[[Sequence[RowRequest], BufferPool], list[Any]]

_TILE = 256  # words of a program, if they have 16 bytes; of smaller ones twice as many
_SIZES = (1, 4, 16)  # requests of a launch; a kernel each
_NEVER = 1 << 62  # the first program of an absent request
_LONGEST_ROW = 1 << 30  # bytes
_SMALL_ROW = 64  # bytes: all that are gathered from a source at once share memory ...
_SHARING = 4  # ... longer ones that of this many requests ...
_SHARED_BYTES = 64 << 20  # ... of at most this size: it lives as long as one of them, or of their batches
_MOST_PLANS = 256  # that are cached


@dataclass(frozen=True)
class _Rows:
    """How a kernel reads and writes the rows of one source."""

    position: int  # in the list of requests
    num_rows: int
    words: int  # of a row
    tile: int  # words of a program
    tail: tuple[int, ...]
    dtype: torch.dtype
    checked: bool  # row numbers may be out of range
    narrow: bool  # row numbers are sorted as 32 bits
    entry: tuple[int, ...]  # arguments of the kernel

    @property
    def row_bytes(self) -> int:
        return self.entry[3] * self.entry[4]


class _Launch:
    """One launch: up to 16 sources.

    Args:
        sources: the sources of rows.
        device: the GPU.
        sort: whether to ask in the order of row numbers. Reads over the bus are slow where each is in another page, and
            a row that is requested several times is read once.
    """

    def __init__(self, sources: Sequence[_Rows], device: torch.device, *, sort: bool) -> None:
        self._sources, self._device, self._sort = sources, device, sort
        self._checked = any(rows.checked for rows in sources)
        self._table = torch.tensor([rows.entry for rows in sources], dtype=torch.int64, device=device)
        self._address = self._table.data_ptr()
        size = next(n for n in _SIZES if n >= len(sources))
        self._padding = (0, 0, 0, 0, _NEVER) * (size - len(sources))
        mixed, hot = any(rows.entry[4] != 16 for rows in sources), any(rows.entry[6] for rows in sources)
        self._kernel = _kernel(size, mixed, self._checked, hot, sort)
        self._kernel.prepare(device)
        together: dict[Any, list[int]] = {}  # of the sources, by their numbers here
        for k, rows in enumerate(sources):
            together.setdefault((rows.entry, rows.tail, rows.dtype), []).append(k)
        self._together: list[list[int]] = []
        for numbers in together.values():
            some = len(numbers) if sources[numbers[0]].row_bytes <= _SMALL_ROW else _SHARING
            self._together += [numbers[i : i + some] for i in range(0, len(numbers), some)]

    def __call__(self, requests: Sequence[RowRequest], results: list[Any]) -> Suspect | None:
        """Enqueue the copies. Return the pending check of row numbers."""
        calls: list[int] = []
        device, programs, asked = self._device, 0, None
        count = ids_address = order_address = 0
        orders: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}
        alive: list[Tensor] = []
        outs = self._outputs([requests[rows.position].index.shape[0] for rows in self._sources])
        for rows, out in zip(self._sources, outs, strict=True):
            index = requests[rows.position].index
            if self._sort:
                key = id(index), rows.narrow
                if key not in orders:
                    orders[key] = torch.sort(index.int() if rows.narrow else index)
                ids, order = orders[key]
                count, ids_address, order_address = ids.shape[0], ids.data_ptr(), order.data_ptr()
            elif index is not asked:
                asked, ids = index, index.contiguous()
                alive.append(ids)  # its memory must not become that of a result
                count, ids_address = ids.shape[0], ids.data_ptr()
            results[rows.position] = out
            calls += (ids_address, order_address, out.data_ptr(), count, programs)
            programs += -(-count * rows.words // rows.tile)
        if programs == 0:
            return None
        calls += self._padding
        if not self._checked:
            self._kernel(device, programs, self._address, tuple(calls), 0)
            return None
        flag = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
        self._kernel(device, programs, self._address, tuple(calls), flag.data_ptr())
        done = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        return Suspect(flag, done, [(requests[rows.position], rows.num_rows) for rows in self._sources])

    def _outputs(self, counts: Sequence[int]) -> list[Tensor]:
        """Allocate this many rows of each source, in one piece per source: allocations take long."""
        if len(self._together) == len(counts):
            return [
                torch.empty((n, *rows.tail), dtype=rows.dtype, device=self._device)
                for rows, n in zip(self._sources, counts, strict=True)
            ]
        outs: list[Any] = [None] * len(counts)
        for numbers in self._together:
            rows = self._sources[numbers[0]]
            sizes = [counts[k] for k in numbers]
            if len(numbers) == 1 or sum(sizes) * rows.row_bytes > _SHARED_BYTES:
                for k, size in zip(numbers, sizes, strict=True):
                    outs[k] = torch.empty(size, *rows.tail, dtype=rows.dtype, device=self._device)
                continue
            out = torch.empty(sum(sizes), *rows.tail, dtype=rows.dtype, device=self._device)
            # Not split(): its results are views of one tensor, so that a change of one would count as a change of all.
            for k, part in zip(numbers, out.unsafe_split_with_sizes(sizes), strict=True):
                outs[k] = part
        return outs


class Plan:
    """How to gather from certain sources."""

    def __init__(self, requests: Sequence[RowRequest], device: torch.device) -> None:
        self.staged: list[int] = []
        """Positions of requests whose rows the GPU cannot read."""
        self.others: list[int] = []
        """Positions of requests whose sources index themselves."""
        self._generation = pinned.registry.generation
        first = {id(request.source): i for i, request in reversed(list(enumerate(requests)))}
        self._distinct = [(i, _reference(requests[i].source), _where(requests[i].source)) for i in first.values()]
        near: list[_Rows] = []
        far: list[_Rows] = []
        for i, request in enumerate(requests):
            source = request.source.source if isinstance(request.source, CachedRows) else request.source
            layout = row_layout(source, request.name) if request.dim == 0 else None
            if layout is None or not 0 < layout.row_bytes <= _LONGEST_ROW:
                self.others.append(i)
            elif _is_near(layout, device):
                near.append(_rows(i, request, layout, device, sort=False))
            elif layout.device.type != "cpu":
                self.others.append(i)
            elif pinned.is_pinned(source):
                far.append(_rows(i, request, layout, device, sort=True))
            else:
                self.staged.append(i)
        most = _SIZES[-1]
        self.launches = [_Launch(near[k : k + most], device, sort=False) for k in range(0, len(near), most)]
        self.launches += [_Launch(far[k : k + most], device, sort=True) for k in range(0, len(far), most)]

    def is_alive(self) -> bool:
        """Return whether all sources exist."""
        return all(ref() is not None for _, ref, _ in self._distinct)

    def fits(self, requests: Sequence[RowRequest]) -> bool:
        """Return whether these are the plan's sources, at their former addresses; their ids are compared before."""
        if self._generation != pinned.registry.generation:
            return False
        for i, ref, seen in self._distinct:
            source = requests[i].source
            if ref() is not source or seen != _where(source):
                return False
        return True


class Plans:
    """Plans of earlier gathers, ``_MOST_PLANS`` at most; safe to use from several threads."""

    def __init__(self) -> None:
        self.held: dict[Any, Plan] = {}
        self._forgotten: dict[Any, Plan] = {}

    def of(self, requests: Sequence[RowRequest], device: torch.device) -> Plan:
        """Return the plan for these sources: a previous one, as long as it fits."""
        key = (device, *[(id(r.source), r.dim, r.index.dtype, r.bound) for r in requests])
        plan = self.held.get(key)
        if plan is None or not plan.fits(requests):
            self._drop_dead()
            if key in self.held or len(self.held) >= _MOST_PLANS:
                self._forget()
            plan = self.held[key] = Plan(requests, device)
        return plan

    def _drop_dead(self) -> None:
        """Free the plans whose sources are gone: no thread can launch them."""
        dead = [key for key, plan in list(self.held.items()) if not plan.is_alive()]
        _wait_for(dead)
        for key in dead:
            self.held.pop(key, None)

    def _forget(self) -> None:
        """Free the plans that were forgotten before, then forget all others: a kernel, or a thread about to launch one,
        may still need what they hold."""
        _wait_for([*self._forgotten, *self.held])
        self._forgotten, self.held = self.held, {}


PLANS = Plans()
"""Those of this process."""


def _wait_for(keys: Iterable[Any]) -> None:
    """Wait for the GPUs of plans: kernels on any stream may read what these hold."""
    for device in {key[0] for key in keys}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _is_near(layout: RowLayout, device: torch.device) -> bool:
    """Return whether these rows are in the GPU's memory."""
    return layout.device == device


def _rows(position: int, request: RowRequest, layout: RowLayout, device: torch.device, *, sort: bool) -> _Rows:
    word = math.gcd(16, layout.address, layout.stride, layout.row_bytes)
    words, num_rows = layout.row_bytes // word, layout.num_rows
    checked = request.bound is None or request.bound > num_rows
    narrow = sort and not checked and num_rows < 1 << 31
    wide = request.index.dtype == torch.int64 and not narrow
    entry = [layout.address, layout.stride, num_rows, words, word, wide, 0, 0, 0]
    cached = request.source if isinstance(request.source, CachedRows) else None
    if cached is not None and cached.hot.count and cached.rows.device == device:
        entry[6:] = cached.hot.groups.data_ptr(), cached.rows.data_ptr(), cached.counts.data_ptr()
    assert len(entry) == COLUMNS.value
    tile = _TILE if word == 16 else 2 * _TILE
    return _Rows(position, num_rows, words, tile, layout.tail, layout.dtype, checked, narrow, tuple(entry))


def _reference(source: Any) -> Any:
    try:
        return weakref.ref(source)
    except TypeError:  # indexes itself, so nothing of it is in a plan
        return lambda: source


def _where(source: Any) -> Any:
    """Return where a source lies and how, which may change in place; ``None``: it cannot, or does not matter."""
    tensor = source.source if type(source) is CachedRows else source
    if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad
    return None


@functools.cache
def _kernel(size: int, mixed: bool, check: bool, hot: bool, sort: bool) -> Kernel:
    constants = (size, mixed, check, hot, sort, _TILE)
    return Kernel(gather_rows, constants, calls=size * FIELDS.value)


@dataclass
class _Lookup:
    """The rows of an index that the CPU must read."""

    ids: Tensor
    """``[missing]``, on the host: their numbers."""
    slots: Tensor
    """``[count] int64``: places in the cache; 0 where the row is missing. Without a cache, empty."""
    places: Tensor
    """``[missing] int32``: positions of the missing ones in the index. Without a cache, empty."""


def gather_staged(
    requests: Sequence[RowRequest], positions: Sequence[int], results: list[Any], device: torch.device, on_cpu: OnCPU
) -> None:
    """Gather rows on the CPU into pinned memory, which torch reuses after the copy to the GPU.

    Rows that the GPU keeps (:class:`CachedRows`) are copied there, while the CPU reads the others.
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
            cached.staged.add(lookup.slots.numel(), lookup.slots.numel() - lookup.ids.numel())
        asked.append(replace(request, index=lookup.ids))
    try:
        found = on_cpu(asked, _staging)
    except FeatureError:  # names the position among the missing rows
        on_cpu([replace(requests[i], index=requests[i].index.cpu()) for i in positions], _staging)
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
    return Kernel(find_slots)


_staging = PinnedPool()


def gather_on_gpu(
    requests: Sequence[RowRequest], device: torch.device, *, on_cpu: OnCPU, checks: Checks | None = None
) -> list[Any]:
    """Gather rows as :func:`manyhop.features.gather`, for indices that reside on one GPU.

    Args:
        requests: with checked indices.
        device: where the indices lie; a CPU where triton interprets its kernels.
        on_cpu: ``on_cpu(requests, pool)`` gathers rows that the GPU cannot read.
        checks: collects row numbers that the kernel checks; ``None``: wait for it here.
    """
    if device.type == "cuda" and torch._C._cuda_getDevice() != device.index:
        with torch.cuda.device(device):
            return gather_on_gpu(requests, device, on_cpu=on_cpu, checks=checks)
    plan = PLANS.of(requests, device)
    results: list[Any] = [None] * len(requests)
    collected = checks
    for launch in plan.launches:
        suspect = launch(requests, results)
        if suspect is not None:  # noted at once: its flag must outlive the kernel, even if an error follows
            collected = Checks() if collected is None else collected
            collected.append(suspect)
    if plan.staged:
        gather_staged(requests, plan.staged, results, device, on_cpu)
    for i in plan.others:
        request = requests[i]
        if isinstance(request.source, CachedRows):
            request = replace(request, source=request.source.source)
        rows = index_by_itself(request)
        results[i] = rows.to(device) if isinstance(rows, Tensor) else rows
    if checks is None and collected is not None:
        collected.ask(wait=True)
    return results
