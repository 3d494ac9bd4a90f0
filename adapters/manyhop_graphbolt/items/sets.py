"""Items of batches: seed nodes, seed edges, labels, ..., of one or multiple types."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop.system.arrays import describe, from_array

Index = int | slice | Iterable[int]

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch indexes no tensors of these
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class ItemSet:
    """Items of one type: the rows of one or multiple tensors, arrays, lists or iterables that run in parallel.

    ``items[i]`` is the item ``i`` of each of them (not in a tuple if there is but one), ``items[a:b]`` and
    ``items[ids]`` those of multiple.

    Args:
        items: an integer ``n`` or a scalar tensor (the items ``0 .. n - 1``, of its dtype); a tensor, an array, a
            sequence or an iterable, whose first dimension counts the items; or a tuple of such.
        names: the attributes of a :class:`MiniBatch` that the items become, one per element of the tuple (``None``:
            only a minibatcher of your own reads this element):
            ``"seeds"`` (or, as in DGL 2.1, ``"seed_nodes"`` or ``"node_pairs"``), ``"labels"``, ``"indexes"``.

    Raises:
        InputError: as many names as items are not given, or the items have different lengths.
    """

    def __init__(self, items: Any, names: str | tuple[str | None, ...] | None = None) -> None:
        self._items: Any = items if _is_scalar(items) else tuple(map(_readable, _as_tuple(items)))
        self._num_items = len(self._items) if isinstance(self._items, tuple) else 1
        if _is_scalar(items) and int(items) < 0:
            raise InputError(f"Expected a number of items, at least 0, got {int(items)}.")
        if self._num_items == 0:
            raise InputError("Expected at least one tensor of items, got an empty tuple.")
        self._names = None if names is None else (names,) if isinstance(names, str) else tuple(names)
        if self._names is not None and len(self._names) != self._num_items:
            raise InputError(
                f"Number of items ({self._num_items}) and names ({len(self._names)}) must match, got {self._names}. "
                "Name each of them."
            )
        self._length = self._find_length()
        self._begun = False

    def _find_length(self) -> int | None:
        """Return the number of items; ``None`` if it is unknown."""
        if _is_scalar(self._items):
            return int(self._items)
        try:
            lengths = [len(item) for item in self._items]
        except TypeError:  # of iterables, and of item sets of those
            return None
        if len(set(lengths)) > 1:
            raise InputError(f"Expected items of the same length, got {lengths} for the names {self._names}.")
        return lengths[0]

    @property
    def names(self) -> tuple[str | None, ...] | None:
        """The name of each element of an item."""
        return self._names

    @property
    def items(self) -> Any:
        """A number of items, or a tuple of parallel sources."""
        return self._items

    @property
    def num_items(self) -> int:
        """The number of elements of an item."""
        return self._num_items

    def __len__(self) -> int:
        """How many items.

        Raises:
            TypeError: the items come from an iterable without a length.
        """
        if self._length is None:
            raise TypeError(f"{type(self).__name__} instance doesn't have valid length.")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        if _is_scalar(self._items):
            yield from self[:]
        elif len(self._items) == 1:
            yield from self._items[0]
        elif self._length is None:
            yield from zip(*self._items, strict=True)
        else:
            for i in range(self._length):
                yield tuple(item[i] for item in self._items)

    def _begin(self) -> None:
        """Raise InputError where an iterator, which can be read once, has been read before."""
        used = [item for item in self._items if isinstance(item, Iterator)] if isinstance(self._items, tuple) else []
        if used and self._begun:
            raise InputError(
                f"Expected items that can be iterated again, got a {type(used[0]).__name__}, an iterator that was "
                "read before. Pass a list, or an object whose __iter__ begins anew."
            )
        self._begun = True

    def __getitem__(self, index: Index) -> Any:
        """Items by number, by slice or by ``[count]`` numbers.

        Raises:
            TypeError: the items come from an iterable without a length, or the index is of another kind.
            IndexError: there is no such item.
        """
        if self._length is None:
            raise TypeError(f"{type(self).__name__} instance doesn't support indexing.")
        index = _checked(index, self._length, type(self).__name__)
        if _is_scalar(self._items):
            return _numbers(index, self._items)
        found = tuple(_take(item, index) for item in self._items)
        return found[0] if len(found) == 1 else found

    def __repr__(self) -> str:
        return f"{type(self).__name__}(\n    items={self._items},\n    names={self._names},\n)"


class HeteroItemSet:
    """Items of multiple types, one type after another: a dictionary of :class:`ItemSet`.

    ``items[i]`` is ``{type: item}``, ``items[a:b]`` and ``items[ids]`` have an entry for each type that occurs.

    Args:
        itemsets: node type, or edge type as ``"source:relation:destination"`` -> its items. All have the same names.

    Raises:
        InputError: no item sets, or different names.
    """

    def __init__(self, itemsets: Mapping[str, ItemSet]) -> None:
        if not isinstance(itemsets, Mapping) or not itemsets:
            raise InputError(f"Expected at least one item set, as {{type: ItemSet}}, got {itemsets!r}.")
        for key, itemset in itemsets.items():
            if not hasattr(itemset, "names"):
                kind = type(itemset).__name__
                raise InputError(f"Expected an ItemSet for '{key}', got a {kind}. Wrap it: ItemSet(items, names=...)")
        self._itemsets = dict(itemsets)
        self._names = next(iter(self._itemsets.values())).names
        if any(itemset.names != self._names for itemset in self._itemsets.values()):
            got = {key: itemset.names for key, itemset in self._itemsets.items()}
            raise InputError(f"All itemsets must have the same names: got {got}.")
        self._keys = list(self._itemsets)
        self._offsets: list[int] | None = None
        try:
            self._offsets = [0]
            for itemset in self._itemsets.values():
                self._offsets.append(self._offsets[-1] + len(itemset))
        except TypeError:
            self._offsets = None

    @property
    def names(self) -> tuple[str | None, ...] | None:
        """The name of each element of an item."""
        return self._names

    @property
    def by_type(self) -> dict[str, ItemSet]:
        """The items of each type."""
        return self._itemsets

    def __len__(self) -> int:
        """How many items there are of all types.

        Raises:
            TypeError: some come from an iterable without a length.
        """
        return sum(len(itemset) for itemset in self._itemsets.values())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for key, itemset in self._itemsets.items():
            for item in itemset:
                yield {key: item}

    def __getitem__(self, index: Index) -> dict[str, Any]:
        """Items by number, by slice or by ``[count]`` numbers; inside each type, in the given order.

        Raises:
            TypeError: some items come from an iterable without a length, or the index is of another kind.
            IndexError: there is no such item.
        """
        if self._offsets is None:
            raise TypeError(f"{type(self).__name__} instance doesn't support indexing.")
        at: Any = _checked(index, self._offsets[-1], type(self).__name__)
        if isinstance(at, int):
            k = bisect_right(self._offsets, at) - 1
            return {self._keys[k]: self._itemsets[self._keys[k]][at - self._offsets[k]]}
        found = {}
        if isinstance(at, slice) and at.step == 1:
            for key, begin, end in zip(self._keys, self._offsets[:-1], self._offsets[1:], strict=True):
                low, high = max(at.start, begin), min(at.stop, end)
                if low < high:
                    found[key] = self._itemsets[key][low - begin : high - begin]
            return found
        ids = torch.arange(at.start, at.stop, at.step) if isinstance(at, slice) else at
        kind = torch.searchsorted(torch.tensor(self._offsets), ids, right=True) - 1
        for k, key in enumerate(self._keys):
            mine = ids[kind == k]
            if mine.numel():
                found[key] = self._itemsets[key][mine - self._offsets[k]]
        return found

    def __repr__(self) -> str:
        itemsets = textwrap.indent(repr(self._itemsets), " " * len("    itemsets=")).strip()
        return f"{type(self).__name__}(\n    itemsets={itemsets},\n    names={self._names},\n)"


ItemSetDict = HeteroItemSet
"""The name of :class:`HeteroItemSet` in DGL 2.1."""


def own_item_set(items: Any) -> ItemSet | HeteroItemSet:
    """Return an item set of this package; convert others, which have ``names`` and ``[...]``, by reading ``[:]``.

    Raises:
        InputError: no item set.
    """
    if isinstance(items, ItemSet | HeteroItemSet):
        return items
    if not hasattr(items, "names") or not (hasattr(items, "__getitem__") or hasattr(items, "__iter__")):
        raise InputError(
            f"Expected an ItemSet or a HeteroItemSet, got a {type(items).__name__}. Wrap it: ItemSet(items, names=...)"
        )
    try:
        whole = items[:]
    except TypeError:  # it can only be iterated
        return _Streamed(items)
    if isinstance(whole, Mapping):
        return HeteroItemSet({key: ItemSet(value, items.names) for key, value in whole.items()})
    return ItemSet(whole, items.names)


class _Streamed(ItemSet):
    """Items of an item set that can only be iterated."""

    def __init__(self, items: Any) -> None:
        super().__init__((_Endless(items.__iter__),))
        self._names = items.names


class _Endless:
    """An iterable without a length."""

    def __init__(self, begin: Callable[[], Iterator[object]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def collate(items: Sequence[object]) -> Any:
    """Collate single items, which can be DGL graphs, to a batch."""
    if type(items[0]).__name__ == "DGLGraph":
        import dgl

        return dgl.batch(list(items))
    return default_collate(list(items))


def _as_tuple(items: object) -> tuple[object, ...]:
    return items if isinstance(items, tuple) else (items,)


def _is_scalar(x: object) -> bool:
    """Return whether ``x`` is a number of items.

    Raises:
        InputError: a number of another kind.
    """
    if not isinstance(x, Tensor | np.ndarray) or (isinstance(x, Tensor) and x.is_nested) or x.ndim > 0:
        return isinstance(x, int | np.integer)
    if as_tensor("a number of items", x).dtype not in _INTEGERS:
        raise InputError(f"Expected a number of items as an integer, got {describe(x)}.")
    return True


def _readable(item: object) -> object:
    """Return a source of items that torch can index: the source itself, or a copy.

    Raises:
        InputError: no numbers in memory, or no rows.
    """
    if not isinstance(item, Tensor | np.ndarray):
        return item
    dense = as_tensor("items", item if isinstance(item, Tensor) else item.reshape(-1)[:0])  # of a file: not all of it
    if dense.dtype in UNSIGNED:
        raise InputError(f"Expected items of a dtype that torch can index, got {item.dtype}. Convert them to int64.")
    if item.ndim == 0:
        raise InputError(f"Expected items with a first dimension that counts them, got {describe(item)}.")
    if isinstance(item, np.ndarray):
        return item if item.dtype.isnative else as_tensor("items", item)
    return dense if item.is_conj() or item.is_neg() else item


def _checked(index: object, length: int, name: str) -> Any:
    """Return an integer in ``[0, length)``, a slice without ``None``, or ``[count] int64``."""
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        at = int(index) + length if index < 0 else int(index)
        if not 0 <= at < length:
            raise IndexError(f"{name} index out of range: expected one in [0, {length}), got {int(index)}.")
        return at
    if isinstance(index, slice):
        start, stop, step = index.indices(length)
        return slice(start, stop, step) if step > 0 else torch.arange(start, stop, step)
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


def _numbers(index: Any, total: int | Tensor) -> Any:
    """Return some of the numbers ``0 .. total - 1``, of the dtype of ``total``."""
    dtype = total.dtype if isinstance(total, Tensor) else torch.int64
    if isinstance(index, slice):
        return torch.arange(index.start, index.stop, index.step, dtype=dtype)
    if isinstance(index, int):
        return torch.tensor(index, dtype=dtype) if isinstance(total, Tensor) else index
    return index.to(dtype)


def _take(item: Any, index: Any) -> object:
    """Return rows of one of the parallel sources."""
    if isinstance(item, np.ndarray):
        found = item[index.numpy() if isinstance(index, Tensor) else index]
        return found if isinstance(index, int) else from_array(found)
    if isinstance(item, Tensor):
        return item.index_select(0, index.to(item.device)) if isinstance(index, Tensor) else item[index]
    if isinstance(index, Tensor):
        return collate([item[i] for i in index.tolist()])
    return item[index]


def batched(items: object) -> object:
    """Collate the lists in a slice of an item set, as if the items had been picked one by one."""
    if isinstance(items, Mapping):
        return {key: batched(value) for key, value in items.items()}
    if isinstance(items, tuple):
        return tuple(batched(item) for item in items)
    return collate(items) if isinstance(items, list | range) else items


def collated(items: list[Any]) -> Any:
    """Collate single items to a batch; items of multiple types by type."""
    if not isinstance(items[0], Mapping):
        batch = collate(items)
        return tuple(batch) if isinstance(items[0], tuple) else batch
    by_type: dict[str, list[object]] = {}
    for item in items:
        for key, value in item.items():
            by_type.setdefault(key, []).append(value)
    return {key: collated(values) for key, values in by_type.items()}
