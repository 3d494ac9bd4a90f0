"""Features by id: in tensors, and stores of multiple; rows of multiple features by one gather."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_ids, as_tensor, check_range
from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows, gather, is_pinned, pin
from manyhop.files import Rows
from manyhop.loading import current_exchange, current_key
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.places import Place
from manyhop.memory.stores import GPURows, NodeRows, StoreExchange, as_it_is, rows_in, store_device
from manyhop.system.arrays import describe, has_memory
from manyhop.system.progress import to_device
from manyhop_graphbolt.types import show

FeatureKey = tuple[str, str | None, str]
"""Domain (``"node"``, ``"edge"`` or ``"graph"``), node or edge type (``None``: the graph has but one), name."""

Gather: TypeAlias = Callable[[list[RowRequest]], list[Any]]
"""Rows of multiple requests, as :func:`manyhop.features.gather` returns them."""

ReadRequest = tuple[str, str | None, str, Tensor]
"""Domain, type, name, and ``[count]`` integer row numbers."""


class Feature:
    """Rows of numbers, one per node or edge. Subclasses define where they reside."""

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows ``ids`` (``[count]`` integer; ``None``: all) as ``[count, ...]``."""
        raise NotImplementedError

    def size(self) -> torch.Size:
        """Return the shape of one row."""
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Set the rows ``ids`` to ``value``, ``[count, ...]``; ``None``: all."""
        raise NotImplementedError

    def metadata(self) -> dict[str, object]:
        """Return further metadata of the feature."""
        return {}

    def table(self) -> Any:
        """Return the tensor whose rows ``read`` returns, or the object that exchanges them, or ``None``."""
        return None

    def source(self, ids: Tensor) -> Any:
        """Return the source of these rows for :func:`manyhop.features.gather`; ``None``: only ``read`` returns them."""
        return self.table()


class FeatureStore:
    """Features by domain, type and name. Subclasses define ``read``."""

    def read(self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None) -> Tensor:
        """Return the rows ``ids`` of a feature; ``None``: all."""
        raise NotImplementedError


class BasicFeatureStore(FeatureStore):
    """A dictionary of features.

    Args:
        features: (domain, type, name) -> a :class:`Feature`, or another object with its methods.

    Raises:
        InputError: keys of another form, or features without a method ``read``, such as plain tensors.
    """

    def __init__(self, features: Mapping[FeatureKey, object]) -> None:
        self._features: dict[FeatureKey, Any] = {}
        for key, feature in features.items():
            self[key] = feature

    def __getitem__(self, key: FeatureKey) -> Any:
        """One feature."""
        try:
            return self._features[key]
        except KeyError:
            domain, type_name, name = key
            of = f" of {domain} type '{type_name}'" if type_name is not None else f" of the {domain}s"
            raise FeatureError(f"Expected one of {self.keys()}, got '{name}'{of}. Add it to the store.") from None

    def __setitem__(self, key: FeatureKey, feature: object) -> None:
        if not isinstance(key, tuple) or len(key) != 3:
            raise InputError(f"Expected features by (domain, type, name), such as ('node', None, 'feat'), got {key!r}.")
        if not callable(getattr(feature, "read", None)):
            remedy = ": put it into a TorchBasedFeature(tensor)" if isinstance(feature, Tensor) else ""
            raise InputError(
                f"Expected a Feature, or another object with a method read, for {key!r}, got a "
                f"{type(feature).__name__}{remedy}"
            )
        self._features[key] = feature

    def __contains__(self, key: object) -> bool:
        return key in self._features

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self._features)

    def keys(self) -> list[FeatureKey]:
        """Return the keys of all features."""
        return list(self._features)

    def items(self) -> list[tuple[FeatureKey, Any]]:
        """Return the keys and features."""
        return list(self._features.items())

    def read(self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None) -> Tensor:
        """Return the rows ``ids`` of a feature; ``None``: all.

        Raises:
            FeatureError: there is no such feature, or no such row.
        """
        rows: Tensor = self[domain, type_name, feature_name].read(ids)
        return rows

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """Return the shape of one row of a feature."""
        size: torch.Size = self[domain, type_name, feature_name].size()
        return size

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """Return the number of rows of a feature."""
        return int(self[domain, type_name, feature_name].count())

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, object]:
        """Return further metadata of a feature."""
        metadata: dict[str, object] = self[domain, type_name, feature_name].metadata()
        return metadata

    def update(
        self, domain: str, type_name: str | None, feature_name: str, value: Tensor, ids: Tensor | None = None
    ) -> None:
        """Set the rows ``ids`` of a feature; ``None``: all."""
        self[domain, type_name, feature_name].update(value, ids)


def read_by(store: Any, requests: Sequence[ReadRequest], gather_rows: Gather) -> list[Tensor]:
    """Return rows of multiple features: ``gather_rows`` gathers the features of this package at once."""
    results: list[Any] = [None] * len(requests)
    gathered: dict[int, RowRequest] = {}
    indices: dict[int, Tensor] = {}
    for i, (domain, type_name, name, ids) in enumerate(requests):
        index = indices.setdefault(id(ids), row_numbers(ids))
        feature = own_feature(store, (domain, type_name, name))
        source = None if feature is None else feature.source(index)
        if source is None:
            results[i] = store.read(domain, type_name, name, ids)
        else:
            gathered[i] = RowRequest(source, index, name=title_of(domain, type_name, name))
    for i, found in zip(gathered, gather_rows(list(gathered.values())), strict=True):
        results[i] = found
    return results


def own_feature(store: Any, key: FeatureKey) -> Feature | None:
    """Return a feature of a store, if the store reads it by the feature's own ``read``."""
    plain = isinstance(store, BasicFeatureStore) and type(store).read is BasicFeatureStore.read
    feature = store[key] if plain else None
    return feature if isinstance(feature, Feature) else None


