"""A PyG ``FeatureStore`` whose rows are gathered by the engine: all tensors of a batch in one call."""

from __future__ import annotations

import copy
import dataclasses
import threading
from typing import Any

import numpy as np
import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import TensorAttr

from manyhop.errors import FeatureError
from manyhop.features import BufferPool, RowRequest, gather

Key = tuple[Any, ...]


class UnknownTensorError(FeatureError, KeyError):
    """The store holds no such tensor. Also a ``KeyError``, which is what PyG's stores raise."""

    __str__ = Exception.__str__  # KeyError would quote the message


class _Attr(TensorAttr):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``TensorAttr``, for which an array as index is set, too (PyG compares it with "unset", entry by entry)."""

    @classmethod
    def cast(cls, *args: Any, **kwargs: Any) -> Any:
        attr = super().cast(*args, **kwargs)
        return cls(attr.group_name, attr.attr_name, attr.index) if type(attr) is TensorAttr else attr

    def is_set(self, key: str) -> bool:
        return getattr(self, key) is not TensorAttr.index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorAttr):
            return NotImplemented
        fields = (field.name for field in dataclasses.fields(self))
        return all(_same(getattr(self, name), getattr(other, name, None)) for name in fields)


class FeatureStore(torch_geometric.data.FeatureStore):  # type: ignore[misc]  # PyG is untyped
    """Features of nodes and edges in this process, by group and name.

    ``group_name`` is ``None`` in graphs without types, else a node type or, for features of edges, an edge type: the
    tuple ``(src, rel, dst)``. Without types, a tensor with one row per edge belongs to the edges (where there are as
    many edges as nodes: if its name contains "edge"). Row ``i`` is that of node ``i``, or of the edge with id ``i``
    (see :class:`GraphStore`).

    Tensors are kept as they are, not copied: any torch dtype and device, numpy arrays, memory maps, sparse tensors,
    TensorFrames. An ``index`` is ``None`` (the whole tensor, itself), a slice (a view), an integer (one row, without
    its first dimension), or a tensor or array ``[count]`` of row numbers or ``[num_rows] bool`` (a new tensor).

    Args:
        tensor_attr_cls: a subclass of PyG's ``TensorAttr`` with another order of fields, or further ones; ``None``:
            ``TensorAttr``.
    """

    def __init__(self, tensor_attr_cls: type[TensorAttr] | None = None) -> None:
        super().__init__(tensor_attr_cls or _Attr)
        self._tensors: dict[Key, Any] = {}
        self._attrs: dict[Key, TensorAttr] = {}
        self._pool = BufferPool()

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Replace a tensor or, where the attribute has an index, some of its rows (in place).

        Raises:
            FeatureError: the rows do not fit.
        """
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """What the store holds: new objects, with ``index`` unset, in the order of insertion."""
        return [copy.copy(attr) for attr in self._attrs.values()]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        key = self._key(attr)
        name = _said(attr)
        if _num_rows(tensor) is None:
            raise FeatureError(
                f"Expected {name} to be a tensor, an array or a TensorFrame with one row per node or edge, got "
                f"{_kind(tensor)}. Convert it."
            )
        if _is_whole(attr.index):
            self._tensors[key] = tensor
            self._attrs[key] = copy.copy(attr)
            self._attrs[key].index = TensorAttr.index  # unset
            return True
        whole = self._tensors.get(key)
        if whole is None:
            raise UnknownTensorError(
                f"Expected all rows of {name}, as the store does not hold it yet, got an index. Put the whole tensor "
                "first (index=None), then some of its rows."
            )
        if not isinstance(whole, Tensor | np.ndarray):
            raise FeatureError(f"Rows of {name} cannot be replaced, as it is {_kind(whole)}. Put all of it.")
        index = _rows(attr.index, len(whole), name)
        rows = torch.as_tensor(tensor) if isinstance(whole, Tensor) else np.asarray(tensor)
        expected = tuple(whole[index].shape)
        if tuple(rows.shape) != expected:
            raise FeatureError(f"Expected rows of {name} of shape {list(expected)}, got {list(rows.shape)}.")
        whole[index] = rows  # type: ignore[assignment]  # of the same kind, see above
        return True

    def _get_tensor(self, attr: TensorAttr) -> Any:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[Any]:
        results: list[Any] = []
        requests: dict[int, RowRequest] = {}
        for i, attr in enumerate(attrs):
            tensor, name = self._find(attr), _said(attr)
            if _is_whole(attr.index):
                results.append(tensor)
                continue
            index = _rows(attr.index, _num_rows(tensor), name)
            if isinstance(index, Tensor):
                requests[i] = RowRequest(tensor, index, name=name)
                results.append(None)
            else:
                results.append(tensor[index])
        # A loader asks in its own threads, of which there are as many as the user wants.
        threads = torch.get_num_threads() if threading.current_thread() is threading.main_thread() else 1
        for i, rows in zip(requests, gather(requests.values(), pool=self._pool, threads=threads), strict=True):
            results[i] = rows
        return results

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        key = self._key(attr)
        self._attrs.pop(key, None)
        return self._tensors.pop(key, None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        tensor = self._tensors.get(self._key(attr))
        if tensor is None:
            return None
        if not _is_whole(attr.index):
            tensor = self._get_tensor(attr)
        return tuple(tensor.shape) if isinstance(tensor, Tensor | np.ndarray) else (len(tensor),)

    def _find(self, attr: TensorAttr) -> Any:
        tensor = self._tensors.get(self._key(attr))
        if tensor is None:
            known = ", ".join(_said(a) for a in self.get_all_tensor_attrs()) or "nothing"
            raise UnknownTensorError(f"The store does not hold {_said(attr)}. It holds: {known}.")
        return tensor

    def _key(self, attr: TensorAttr) -> Key:
        group, name = attr.group_name, attr.attr_name
        known = group is None or isinstance(group, str) or _is_edge_type(group)
        if not known or not isinstance(name, str) or isinstance(attr.index, str):
            raise FeatureError(
                "Expected the group of a tensor as None, a node type or an edge type ('src', 'rel', 'dst'), and its "
                f"name as a string, got group_name={group!r}, attr_name={name!r}, index={attr.index!r}. Name them: "
                "get_tensor(group_name=('user', 'rates', 'movie'), attr_name='time', index=None)."
            )
        return tuple(getattr(attr, field.name) for field in dataclasses.fields(attr) if field.name != "index")

    def __copy__(self) -> FeatureStore:
        """A store of its own, with the same tensors."""
        out = type(self).__new__(type(self))
        out.__dict__.update(self.__dict__)
        out._tensors, out._attrs, out._pool = dict(self._tensors), dict(self._attrs), copy.copy(self._pool)
        return out


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor | np.ndarray) or isinstance(b, Tensor | np.ndarray):
        return a is b
    return bool(a == b)


