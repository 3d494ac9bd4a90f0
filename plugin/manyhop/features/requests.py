"""Requests for rows, gathered on the CPU: rows of contiguous memory as bytes, other sources by their own means."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool
from manyhop.features.sources import CachedRows
from manyhop.memory.known import known_if_any
from manyhop.system.threads import executor

_SPLIT_BYTES = 1 << 18  # work smaller than this is not worth handing to another thread


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class RowRequest:
    """A tensor, and the rows to gather from it."""

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
    changes: bool = False
    """Rows change from batch to batch: no copy of them may be kept."""


def out_of_range(request: RowRequest, position: int, num_rows: int) -> FeatureError:
    """Return the error for a row number that does not exist."""
    return FeatureError(
        f"Expected indices in [0, {num_rows}) for {request.name}, got {int(request.index[position])} (at position "
        f"{position}). Store a row for every node or edge of the graph."
    )


@dataclass(frozen=True)
class RowLayout:
    """Rows that can be copied as bytes."""

    address: int
    """Address of row 0."""
    stride: int
    """Bytes from one row to the next, of any sign."""
    num_rows: int
    row_bytes: int
    tail: tuple[int, ...]
    """The shape of a row."""
    dtype: torch.dtype
    device: torch.device


def row_layout(source: Any, name: str) -> RowLayout | None:
    """Return the rows of a source along its first dimension; ``None`` if copying bytes is not the same as indexing."""
    if type(source) is Tensor or type(source) is torch.nn.Parameter:
        plain = (
            source.layout is torch.strided
            and source.device.type in ("cpu", "cuda")
            and source.dim() > 0
            and not (source.requires_grad or source.is_quantized or source.is_conj() or source.is_neg())
        )
        if not plain:
            return None
        dtype, device, address = source.dtype, source.device, source.data_ptr()
        strides = [s * dtype.itemsize for s in source.stride()]
    elif type(source) is np.ndarray or type(source) is np.memmap:
        if source.ndim == 0:
            return None
        dtype, device, address = torch_dtype(source, name), _CPU, source.__array_interface__["data"][0]
        strides = list(source.strides)
    else:
        return None
    shape = tuple(source.shape)
    row_bytes = dtype.itemsize
    for n, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if n > 1 and stride != row_bytes:
            return None
        row_bytes *= n
    return RowLayout(address, strides[0], shape[0], row_bytes, shape[1:], dtype, device)


def torch_dtype(source: Any, name: str) -> torch.dtype:
    """Return the dtype of an array, as torch names it."""
    dtype = source.dtype
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise FeatureError(
            f"Expected {name} to have a dtype that torch has too, got numpy's {dtype!r}. Convert the array."
        ) from None


_CPU = torch.device("cpu")


def gather_on_cpu(requests: Sequence[RowRequest], pool: BufferPool, threads: int) -> list[Any]:
    """Gather the rows of sources that this process can index: as :func:`manyhop.features.gather`."""
    results: list[Any] = []
    copies: list[Callable[[], None]] = []
    for request in requests:
        if isinstance(request.source, CachedRows):
            request = replace(request, source=request.source.source)
        layout = None
        if request.dim == 0 and request.index.device.type == "cpu":
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
            copies.append(partial(_copy_rows, request, layout, index, out, begin, end))
    if threads == 1 or len(copies) <= 1:
        for copy in copies:
            copy()
    else:
        _in_threads(copies, threads)
    return results


def _copy_rows(request: RowRequest, layout: RowLayout, index: Tensor, out: Tensor, begin: int, end: int) -> None:
    """Copy the rows of some entries of an index; the tensors own the memory behind the addresses."""
    from manyhop.features.cpu_kernels import gather_rows

    itemsize, row_bytes = index.element_size(), layout.row_bytes
    bad = gather_rows(
        layout.address, layout.stride, layout.num_rows, index.data_ptr() + begin * itemsize, itemsize == 8,
        end - begin, out.data_ptr() + begin * row_bytes, row_bytes,
    )  # fmt: skip
    if bad >= 0:
        raise out_of_range(request, begin + bad, layout.num_rows)


def _in_threads(copies: Sequence[Callable[[], None]], threads: int) -> None:
    """Copy in the caller and in ``threads - 1`` others; raise the error of the first copy that has one."""
    todo, errors, lock = list(enumerate(copies))[::-1], {}, threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                k, copy = todo.pop()
            try:
                copy()
            except FeatureError as error:
                errors[k] = error

    helpers = [executor(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        helper.result()
    if errors:
        raise errors[min(errors)]


def index_by_itself(request: RowRequest) -> Any:
    """Index a source of any kind by its own means."""
    source, index, dim = request.source, request.index, request.dim
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


@dataclass(frozen=True)
class Suspect:
    """A gather whose row numbers a kernel checks, on its way."""

    flag: Tensor
    """``[1] int32``, which the kernel writes and the host reads: 1 if a row number is out of range."""
    done: torch.cuda.Event | None
    """When the kernel has ended; ``None``: it has."""
    requests: Sequence[tuple[RowRequest, int]]
    """The request, and how many rows there are."""


class Checks:
    """Gathers on GPUs whose row numbers are not known to be right. One object may serve several threads.

    A kernel reads no row that does not exist, but the host learns of it only when the kernel has ended. Whoever passes
    a ``Checks`` to :func:`manyhop.features.gather` does not wait for that there, and has to ask here.
    """

    def __init__(self) -> None:
        self._open: deque[Suspect] = deque()

    def add(self, suspect: Suspect) -> None:
        """Note a gather that was enqueued."""
        self._open.append(suspect)

    def __len__(self) -> int:
        """Return how many have not been looked at, or had not ended."""
        return len(self._open)

    def ask(self, *, wait: bool = False) -> None:
        """Look at the gathers that have ended.

        Args:
            wait: for all of them to end.

        Raises:
            FeatureError: a row number was out of range.
        """
        for _ in range(len(self._open)):
            try:
                suspect = self._open.popleft()
            except IndexError:  # another thread was faster
                return
            if suspect.done is not None and not wait and not suspect.done.query():  # type: ignore[no-untyped-call]
                self._open.append(suspect)
                continue
            if suspect.done is not None:
                suspect.done.synchronize()
            if suspect.flag.item():
                raise _out_of_range(suspect)

    def __del__(self) -> None:
        for suspect in self._open:  # a kernel may still write its flag
            with contextlib.suppress(RuntimeError):
                if suspect.done is not None:
                    suspect.done.synchronize()


def _out_of_range(suspect: Suspect) -> FeatureError:
    for request, num_rows in suspect.requests:
        bad = ((request.index < 0) | (request.index >= num_rows)).nonzero()
        if bad.numel():
            return out_of_range(request, int(bad[0]), num_rows)
    names = ", ".join(request.name for request, _ in suspect.requests)
    return FeatureError(f"Expected indices of existing rows for {names}, got others. Keep them unchanged while in use.")