@cache
def title_of(domain: str, type_name: str | None, name: str) -> str:
    """Return the name of a feature in errors and statistics."""
    return f"{domain} feature '{name}'" + (f" of type '{type_name}'" if type_name is not None else "")


def row_numbers(ids: object) -> Tensor:
    """Return row numbers for gathering: integers of other widths become int64."""
    if isinstance(ids, Tensor) and ids.dtype == torch.uint8:  # GraphBolt's masks are bool
        ids = ids.long()
    return as_ids("ids", ids, error=FeatureError)


_PAGES_OF_ITS_OWN = 1 << 26  # bytes of tensors that share no pages with others; malloc's threshold is at most 32 MiB


def pinned(tensor: Tensor) -> Tensor:
    """Pin a tensor of the CPU in place, or copy a small one, which shares its pages with others, to pinned memory."""
    if tensor.device.type != "cpu":
        return tensor
    if not torch.cuda.is_available():
        raise InputError("Expected a CUDA device to pin memory for, found none. Do not pin on this machine.")
    if is_pinned(tensor):
        return tensor
    if tensor.nbytes < _PAGES_OF_ITS_OWN:
        return tensor.pin_memory()
    pin(tensor)
    return tensor


_Held: TypeAlias = Tensor | ShardedRows | DistributedRows
_NAME = "the feature"  # in errors


