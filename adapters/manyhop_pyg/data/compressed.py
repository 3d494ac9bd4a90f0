"""Edge lists that are known in compressed form, too: those of a graph on disk."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_known: Any = WeakTensorKeyDictionary()  # of torch, without types


def remember(edge_index: Tensor, row: Tensor, colptr: Tensor) -> None:
    """Note that ``edge_index [2, num_edges]`` is in order of destination, with these compressed columns."""
    _known[edge_index] = (edge_index._version, row, colptr)


def recall(edge_index: Tensor) -> dict[str, Tensor] | None:
    """``row`` and ``colptr`` of an edge list, if they are known and it has not been written to since."""
    found = _known.get(edge_index)
    if found is None or found[0] != edge_index._version:
        return None
    return {"row": found[1], "colptr": found[2]}
