"""Gather rows of feature tensors by index: one call for all tensors of a batch."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features.buffers import BufferPool
from manyhop.features.checks import Checks, out_of_range
from manyhop.features.layout import RowLayout, row_layout, torch_dtype
from manyhop.features.sources.cached import CachedRows
from manyhop.features.sources.distributed import DistributedRows
from manyhop.features.sources.shards import ShardedRows

_SPLIT_BYTES = 1 << 18  # work smaller than this is not worth handing to another thread


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class RowRequest:
    """Which rows of which tensor."""

    source: Any
    """``torch.Tensor``, ``numpy.ndarray`` or ``numpy.memmap`` of shape ``[num_rows, ...]``, one of them with a cache on
    a GPU (``CachedRows``), or anything else that an index tensor can index (sparse tensors, TensorFrame)."""

    index: Tensor
    """``[count] int64 or int32``: row numbers in ``[0, num_rows)``."""

    dim: int = 0
    """The dimension that is indexed."""

    name: str = "the features"
    """What to call the source in an error."""

    bound: int | None = None
    """All row numbers are known to be in ``[0, bound)``: a GPU need not look where the source has as many rows."""


Exchanging: TypeAlias = Callable[[list[RowRequest], BufferPool], list[Tensor]]


@dataclass(frozen=True)
class _Copy:
    """Rows that the kernel copies as bytes. Refers to the owners of the memory behind the addresses."""

    request: RowRequest
    layout: RowLayout
    index: Tensor
    out: Tensor


def gather(
    requests: Iterable[RowRequest | tuple[Any, Tensor]],
    *,
    pool: BufferPool | None = None,
    threads: int = 1,
    exchange: Exchanging | None = None,
    checks: Checks | None = None,
) -> list[Any]:
    """``source[index]`` for each request.

    Rows of CPU tensors and numpy arrays that lie contiguously in memory are copied as bytes, without the GIL, into
    memory of ``pool``. Everything else (tensors on other devices, sparse or quantised ones, subclasses, tensors that
    require a gradient, other dimensions than 0, objects of other kinds) is indexed by its own means. Sources whose rows
    are spread over several nodes (``ShardedRows``), or over all ranks' GPUs (``DistributedRows``), are gathered by
    ``exchange``, all at once: all ranks have to call.

    Where the index lies on a GPU, the result does, too. One kernel on the current stream copies the rows of all
    tensors that the GPU can read: those in its own memory, in memory of its peers that is mapped, and in pinned memory
    of the host (:func:`pin`), which has to be kept until the GPU has read it. Rows of other CPU tensors are gathered on
    the CPU into pinned memory, and sent.

    Args:
        requests: what to gather; tuples ``(source, index)`` will do.
        pool: where CPU memory comes from and goes back to; ``None``: fresh memory.
        threads: how many threads copy; rows from other nodes are copied by the caller.
        exchange: ``exchange(requests, pool)`` gathers rows from other nodes, or GPUs.
        checks: told of row numbers that a GPU checks; ``None``: wait for the GPU here, unless all have a ``bound``.

    Returns:
        One result per request, in order: tensors ``[count, ...]`` for tensors and numpy arrays, else whatever indexing
        the source gives.

    Raises:
        FeatureError: for an index out of range or of a wrong dtype or shape, or a source that cannot be indexed.
        InputError: for ``threads`` below 1, or rows on other nodes without ``exchange``.
    """
    if threads < 1:
        raise InputError(f"expected at least 1 thread, got {threads}: pass 1 to copy in the caller")
    pool = _fresh if pool is None else pool
    asked = [request if isinstance(request, RowRequest) else RowRequest(*request) for request in requests]
    gpu = _common_gpu(asked)
    if gpu is not None:
        on_gpu: list[Any] = _gpu().gather_on_gpu(asked, gpu, threads=threads, checks=checks)
        return on_gpu
    results: list[Any] = []
    copies: list[_Copy] = []
    elsewhere: dict[int, RowRequest] = {}
    on_gpus: dict[torch.device, dict[int, RowRequest]] = {}
    for request in asked:
        index = _check_index(request)
        if isinstance(request.source, ShardedRows | DistributedRows):
            if not request.source.is_whole:
                elsewhere[len(results)] = request
                results.append(None)
                continue
            request = replace(request, source=request.source.rows)  # all rows are here
        if index.is_cuda:
            on_gpus.setdefault(index.device, {})[len(results)] = request
            results.append(None)
            continue
        if isinstance(request.source, CachedRows):
            request = replace(request, source=request.source.source)
        copy = _plan_copy(request, index, pool)
        if copy is None:
            results.append(index_by_itself(request, index))
        else:
            copies.append(copy)
            results.append(copy.out)
    if elsewhere:
        if exchange is None:
            raise InputError(
                f"expected an exchange for {next(iter(elsewhere.values())).name}, whose rows are spread over several "
                f"{'nodes' if isinstance(next(iter(elsewhere.values())).source, ShardedRows) else 'GPUs'}, got none: "
                "iterate a loader with distributed=True, or let all ranks ask the feature store"
            )
        rows = exchange(list(elsewhere.values()), pool)
        for i, row in zip(elsewhere, rows, strict=True):
            results[i] = row
    for device, here in on_gpus.items():
        found = _gpu().gather_on_gpu(list(here.values()), device, threads=threads, checks=checks)
        for i, rows in zip(here, found, strict=True):
            results[i] = rows
    _run(copies, threads)
    return results


_fresh = BufferPool(0)


@functools.cache
def _gpu() -> Any:
    from manyhop.features.gathering import gpu as _gpu  # imports triton

    return _gpu


def _common_gpu(requests: list[RowRequest]) -> torch.device | None:
    """The GPU that all indices lie on, if it is one, and nothing is asked of other ranks: the usual case, quickly."""
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
        raise FeatureError(f"expected [count] int64 or int32 to index {request.name}, got {got}: pass row numbers")
    return index


def _plan_copy(request: RowRequest, index: Tensor, pool: BufferPool) -> _Copy | None:
    """The copy that answers a request; ``None`` where copying bytes on the CPU is not the same as indexing."""
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
            f"expected {request.name} to have rows along dimension {dim}, got a {type(source).__name__}"
            f"{list(source.shape) if hasattr(source, 'shape') else ''}: pass a tensor or an array"
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
            f"expected {request.name} to be of a kind whose rows along dimension {dim} can be taken, got a {kind}: "
            "convert it, to a dense or COO tensor with its rows along dimension 0"
        ) from error


def _run(copies: list[_Copy], threads: int) -> None:
    """Copy the rows, each request cut into as many parts as there are threads."""
    if not copies:
        return
    from manyhop.features.gathering.cpu_kernels import gather_rows

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

    helpers = [_executor(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        helper.result()
    if errors:
        raise errors[min(errors)]


_executors: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _executor(threads: int) -> ThreadPoolExecutor:
    """Threads shared by all gathers with the same number of them; a forked child has its own."""
    key = (os.getpid(), threads)
    if key not in _executors:
        _executors.setdefault(key, ThreadPoolExecutor(threads, thread_name_prefix="manyhop-gather"))
    return _executors[key]
