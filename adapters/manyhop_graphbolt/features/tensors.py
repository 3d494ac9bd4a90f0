"""Features in tensors: in memory, pinned, on a GPU, or mapped from files."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_tensor, check_range
from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows, gather, is_pinned, pin
from manyhop.files import Rows
from manyhop.loading import current_exchange, current_key
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.places import Place
from manyhop.memory.stores import GPURows, NodeRows, StoreExchange, as_it_is, rows_in, store_device
from manyhop.system.arrays import describe, has_memory
from manyhop.system.progress import to_device
from manyhop_graphbolt.features.feature import (
    BasicFeatureStore,
    Feature,
    FeatureKey,
    OnDiskFeatureData,
    read_feature,
    row_numbers,
)
from manyhop_graphbolt.types import GBWarning, show

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
            self._tensor = _placed(rows, placement, place)
        self._exchange = StoreExchange(place if there is None else None)
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
        rows: Tensor = gather([RowRequest(held, there, name=_NAME)], exchange=exchange or self._exchange)[0]
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
            placed = value if isinstance(held, Tensor) else self._exchange.place_of(held).put(value, None, _NAME)
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


def _placed(rows: Tensor | Rows, placement: Place, place: NodeRows | GPURows | None) -> _Held:
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


class DiskBasedFeature(TorchBasedFeature):
    """A feature whose rows remain in a mapped file of ``numpy.save`` and are read from the disk.

    Args:
        path: the file. An array of one dimension is one column.
        metadata: what else is known of it.
        num_threads: a hint; the threads that gather rows read them.

    Raises:
        InputError: a missing, damaged or invalid file.
        FeatureError: no dimension.
    """

    def __init__(
        self, path: str | PathLike[str], metadata: dict[str, object] | None = None, num_threads: int | None = None
    ) -> None:
        super().__init__(read_feature(Path(path), "numpy", in_memory=False), metadata)
        self._mapped = self._tensor  # until all rows are replaced

    def read_into_memory(self) -> TorchBasedFeature:
        """Return a feature with a copy of all rows in memory."""
        return TorchBasedFeature(self._of_this_rank("copy").clone(), self._metadata)

    def pin_memory_(self) -> Self:
        """Leave rows that are in the file there, with a warning; return the feature."""
        return self if self._stays("pin") else super().pin_memory_()

    def to(self, device: Any) -> Self:
        """Return a copy on another device; rows that are in the file remain there, with a warning."""
        in_place = str(device) == "cpu" and self._tensor is self._mapped
        return self if in_place or self._stays(f"move to {device}") else super().to(device)

    def _stays(self, what: str) -> bool:
        if self._tensor is not self._mapped:
            return False
        warnings.warn(
            f"Expected a feature in memory to {what}, got a {type(self).__name__}: its rows remain in the file. Call "
            "read_into_memory() first, or set in_memory: true in metadata.yaml.",
            GBWarning,
            stacklevel=3,
        )
        return True


class TorchBasedFeatureStore(BasicFeatureStore):
    """Features from files.

    Args:
        feat_data: the files; ``in_memory=False`` maps a file (as a :class:`DiskBasedFeature` for ``numpy``).
        placement: see :class:`TorchBasedFeature`; ``"process"``: by ``in_memory``.
        device: this rank's GPU, for places of GPUs.

    Raises:
        InputError: a file is missing, damaged or invalid, or a feature occurs twice; an unknown placement, or
            a missing GPU.
        RankError: the ranks do not have the same files, or are late.
    """

    def __init__(
        self,
        feat_data: Iterable[OnDiskFeatureData],
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
    ) -> None:
        features: dict[FeatureKey, TorchBasedFeature] = {}
        place = rows_in(placement, store_device(placement, device, None), None)
        exchange = StoreExchange(place)
        for spec in feat_data:
            key = spec.domain, spec.type, spec.name
            if key in features:
                raise InputError(f"Expected each feature once, got {key} twice. Rename one of them.")
            if placement != "mapped" and (spec.in_memory or placement != "process"):
                rows = _placed(read_feature(spec.path, spec.format), placement, place)
                features[key] = TorchBasedFeature(rows, spec.extra_fields)
            elif spec.format == "numpy":
                features[key] = DiskBasedFeature(spec.path, spec.extra_fields)
            else:
                mapped = read_feature(spec.path, spec.format, in_memory=False)
                features[key] = TorchBasedFeature(mapped, spec.extra_fields)
            features[key]._exchange = exchange
        super().__init__(features)

    def pin_memory_(self) -> Self:
        """Pin the memory of all features that are not in files; return the store."""
        for feature in self._features.values():
            feature.pin_memory_()
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read all features."""
        return all(feature.is_pinned() for feature in self._features.values())

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``)."""
        other = copy.copy(self)
        other._features = {key: feature.to(device) for key, feature in self._features.items()}
        return other

    def __repr__(self) -> str:
        return show(type(self).__name__, {"features": self._features})
