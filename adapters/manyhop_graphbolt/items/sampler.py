"""Item sets, and samplers that cut them into batches. The items of a batch are a function of seed, epoch and batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from manyhop.arguments import as_tensor, callables, flag, flags, integer
from manyhop.errors import InputError
from manyhop.loading.pipeline import BatchPlan, ItemParts, RankSchedule, check_num_parts, parts_of
from manyhop.sampling import BatchKey
from manyhop.system.arrays import describe
from manyhop_dgl.samplers.arguments import draw
from manyhop_graphbolt.items.minibatch import MiniBatch, Minibatcher, minibatcher_default
from manyhop_graphbolt.types import DataPipe, by_type, ends_of, show

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

    _items: Any
    """The number of items, or a tuple of parallel tensors."""

    def __init__(self, items: Any, names: str | tuple[str | None, ...] | None = None) -> None:
        self.names = None if names is None else (names,) if isinstance(names, str) else tuple(names)
        if _is_scalar(items):
            self._items = items if isinstance(items, Tensor) else int(items)
            lengths = [int(items)]
        else:
            self._items = tuple(map(_rows, items if isinstance(items, tuple) else (items,)))
            lengths = [len(item) for item in self._items]
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
        return len(self._items) if isinstance(self._items, tuple) else 1

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._length))

    def __getitem__(self, index: Index) -> Any:
        """Return items by number, by slice or by ``[count]`` numbers."""
        at = _checked(index, self._length, type(self).__name__)
        if isinstance(self._items, Tensor):
            return torch.as_tensor(at).to(self._items.dtype)
        if isinstance(self._items, int):
            return at
        found = [item[at] if isinstance(at, int) else item.index_select(0, at.to(item.device)) for item in self._items]
        return found[0] if len(found) == 1 else tuple(found)

    def __repr__(self) -> str:
        return show(type(self).__name__, {"items": self._items, "names": self.names})


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
                raise InputError(f"Expected an ItemSet for '{key}', got a {type(itemset).__name__}. Pass ItemSet(...).")
        self.by_type = self._itemsets = dict(itemsets)  # the second is GraphBolt's name, which its examples use
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


_NAMES: Final = ("seeds", "seed_nodes", "node_pairs")


def nodes_of(items: ItemSet | HeteroItemSet, num_nodes: int | Mapping[str, int]) -> list[tuple[Tensor, int]]:
    """Return for each type of items the node of each item, of an edge its source, and the number of such nodes."""
    found = []
    counts = by_type(num_nodes)
    for kind, one in ({None: items} if isinstance(items, ItemSet) else items.by_type).items():
        node_type = ends_of(kind)[0] if kind is not None and ":" in kind else kind
        if node_type not in counts:
            raise InputError(f"Expected num_nodes with a number for '{node_type}', got {num_nodes!r}.")
        place = next((i for i, name in enumerate(one.names or ()) if name in _NAMES), None)
        if place is None:
            raise InputError(f"Expected items with one of the names {_NAMES} for seed_parts, got {one.names}.")
        whole = one[:]
        seeds: Tensor = whole[place] if isinstance(whole, tuple) else whole
        if seeds.dim() not in (1, 2) or seeds.is_floating_point():
            raise InputError(f"Expected integers of shape [n] or [n, 2] for seed_parts, got other items {one.names}.")
        found.append((seeds if seeds.dim() == 1 else seeds[:, 0], integer("num_nodes", counts[node_type], 0)))
    return found


class ItemSampler(DataPipe):
    """Cuts the items of an item set into minibatches. Each iteration is the next epoch.

    The items of batch ``b`` of epoch ``e`` are a function of ``(seed, e, b)``. Without a seed, each epoch draws one,
    and is epoch 0 of that seed.

    Args:
        item_set: an :class:`ItemSet` or a :class:`HeteroItemSet`.
        batch_size: items per batch.
        minibatcher: ``minibatcher(items, names)`` makes a minibatch.
        drop_last: leave out a last batch that is not full.
        shuffle: permute the items in each epoch.
        seed: any integer; ``None``: each epoch draws its own, see :func:`seed`.

    Raises:
        InputError: an argument does not make sense.
    """

    def __init__(
        self,
        item_set: object,
        batch_size: int,
        minibatcher: Minibatcher = minibatcher_default,
        drop_last: bool = False,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(item_set, ItemSet | HeteroItemSet):
            raise InputError(
                f"Expected an ItemSet or a HeteroItemSet, got a {type(item_set).__name__}. Wrap it: ItemSet(items, ...)"
            )
        self.item_set = item_set
        self.batch_size = batch_size
        self.seed = None if seed is None else integer("seed", seed)
        self.minibatcher = minibatcher
        flags(shuffle=shuffle, drop_last=drop_last)
        callables(minibatcher=minibatcher)
        self.plan = BatchPlan(  # its seed is that of all epochs, if there is one
            len(item_set), batch_size, shuffle=bool(shuffle), drop_last=bool(drop_last), seed=self.seed or 0
        )
        self.next_epoch = 0
        """The epoch of the next iteration."""

    def deal(self, first: int = 0) -> RankSchedule:
        """Return the batches of this rank in an epoch, after the ``first`` ones of all ranks."""
        return RankSchedule(num_batches=len(self.plan), first=first)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        return len(self.deal())

    def items_of_several(self, positions: Sequence[Tensor], device: torch.device) -> list[object]:
        """Return the items of multiple batches, by one lookup if they have one type.

        Args:
            positions: of each batch.
            device: a GPU, to which one copy moves the items; a CPU: they are not moved.
        """
        if isinstance(self.item_set, HeteroItemSet):
            return [self.item_set[some] for some in positions]
        items = self.item_set[torch.cat(list(positions))]
        parts: tuple[Tensor, ...] = items if isinstance(items, tuple) else (items,)
        if device.type == "cuda":
            # From pinned memory: larger copies from other memory wait for the GPU.
            parts = tuple(part if part.is_cuda else part.pin_memory().to(device, non_blocking=True) for part in parts)
        sizes = [len(some) for some in positions]
        split = zip(*[part.split_with_sizes(sizes) for part in parts], strict=True)
        return [some if isinstance(items, tuple) else some[0] for some in split]

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise InputError(
                "Expected iteration in the process that made the pipeline, got a worker process of torch's "
                "DataLoader. Use the DataLoader of this package, whose workers are threads."
            )
        seed, number = (self._draw(), 0) if self.seed is None else (self.seed, self.next_epoch)
        plan = replace(self.plan, seed=seed)
        self.next_epoch += 1
        for rank_batch in self.deal():
            positions = torch.from_numpy(plan.indices(number, rank_batch.batch))
            yield self.dressed(self.item_set[positions], BatchKey(seed, number, rank_batch.batch))

    def _draw(self) -> int:
        return draw()

    def dressed(self, items: object, key: BatchKey | None) -> object:
        """Apply the minibatcher to items; a :class:`MiniBatch` gets its key."""
        made = self.minibatcher(items, self.item_set.names)
        if isinstance(made, MiniBatch):
            made.key = key
        return made


class DistributedItemSampler(ItemSampler):
    """An :class:`ItemSampler` whose batches are dealt out to the ranks of torch's process group.

    Rank ``r`` of ``W`` gets the global batches ``r, r + W, r + 2 * W``, ...: the content of an
    epoch does not depend on the number of ranks. If the number of batches is not a multiple of ``W``, the first
    ranks have one batch more than the others; use ``drop_uneven_inputs``, or torch's ``Join``, so that none waits.

    Args:
        item_set: see :class:`ItemSampler`, also for ``minibatcher``.
        batch_size: items per batch of a rank.
        drop_last: see :class:`ItemSampler`; the one batch of the epoch that is not full is left out.
        shuffle: see :class:`ItemSampler`; among all items of all ranks.
        drop_uneven_inputs: leave out the last batches, so that all ranks have the same number.
        seed: the same on all ranks; ``None``: rank 0 draws one when the first loader is created.
        seed_parts: number of equal slices of the nodes. Each batch has seeds of one slice (edges: by their sources),
            and is assigned to a rank with this slice of the features, if possible; ``None``: seeds of all slices.
        num_nodes: only with ``seed_parts``, which needs it: the graph's ``num_nodes``, a number or one per node type.

    Raises:
        InputError: no process group, or items without nodes, which ``seed_parts`` needs.
    """

    def __init__(
        self,
        item_set: object,
        batch_size: int,
        minibatcher: Minibatcher = minibatcher_default,
        drop_last: bool = False,
        shuffle: bool = False,
        drop_uneven_inputs: bool = False,
        seed: int | None = None,
        *,
        seed_parts: int | None = None,
        num_nodes: int | Mapping[str, int] | None = None,
    ) -> None:
        dist = torch.distributed
        if not dist.is_available() or not dist.is_initialized():
            raise InputError(
                "Expected a process group for sharing batches, got none. Call torch.distributed.init_process_group() "
                "first, or use ItemSampler."
            )
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()
        super().__init__(item_set, batch_size, minibatcher, drop_last, shuffle, seed)
        self._drop_uneven_inputs = flag("drop_uneven_inputs", drop_uneven_inputs)
        self.seed_parts = seed_parts
        if (seed_parts is None) != (num_nodes is None):
            raise InputError(
                f"Expected seed_parts and num_nodes together, got {seed_parts!r} and {num_nodes!r}. Pass the graph's "
                "num_nodes, or leave both out."
            )
        if seed_parts is not None and num_nodes is not None:
            check_num_parts(seed_parts)
            found = [parts_of(nodes, count, seed_parts) for nodes, count in nodes_of(self.item_set, num_nodes)]
            self.plan = replace(self.plan, parts=ItemParts(np.concatenate(found), seed_parts, self.batch_size))

    def _draw(self) -> int:
        raise InputError(
            "Expected a DistributedItemSampler with a seed that all ranks share, got none. Pass seed=, or use a "
            "DataLoader, which agrees on one."
        )

    def deal(self, first: int = 0) -> RankSchedule:
        """Return the batches of this rank in an epoch, after the ``first`` ones of all ranks."""
        return RankSchedule(
            num_batches=len(self.plan),
            world_size=self.world_size,
            rank=self.rank,
            first=first,
            uneven="drop" if self._drop_uneven_inputs else "keep",
            parts=self.plan.parts,
        )
