"""Which rows of which tensor are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from manyhop.errors import FeatureError


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

    changes: bool = False
    """Rows change from batch to batch: no copy of them may be kept."""


def out_of_range(request: RowRequest, position: int, num_rows: int) -> FeatureError:
    """The error for a row number that does not exist."""
    return FeatureError(
        f"Expected indices in [0, {num_rows}) for {request.name}, got {int(request.index[position])} (at position "
        f"{position}). Give it a row for every node or edge of the graph."
    )
