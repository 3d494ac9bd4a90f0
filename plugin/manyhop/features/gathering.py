"""Gather rows of feature tensors by index: one call for all tensors of a batch. Rows in CPU memory are copied here."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features.buffers import BufferPool
from manyhop.features.requests import Checks, RowRequest, index_by_itself, out_of_range
from manyhop.features.sources import CachedRows, RowsInParts, ShardedRows
from manyhop.system.arrays import RowLayout, known_if_any, row_layout
from manyhop.system.ranges import ranged
from manyhop.system.threads import executor

_SPLIT_BYTES = 1 << 18  # work smaller than this is not worth handing to another thread

_Copy: TypeAlias = tuple[RowRequest, RowLayout, Tensor, Tensor, int, int]
Exchanging: TypeAlias = Callable[[list[RowRequest], BufferPool], list[Tensor]]


@ranged("gather")
def gather(
    requests: Iterable[RowRequest | tuple[Any, Tensor]],
    *,
    pool: BufferPool | None = None,
    threads: int = 1,
    exchange: Exchanging | None = None,
    checks: Checks | None = None,
) -> list[Any]:
    """Return ``source[index]`` for each request.

    Rows of CPU tensors and numpy arrays that are contiguous in memory are copied as bytes, without the GIL, into
    memory of ``pool``. Everything else (tensors on other devices, sparse or quantised ones, subclasses, tensors that
    require a gradient, other dimensions than 0, objects of other kinds) is indexed by its own means. Sources whose rows
    are spread over nodes (``ShardedRows``), or over all ranks' GPUs (``DistributedRows``), are gathered by
    ``exchange``, all at once: all ranks must call.

    If the index resides on a GPU, so does the result. One kernel on the current stream copies the rows of all
    tensors that the GPU can read: those in its own memory, in memory of its peers that is mapped, and in pinned memory
    of the host (:func:`pin`), which must exist until the GPU has read it. Rows of other CPU tensors are gathered on
    the CPU into pinned memory, and sent.

    Args:
        requests: what to gather; tuples ``(source, index)`` will do.
        pool: where CPU memory comes from and goes back to; ``None``: fresh memory.
        threads: how many threads copy; rows from other nodes are copied by the caller.
        exchange: ``exchange(requests, pool)`` gathers rows from other nodes, or GPUs.
        checks: collects row numbers that a GPU checks; ``None``: wait for the GPU here, unless all have a ``bound``.

    Returns:
        One result per request, in order: tensors ``[count, ...]`` for tensors and numpy arrays, else whatever indexing
        the source gives.

    Raises:
        FeatureError: for an index out of range or of a wrong dtype or shape, or a source that cannot be indexed.
        InputError: for ``threads`` below 1, or rows on other nodes without ``exchange``.
    """
    if threads < 1:
        raise InputError(f"Expected at least 1 thread, got {threads}. Pass 1 to copy in the caller.")
    pool = _fresh if pool is None else pool
    asked = [request if isinstance(request, RowRequest) else RowRequest(*request) for request in requests]
    # By device of the index; None: rows of an exchange, which comes first, as other ranks wait for it.
    groups: dict[torch.device | None, list[int]] = {None: []}
    index, device = None, _HOST
    for i, request in enumerate(asked):
        if i == 0 or request.index is not index:
            index = _check_index(request)
            device = index.device if index.is_cuda else _HOST
        where: torch.device | None = device
        if type(request.source) is not Tensor and isinstance(request.source, RowsInParts):
            if request.source.is_whole:
                asked[i] = replace(request, source=request.source.rows)  # all rows are here
            else:
                where = None
        groups.setdefault(where, []).append(i)
    results: list[Any] = [None] * len(asked)
    for where, positions in groups.items():
        some = [asked[i] for i in positions]
        if where is None:
            found = _exchanged(some, pool, exchange) if some else []
        elif where.type == "cuda":
            found = _gpu().gather_on_gpu(some, where, on_cpu=partial(gather_on_cpu, threads=threads), checks=checks)
        else:
            found = gather_on_cpu(some, pool, threads)
        for i, rows in zip(positions, found, strict=True):
            results[i] = rows
    return results


_fresh = BufferPool(0)
_HOST = torch.device("cpu")


@functools.cache
def _gpu() -> Any:
    from manyhop.features import gather_gpu

    return gather_gpu


@functools.cache
def _kernel() -> Any:
    from manyhop.features.cpu_kernels import gather_rows

    return gather_rows


def _exchanged(requests: list[RowRequest], pool: BufferPool, exchange: Exchanging | None) -> list[Tensor]:
    if exchange is None:
        raise InputError(
            f"Expected an exchange for {requests[0].name}, whose rows are spread over several "
            f"{'nodes' if isinstance(requests[0].source, ShardedRows) else 'GPUs'}, got none. "
            "Iterate a loader whose ranks share batches, or let all ranks ask the feature store."
        )
    return exchange(requests, pool)


def _check_index(request: RowRequest) -> Tensor:
    index = request.index
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32) or index.dim() != 1:
        got = f"{list(index.shape)} {index.dtype}" if isinstance(index, Tensor) else f"a {type(index).__name__}"
        raise FeatureError(f"Expected [count] int64 or int32 to index {request.name}, got {got}. Pass row numbers.")
    return index


def gather_on_cpu(requests: Sequence[RowRequest], pool: BufferPool, threads: int = 1) -> list[Any]:
    """Gather the rows of sources that this process can index: as :func:`gather`."""
    results: list[Any] = []
    copies: list[_Copy] = []
    for request in requests:
        if isinstance(request.source, CachedRows):
            request = replace(request, source=request.source.source)
        layout = None
        if request.dim == 0 and request.index.is_cpu:
            record = known_if_any(request.source)
            cache = None if record is None else record.file_cache  # which another thread may replace
            if cache is not None and cache.is_of(request.source):
                results.append(cache.gather(request, pool))
                continue
            layout = row_layout(request.source, request.name)
        if layout is None or layout.device.type != "cpu":
            results.append(index_by_itself(request))
            continue
        index = request.index.contiguous()
        count = index.numel()
        out = pool.empty((count, *layout.tail), layout.dtype)
        results.append(out)
        cuts = min(threads, 1 + count * layout.row_bytes // _SPLIT_BYTES)
        for k in range(cuts):
            begin, end = count * k // cuts, count * (k + 1) // cuts
            copies.append((request, layout, index, out, begin, end))
    if threads == 1 or len(copies) <= 1:
        for copy in copies:
            _copy_rows(*copy)
    else:
        _in_threads(copies, threads)
    return results


def _copy_rows(request: RowRequest, layout: RowLayout, index: Tensor, out: Tensor, begin: int, end: int) -> None:
    """Copy the rows of some entries of an index; the tensors own the memory behind the addresses."""
    address, stride, num_rows, row_bytes, *_ = layout
    itemsize = index.element_size()
    bad = _kernel()(
        address, stride, num_rows, index.data_ptr() + begin * itemsize, itemsize == 8,
        end - begin, out.data_ptr() + begin * row_bytes, row_bytes,
    )  # fmt: skip
    if bad >= 0:
        raise out_of_range(request, begin + bad, num_rows)


def _in_threads(copies: Sequence[_Copy], threads: int) -> None:
    """Copy in the caller and in ``threads - 1`` others; raise the error of the first copy that has one."""
    todo, errors, lock = list(enumerate(copies))[::-1], {}, threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                k, copy = todo.pop()
            try:
                _copy_rows(*copy)
            except FeatureError as error:
                errors[k] = error

    helpers = [executor(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        helper.result()
    if errors:
        raise errors[min(errors)]


def take_thread_counts() -> tuple[int, int]:
    """Return the rows that this thread requested from caches of files, and the hits among them, since the last call."""
    taken = thread_counts.requested, thread_counts.hits
    thread_counts.requested = thread_counts.hits = 0
    return taken


class _ThreadCounts(threading.local):
    counting = "also"  # or "only", "not"
    requested = hits = 0


thread_counts = _ThreadCounts()
