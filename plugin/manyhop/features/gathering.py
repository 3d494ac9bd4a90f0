"""Gather rows of feature tensors by index: one call for all tensors of a batch, on the CPU as bytes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features import cached_files as hot_files
from manyhop.features.buffers import BufferPool
from manyhop.features.requests import Checks, RowLayout, RowRequest, out_of_range, row_layout, torch_dtype
from manyhop.features.sources import CachedRows, DistributedRows, ShardedRows
from manyhop.system.ranges import ranged
from manyhop.system.threads import executor

_SPLIT_BYTES = 1 << 18  # work smaller than this is not worth handing to another thread


@dataclass(frozen=True)
class _Copy:
    """Rows that the kernel copies as bytes. Refers to the owners of the memory behind the addresses."""

    request: RowRequest
    layout: RowLayout
    index: Tensor
    out: Tensor


def gather_on_cpu(requests: Sequence[RowRequest], pool: BufferPool, threads: int) -> list[Any]:
    """Gather the rows of sources that this process can index.

    Returns:
        One result per request, in order.

    Raises:
        FeatureError: for an index out of range, or a source that cannot be indexed.
    """
    results: list[Any] = []
    copies: list[_Copy] = []
    for request in requests:
        if isinstance(request.source, CachedRows):
            request = replace(request, source=request.source.source)
        cache = hot_files.file_cache(request.source)
        if cache is not None and request.dim == 0 and request.index.device.type == "cpu":
            results.append(cache.gather(request, pool))
            continue
        copy = _plan_copy(request, request.index, pool)
        if copy is None:
            results.append(index_by_itself(request, request.index))
        else:
            copies.append(copy)
            results.append(copy.out)
    _run(copies, threads)
    return results


def _plan_copy(request: RowRequest, index: Tensor, pool: BufferPool) -> _Copy | None:
    """Return the copy that answers a request; ``None`` if copying bytes on the CPU is not the same as indexing."""
    if request.dim != 0 or index.device.type != "cpu":
        return None
    layout = row_layout(request.source, request.name)
    if layout is None or layout.device.type != "cpu":
        return None
    out = pool.empty((index.numel(), *layout.tail), layout.dtype)
    return _Copy(request, layout, index.contiguous(), out)


def index_by_itself(request: RowRequest, index: Tensor) -> Any:
    """Index a source of any kind by its own means."""
    source, dim = request.source, request.dim
    if isinstance(source, np.ndarray):
        torch_dtype(source, request.name)
    try:
        if isinstance(source, Tensor | np.ndarray):
            num_rows = source.shape[dim]
        else:
            num_rows = source.size(dim) if callable(getattr(source, "size", None)) else len(source)
    except (IndexError, TypeError):
        raise FeatureError(
            f"Expected {request.name} to have rows along dimension {dim}, got a {type(source).__name__}"
            f"{list(source.shape) if hasattr(source, 'shape') else ''}. Pass a tensor or an array."
        ) from None
    bad = ((index < 0) | (index >= num_rows)).nonzero()
    if bad.numel():
        raise out_of_range(request, int(bad[0]), num_rows)
    index = index.long()
    if isinstance(source, np.ndarray):
        return torch.from_numpy(source.take(index.cpu().numpy(), axis=dim))
    try:
        if isinstance(source, Tensor):
            return source.index_select(dim, index.to(source.device))
        if dim == 0:
            return source[index]
        return source.index_select(dim, index)
    except (AttributeError, TypeError, RuntimeError) as error:  # NotImplementedError is a RuntimeError
        kind = f"{source.layout} tensor" if isinstance(source, Tensor) else type(source).__name__
        raise FeatureError(
            f"Expected {request.name} to support reading rows along dimension {dim}, got a {kind}. "
            "Convert it, to a dense or COO tensor with its rows along dimension 0."
        ) from error


def _run(copies: list[_Copy], threads: int) -> None:
    """Copy the rows, each request cut into as many parts as there are threads."""
    if not copies:
        return
    from manyhop.features.cpu_kernels import gather_rows

    def copy_part(copy: _Copy, begin: int, end: int) -> None:
        rows, itemsize = copy.layout, copy.index.element_size()
        bad = gather_rows(
            rows.address,
            rows.stride,
            rows.num_rows,
            copy.index.data_ptr() + begin * itemsize,
            itemsize == 8,
            end - begin,
            copy.out.data_ptr() + begin * rows.row_bytes,
            rows.row_bytes,
        )
        if bad >= 0:
            raise out_of_range(copy.request, begin + bad, rows.num_rows)

    parts: list[tuple[_Copy, int, int]] = []
    for copy in copies:
        count = copy.index.numel()
        cuts = min(threads, 1 + count * copy.layout.row_bytes // _SPLIT_BYTES)
        parts += [(copy, count * k // cuts, count * (k + 1) // cuts) for k in range(cuts)]
    if threads == 1 or len(parts) == 1:
        for part in parts:
            copy_part(*part)
    else:
        _in_threads(copy_part, parts, threads)


def _in_threads(
    copy_part: Callable[[_Copy, int, int], None], parts: list[tuple[_Copy, int, int]], threads: int
) -> None:
    """Run the parts in the caller and in ``threads - 1`` others; the error of the first part that has one is raised."""
    todo, errors, lock = list(enumerate(parts))[::-1], {}, threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                k, part = todo.pop()
            try:
                copy_part(*part)
            except FeatureError as error:
                errors[k] = error

    helpers = [executor(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        helper.result()
    if errors:
        raise errors[min(errors)]


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
    gpu = _common_gpu(asked)
    if gpu is not None:
        on_gpu: list[Any] = _gpu().gather_on_gpu(asked, gpu, threads=threads, checks=checks)
        return on_gpu
    results: list[Any] = [None] * len(asked)
    here: dict[int, RowRequest] = {}
    elsewhere: dict[int, RowRequest] = {}
    on_gpus: dict[torch.device, dict[int, RowRequest]] = {}
    for i, request in enumerate(asked):
        index = _check_index(request)
        if isinstance(request.source, ShardedRows | DistributedRows):
            if not request.source.is_whole:
                elsewhere[i] = request
                continue
            request = replace(request, source=request.source.rows)  # all rows are here
        if index.is_cuda:
            on_gpus.setdefault(index.device, {})[i] = request
        else:
            here[i] = request
    if elsewhere:
        if exchange is None:
            raise InputError(
                f"Expected an exchange for {next(iter(elsewhere.values())).name}, whose rows are spread over several "
                f"{'nodes' if isinstance(next(iter(elsewhere.values())).source, ShardedRows) else 'GPUs'}, got none. "
                "Iterate a loader whose ranks share batches, or let all ranks ask the feature store."
            )
        found = exchange(list(elsewhere.values()), pool)
        for i, rows in zip(elsewhere, found, strict=True):
            results[i] = rows
    for device, group in on_gpus.items():
        found = _gpu().gather_on_gpu(list(group.values()), device, threads=threads, checks=checks)
        for i, rows in zip(group, found, strict=True):
            results[i] = rows
    for i, rows in zip(here, gather_on_cpu(list(here.values()), pool, threads), strict=True):
        results[i] = rows
    return results


_fresh = BufferPool(0)


@functools.cache
def _gpu() -> Any:
    from manyhop.features import gather_gpu as _gpu

    return _gpu


def _common_gpu(requests: list[RowRequest]) -> torch.device | None:
    """Return the GPU of all indices if there is only one, and no source is spread over ranks: the usual case."""
    index = device = None
    for request in requests:
        if request.index is not index:
            index = _check_index(request)
            if not index.is_cuda or (device is not None and index.device != device):
                return None
            device = index.device
        if type(request.source) is not Tensor and isinstance(request.source, ShardedRows | DistributedRows):
            return None
    return device


def _check_index(request: RowRequest) -> Tensor:
    index = request.index
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32) or index.dim() != 1:
        got = f"{list(index.shape)} {index.dtype}" if isinstance(index, Tensor) else f"a {type(index).__name__}"
        raise FeatureError(f"Expected [count] int64 or int32 to index {request.name}, got {got}. Pass row numbers.")
    return index
