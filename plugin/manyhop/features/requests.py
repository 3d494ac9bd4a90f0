"""Requests for rows: their errors, sources that are indexed by their own means, and checks of gathers on GPUs."""

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
from manyhop.system.arrays import torch_dtype


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


class Checks(deque[Suspect]):
    """Gathers on GPUs whose row numbers are not known to be right, and not looked at so far. Serves several threads.

    A kernel reads no row that does not exist, but the host learns of it only when the kernel has ended. Whoever passes
    a ``Checks`` to :func:`manyhop.features.gather` does not wait for that there, and has to ask here.
    """

    def ask(self, *, wait: bool = False) -> None:
        """Look at the gathers that have ended.

        Args:
            wait: for all of them to end.

        Raises:
            FeatureError: a row number was out of range.
        """
        for _ in range(len(self)):
            try:
                suspect = self.popleft()
            except IndexError:  # another thread was faster
                return
            if suspect.done is not None and not wait and not suspect.done.query():  # type: ignore[no-untyped-call]
                self.append(suspect)
                continue
            if suspect.done is not None:
                suspect.done.synchronize()
            if suspect.flag.item():
                raise _out_of_range(suspect)

    def __del__(self) -> None:
        for suspect in self:  # a kernel may still write its flag
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
