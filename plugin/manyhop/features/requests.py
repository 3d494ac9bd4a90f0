"""Requests for rows: sources, how their rows reside in memory, and row numbers that a GPU finds out of range late."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError


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
    """Return the rows of a source along its first dimension; ``None`` if copying bytes is not the same as indexing.

    Raises:
        FeatureError: an array of a dtype that torch does not have.
    """
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
