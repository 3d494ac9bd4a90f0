"""Attributes of a ``FeatureStore``: which tensor they name, and which of its rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import TensorAttr

from manyhop.arguments import as_ids, as_tensor
from manyhop.errors import FeatureError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.system.arrays import describe


class ExactAttr(TensorAttr):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``TensorAttr``, for which an array as index is set, too (PyG compares it with "unset", entry by entry)."""

    @classmethod
    def cast(cls, *args: object, **kwargs: object) -> TensorAttr:
        attr = super().cast(*args, **kwargs)
        return cls(attr.group_name, attr.attr_name, attr.index) if type(attr) is TensorAttr else attr

    def is_set(self, key: str) -> bool:
        return getattr(self, key) is not TensorAttr.index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorAttr):
            return NotImplemented
        fields = (field.name for field in dataclasses.fields(self))
        return all(_same(getattr(self, name), getattr(other, name, None)) for name in fields)


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor | np.ndarray) or isinstance(b, Tensor | np.ndarray):
        return a is b
    return bool(a == b)


def is_edge_type(group: object) -> bool:
    """Whether a group is ``(source, relation, destination)``."""
    return isinstance(group, tuple) and len(group) == 3 and all(isinstance(part, str) for part in group)


def is_whole(index: object) -> bool:
    """Whether an index means all rows."""
    return index is None or (isinstance(index, slice) and index == slice(None))


def num_rows_of(tensor: object) -> int | None:
    """Number of rows of anything that has some; ``None`` for anything else."""
    if isinstance(tensor, ShardedRows | DistributedRows):
        return len(tensor)
    if isinstance(tensor, Tensor | np.ndarray):
        is_nested = isinstance(tensor, Tensor) and tensor.is_nested
        return int(tensor.shape[0]) if tensor.ndim > 0 and not is_nested else None
    if isinstance(tensor, str | bytes | list | tuple | dict) or not hasattr(tensor, "__getitem__"):
        return None
    return len(tensor) if hasattr(tensor, "__len__") else None


def row_index(index: object, num_rows: int | None, name: str) -> Tensor | slice | int:
    """Return an index as row numbers ``[count] int64 or int32``, a slice forwards, or one row number.

    Args:
        index: a slice, an integer, or a tensor or array ``[count]`` of row numbers, or ``[num_rows] bool``.
        num_rows: of the tensor.
        name: of the tensor, for errors.

    Raises:
        FeatureError: anything else, or a single row that does not exist.
    """
    assert num_rows is not None
    if isinstance(index, slice):
        begin, end, step = index.indices(num_rows)
        return slice(begin, end, step) if step > 0 else torch.arange(num_rows)[list(range(begin, end, step))]
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        if not 0 <= index < num_rows:
            raise FeatureError(f"Expected a row of {name} in [0, {num_rows}), got {index}. Check the ids.")
        return int(index)
    if isinstance(index, Tensor | np.ndarray):
        rows = as_tensor(f"the index of {name}", index, FeatureError)
        if rows.dtype == torch.bool and rows.shape == (num_rows,):
            return rows.nonzero().view(-1)
        return as_ids(f"the index of {name}", rows, error=FeatureError)
    raise FeatureError(
        f"Expected an index of {name} as None, a slice, an integer, or a tensor or array of shape [count] of row "
        f"numbers, got {kind_of(index)}."
    )


def title_of(attr: TensorAttr) -> str:
    """What errors call the tensor of an attribute."""
    return repr(attr.attr_name) if attr.group_name is None else f"{attr.attr_name!r} of {attr.group_name!r}"


def kind_of(value: object) -> str:
    """Dtype and shape of a tensor, else the type, for errors."""
    if isinstance(value, Tensor):
        return describe(value)
    return (
        f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    )
