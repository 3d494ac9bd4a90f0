"""Gather rows by index on the CPU: rows of contiguous memory as bytes, other sources by their own means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import cached_files as hot_files
from manyhop.features.buffers import BufferPool
from manyhop.features.requests import RowLayout, RowRequest, out_of_range, row_layout, torch_dtype
from manyhop.features.sources import CachedRows
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