def _is_edge_type(group: Any) -> bool:
    return isinstance(group, tuple) and len(group) == 3 and all(isinstance(part, str) for part in group)


def _is_whole(index: Any) -> bool:
    return index is None or (isinstance(index, slice) and index == slice(None))


def _num_rows(tensor: Any) -> int | None:
    """Rows of anything that has some; ``None`` for anything else."""
    if isinstance(tensor, Tensor | np.ndarray):
        return int(tensor.shape[0]) if tensor.ndim > 0 else None
    if isinstance(tensor, str | bytes | list | tuple | dict) or not hasattr(tensor, "__getitem__"):
        return None
    return len(tensor) if hasattr(tensor, "__len__") else None


def _rows(index: Any, num_rows: int | None, name: str) -> Tensor | slice | int:
    """An index as row numbers ``[count] int64 or int32``, a slice forwards, or one row number."""
    assert num_rows is not None
    if isinstance(index, slice):
        begin, end, step = index.indices(num_rows)
        return slice(begin, end, step) if step > 0 else torch.arange(num_rows)[list(range(begin, end, step))]
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        if not 0 <= index < num_rows:
            raise FeatureError(f"Expected a row of {name} in [0, {num_rows}), got {index}. Check the ids.")
        return int(index)
    if isinstance(index, np.ndarray):
        index = torch.from_numpy(index)
    if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point() or index.is_complex():
        raise FeatureError(
            f"Expected an index of {name} as None, a slice, an integer, or a tensor or array of shape [count] of row "
            f"numbers, got {_kind(index)}."
        )
    if index.dtype == torch.bool:
        if index.numel() != num_rows:
            raise FeatureError(f"Expected a mask of {name} of shape [{num_rows}], got {list(index.shape)}.")
        return index.nonzero().view(-1)
    return index if index.dtype in (torch.int32, torch.int64) else index.long()


def _said(attr: TensorAttr) -> str:
    return repr(attr.attr_name) if attr.group_name is None else f"{attr.attr_name!r} of {attr.group_name!r}"


def _kind(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype} of shape {list(value.shape)}"
    return f"a {type(value).__name__}"