class TorchBasedFeature(Feature):
    """A feature in a tensor.

    Rows are returned on the device of the ids. A GPU reads pinned memory directly; rows of other memory of the CPU are
    gathered there, and sent. Those of a tensor on a GPU remain there.

    Rows that are sharded over multiple nodes, or distributed over GPUs, are exchanged: all ranks call :meth:`read` and
    :meth:`update` together. A loader over them begins with a :class:`DistributedItemSampler`.

    Args:
        torch_feature: ``[count, ...]``, of at least two dimensions: in memory, pinned, on a GPU, or mapped from a file;
            or ``manyhop.files.open(...)``, from which each rank reads only its own rows. ``WholeMemory``,
            ``ShardedRows``, ``DistributedRows`` and DLPack objects are used unchanged, regardless of ``placement``.
        metadata: what else is known of it.
        placement: location of the rows: ``"process"`` uses a tensor unchanged, and reads files; ``"mapped"`` leaves
            rows in their file; ``"shared"``: once per node; ``"sharded"``: over the host memory of the nodes; for GPUs
            ``"pinned"``, ``"device"``, ``"distributed"`` (over all GPUs), or ``"sharded"`` with ``device="cuda"``;
            ``"auto"``: as ``"shared"``, loaders select rows for GPUs. Except for ``"process"`` and ``"mapped"``, all
            ranks create the feature, of the same rows; all loaders of the process read it there.
        device: this rank's GPU, for places of GPUs.

    Raises:
        FeatureError: no tensor, or one of less than two dimensions; one in memory, with ``placement="mapped"``.
        InputError: an unknown placement, or a missing GPU.
        RankError: the ranks do not pass the same, or are late.
    """

    def __init__(
        self,
        torch_feature: object,
        metadata: dict[str, object] | None = None,
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
    ) -> None:
        place = rows_in(placement, store_device(placement, device, None), None)
        there = None if isinstance(torch_feature, Tensor) else as_it_is(torch_feature)
        if there is not None:
            self._tensor = _rows(there)
        else:
            rows: Any = torch_feature if isinstance(torch_feature, Rows) else _rows(torch_feature)
            self._tensor = placed_rows(rows, placement, place)
        self.exchange = StoreExchange(place if there is None else None)
        """Exchanges rows outside of loaders; one for all features of a store from files."""
        self._metadata = metadata

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Return rows of the feature.

        Args:
            ids: ``[count]`` integer; ``None``: all.

        Returns:
            ``[count, ...]`` on the device of ``ids``. All rows: the tensor; if it is pinned, a copy on the GPU;
            where ranks exchange the rows, a tensor of all of them.

        Raises:
            FeatureError: there is no such row.
            InputError: rows that ranks exchange, in a chain of stages, outside ``fetch_feature``.
            RankError: ranks exchange the rows, and a different rank failed, is late or reads other rows.
        """
        if not isinstance(self._tensor, Tensor):
            return self._read_together(self._tensor, ids)
        if ids is None:
            return self._tensor.cuda() if self.is_pinned() and torch.cuda.is_available() else self._tensor
        rows: Tensor = gather([RowRequest(self._tensor, row_numbers(ids), name=_NAME)])[0]
        return rows

    def _read_together(self, held: ShardedRows | DistributedRows, ids: Tensor | None) -> Tensor:
        exchange = current_exchange()
        if exchange is None and current_key() is not None:  # of a minibatch, maybe in one of multiple threads
            raise InputError(
                "Expected rows that ranks exchange to be read by fetch_feature, in the order of the minibatches, got a "
                "read in a function, stage or store of a chain. Name the feature in fetch_feature, or keep its rows "
                "where each rank reads alone: placement='shared'."
            )
        index = torch.arange(len(held)) if ids is None else row_numbers(ids)
        there = index.to(held.rows.device) if isinstance(index, Tensor) else index
        rows: Tensor = gather([RowRequest(held, there, name=_NAME)], exchange=exchange or self.exchange)[0]
        return rows.to(index.device)

    def table(self) -> Any:
        """Return the tensor, or the object that exchanges its rows; ``None`` if a subclass reads otherwise."""
        return self._tensor if type(self).read is TorchBasedFeature.read else None

    def size(self) -> torch.Size:
        return torch.Size(self._tensor.shape[1:])

    def count(self) -> int:
        return len(self._tensor)

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Change rows, or replace the tensor. A mapped file is unchanged: only this process has the new rows.

        Args:
            value: ``[count, ...]``. With ``ids`` of the feature's width and dtype; without, of any, on any device.
                If ranks exchange the rows: the same tensor on all ranks.
            ids: ``[count]`` integer row numbers; ``None``: ``value`` replaces the whole tensor.

        Raises:
            FeatureError: no tensor, or one whose shape or dtype does not fit.
            InputError: ``ids`` of rows that ranks exchange.
            RankError: ranks exchange the rows, and pass different values, or are late.
        """
        held = self._tensor
        if ids is None:
            placed = value if isinstance(held, Tensor) else self.exchange.place_of(held).put(value, None, _NAME)
            self._tensor = _rows(placed)
            return
        if not isinstance(held, Tensor):
            raise InputError(
                "Expected all rows of a feature whose rows ranks exchange, got some, by ids. Call update(value) on all "
                "ranks, with the whole tensor."
            )
        index, value = row_numbers(ids), as_tensor("value", value, FeatureError)
        if value.shape[:1] != index.shape:
            got = len(value) if value.dim() else "a number"
            raise FeatureError(f"ids and value must have the same length, but got {len(index)} and {got}.")
        if self.size() != value.size()[1:] or held.dtype != value.dtype:
            raise FeatureError(
                f"The size of the feature is {self.size()} ({held.dtype}), while the size of the value is "
                f"{value.size()[1:]} ({value.dtype})."
            )
        check_range("ids", index, self.count(), FeatureError)
        held[index.to(held.device).long()] = value.to(held.device)

    def metadata(self) -> dict[str, object]:
        return self._metadata if self._metadata is not None else {}

    def pin_memory_(self) -> Self:
        """Pin the memory of the tensor for GPUs to read, in place, or in a copy below 64 MiB; return the feature.

        Raises:
            InputError: no GPU; rows that ranks exchange.
            CapacityError: the system does not let this process pin as much memory.
        """
        self._tensor = pinned(self._of_this_rank("pin"))
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read the memory of the tensor."""
        held = self._tensor
        return isinstance(held, Tensor) and held.numel() > 0 and held.device.type == "cpu" and is_pinned(held)

    def to(self, device: Any) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``).

        Raises:
            InputError: rows that ranks exchange.
        """
        other = copy.copy(self)
        other._tensor = to_device(self._of_this_rank(f"move to {device}"), device, "features")
        return other

    def _of_this_rank(self, what: str) -> Tensor:
        """Return the tensor, or raise InputError if this rank does not have all rows."""
        if isinstance(self._tensor, Tensor):
            return self._tensor
        raise InputError(
            f"Expected rows that this rank reads alone to {what}, got rows that ranks exchange, which stay in their "
            "place. Leave that out: loaders bring to their GPU what they read."
        )

    def __repr__(self) -> str:
        return show(type(self).__name__, {"feature": self._tensor, "metadata": self.metadata()})


