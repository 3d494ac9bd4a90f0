"""Items of batches: seed nodes, seed edges, labels, ..., of one or multiple types."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop.system.arrays import describe
from manyhop_graphbolt.types import show

Index = int | slice | Iterable[int]

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch indexes no tensors of these
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class ItemSet:
    """Items of one type: the rows of a tensor, or of multiple parallel tensors.

    ``items[i]`` is row ``i`` of each tensor (a tuple only for multiple tensors), ``items[a:b]`` and ``items[ids]``
    select multiple rows.

    Args:
        items: a number ``n`` or a scalar tensor (the items ``0 .. n - 1``, of its dtype); a tensor, an array or a list
            of numbers, whose first dimension counts the items; or a tuple of these.
        names: the attributes of a :class:`MiniBatch` that the items become, one per tensor (``None``: only your own
            minibatcher reads this tensor): ``"seeds"`` (``"seed_nodes"`` or ``"node_pairs"`` in DGL 2.1),
            ``"labels"``, ``"indexes"``.

    Raises:
        InputError: items that are not numbers in memory, other numbers of names than of items, or different lengths.
    """

    names: tuple[str | None, ...] | None
    """The name of each element of an item."""

    items: Any
    """The number of items, or a tuple of parallel tensors."""

    def __init__(self, items: Any, names: str | tuple[str | None, ...] | None = None) -> None:
        self.names = None if names is None else (names,) if isinstance(names, str) else tuple(names)
        if _is_scalar(items):
            self.items = items if isinstance(items, Tensor) else int(items)
            lengths = [int(items)]
        else:
            self.items = tuple(map(_rows, items if isinstance(items, tuple) else (items,)))
            lengths = [len(item) for item in self.items]
        if lengths == [] or lengths[0] < 0:
            raise InputError(f"Expected at least one tensor of items, or a number of at least 0, got {items}.")
        if self.names is not None and len(self.names) != self.num_items:
            raise InputError(
                f"Number of items ({self.num_items}) and names ({len(self.names)}) must match, got {self.names}. "
                "Name each of them."
            )
        if len(set(lengths)) > 1:
            raise InputError(f"Expected items of the same length, got {lengths} for the names {self.names}.")
        self._length = lengths[0]

    @property
    def num_items(self) -> int:
        """The number of elements of an item."""
        return len(self.items) if isinstance(self.items, tuple) else 1

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._length))

    def __getitem__(self, index: Index) -> Any:
        """Return items by number, by slice or by ``[count]`` numbers."""
        at = _checked(index, self._length, type(self).__name__)
        if isinstance(self.items, Tensor):
            return torch.as_tensor(at).to(self.items.dtype)
        if isinstance(self.items, int):
            return at
        found = [item[at] if isinstance(at, int) else item.index_select(0, at.to(item.device)) for item in self.items]
        return found[0] if len(found) == 1 else tuple(found)

    def __repr__(self) -> str:
        return show(type(self).__name__, {"items": self.items, "names": self.names})


class HeteroItemSet:
    """Items of multiple types, one type after another: a dictionary of :class:`ItemSet`.

    ``items[i]`` is ``{type: item}``, ``items[a:b]`` and ``items[ids]`` have an entry for each type that occurs.

    Args:
        itemsets: node type, or edge type as ``"source:relation:destination"`` -> its items. All have the same names.

    Raises:
        InputError: no item sets, or different names.
    """

    names: tuple[str | None, ...] | None
    """The name of each element of an item."""

    by_type: dict[str, ItemSet]
    """The items of each type."""

    def __init__(self, itemsets: Mapping[str, ItemSet]) -> None:
        if not isinstance(itemsets, Mapping) or not itemsets:
            raise InputError(f"Expected at least one item set, as {{type: ItemSet}}, got {itemsets!r}.")
        for key, itemset in itemsets.items():
            if not isinstance(itemset, ItemSet):
                kind = type(itemset).__name__
                raise InputError(f"Expected an ItemSet for '{key}', got a {kind}. Wrap it: ItemSet(items, names=...)")
        self.by_type = dict(itemsets)
        self.names, *others = [itemset.names for itemset in itemsets.values()]
        if any(names != self.names for names in others):
            got = {key: itemset.names for key, itemset in itemsets.items()}
            raise InputError(f"All itemsets must have the same names: got {got}.")
        self._offsets = np.cumsum([0, *map(len, itemsets.values())]).tolist()

    def __len__(self) -> int:
        """Return the number of items of all types."""
        return int(self._offsets[-1])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Index) -> dict[str, Any]:
        """Return items by number, by slice or by ``[count]`` numbers; in the given order within each type."""
        at: Any = _checked(index, len(self), type(self).__name__)
        if isinstance(at, int):
            k = bisect_right(self._offsets, at) - 1
            key, items = list(self.by_type.items())[k]
            return {key: items[at - self._offsets[k]]}
        kind = torch.searchsorted(torch.tensor(self._offsets), at, right=True) - 1
        parts = {key: at[kind == k] - self._offsets[k] for k, key in enumerate(self.by_type)}
        return {key: self.by_type[key][part] for key, part in parts.items() if part.numel()}

    def __repr__(self) -> str:
        return show(type(self).__name__, {"itemsets": self.by_type, "names": self.names})


ItemSetDict = HeteroItemSet
"""The name of :class:`HeteroItemSet` in DGL 2.1."""


def _is_scalar(x: object) -> bool:
    """Return whether ``x`` is a number of items."""
    if not isinstance(x, Tensor | np.ndarray) or (isinstance(x, Tensor) and x.is_nested) or x.ndim > 0:
        return isinstance(x, int | np.integer)
    if as_tensor("a number of items", x).dtype not in _INTEGERS:
        raise InputError(f"Expected a number of items as an integer, got {describe(x)}.")
    return True


def _rows(item: object) -> Tensor:
    """Return items as a tensor that torch can index."""
    rows = as_tensor("items", item)
    if rows.dtype in UNSIGNED:
        raise InputError(f"Expected items of a dtype that torch can index, got {rows.dtype}. Convert them to int64.")
    if rows.dim() == 0:
        raise InputError(f"Expected items with a first dimension that counts them, got {describe(item)}.")
    return rows


def _checked(index: object, length: int, name: str) -> Any:
    """Return an integer in ``[0, length)``, or ``[count] int64``."""
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        at = int(index) + length if index < 0 else int(index)
        if not 0 <= at < length:
            raise IndexError(f"{name} index out of range: expected one in [0, {length}), got {int(index)}.")
        return at
    if isinstance(index, slice):
        start, stop, step = index.indices(length)
        return torch.arange(start, max(start, stop) if step > 0 else min(start, stop), step)
    if isinstance(index, str | bytes) or not isinstance(index, Iterable):
        raise TypeError(f"{name} indices must be int, slice, or iterable of int, got {type(index).__name__}.")
    ids = as_tensor(f"indices of {name}", index)
    if ids.numel() == 0:
        return ids.to(torch.int64).view(-1)
    if ids.dim() > 1 or ids.dtype not in (*_INTEGERS, *UNSIGNED):
        raise TypeError(f"{name} indices must be one-dimensional integers, got {ids.dtype} of shape {list(ids.shape)}.")
    if ids.dim() == 0:
        return _checked(int(ids), length, name)
    ids = ids.to(torch.int64)
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < -length or high >= length:
        raise IndexError(f"{name} index out of range: expected [0, {length}), got {low if low < -length else high}.")
    return torch.where(ids < 0, ids + length, ids) if low < 0 else ids