def placed_rows(rows: Tensor | Rows, placement: Place, place: NodeRows | GPURows | None) -> _Held:
    """Return rows at a placement; ``None``: in this process, or in files."""
    if isinstance(rows, Rows):
        read = rows.mapped if placement == "mapped" else rows.read
        return _rows(read() if place is None else place.read(rows, _NAME))
    if placement == "mapped" and not reside_in_files([rows.data_ptr()])[0]:
        raise FeatureError(
            "Expected a feature in a file with placement='mapped', got a tensor in memory. Pass "
            "manyhop.files.open(...), or leave placement out."
        )
    return _rows(rows if place is None else place.put(rows, None, _NAME))


def _rows(rows: object) -> _Held:
    """Return the rows of a feature, contiguous: a tensor where this rank reads all, or raise FeatureError."""
    spread = rows if isinstance(rows, ShardedRows | DistributedRows) else None
    rows = rows if spread is None or not spread.is_whole else spread.rows
    if not isinstance(rows, Tensor | ShardedRows | DistributedRows):
        raise FeatureError(f"torch_feature in TorchBasedFeature must be torch.Tensor, but got {type(rows)}.")
    if isinstance(rows, Tensor) and not has_memory(rows):
        raise FeatureError(f"Expected torch_feature as a dense tensor in memory, got {describe(rows)}. Convert it.")
    if rows.ndim < 2:
        raise FeatureError(
            f"dimension of torch_feature in TorchBasedFeature must be greater than 1, but got {rows.ndim} dimension. "
            "Add a dimension: x.view(-1, 1)."
        )
    return rows.contiguous() if isinstance(rows, Tensor) else rows
