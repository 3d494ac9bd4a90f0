"""Features whose hot rows a GPU, or the host's memory, caches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop.features import (
    VISITS_PER_ROW,
    CachedRows,
    DistributedRows,
    RowRequest,
    ShardedRows,
    Visits,
    cache_files,
    file_cache,
    gather,
    keep_hot,
)
from manyhop_graphbolt.features.feature import Feature, FeatureKey, row_numbers
from manyhop_graphbolt.features.tensors import DiskBasedFeature, TorchBasedFeature

_POLICIES = (None, "s3-fifo", "sieve", "lru", "clock")

F = TypeVar("F", bound="CachedFeature")


class CachedFeature(Feature):
    """A feature whose hot rows a device caches. Reads from multiple threads are safe.

    Reads are counted until it is known which rows are requested most often (after eight times as many as rows are
    kept); these are copied to the device and remain there. The others come from the feature. Rows are the same with and
    without a cache.

    Args:
        fallback_feature: where all rows are.
        device: where rows are kept, and read.
        cache_size: how many rows are kept.
        max_cache_size_in_bytes: the same, in bytes; either of them.

    Raises:
        InputError: no feature, or no size.
    """

    def __init__(
        self,
        fallback_feature: Feature,
        device: torch.device,
        cache_size: int | None = None,
        max_cache_size_in_bytes: int | None = None,
    ) -> None:
        self.fallback_feature = fallback_feature
        """Where all rows are."""
        self._device = device
        self._size = cache_size, max_cache_size_in_bytes
        self._lock = threading.Lock()
        self._reads = self._misses = 0
        self._settle()
        self._forget()

    def _settle(self) -> None:
        """Get a feature ready that is new, or has another tensor."""

    def _forget(self) -> None:
        """Begin to count."""
        self._most = number_of_rows(self.fallback_feature, *self._size)
        first, table = _first_row(self.fallback_feature), self.table()
        self._rows = first.expand(self.count(), *first.shape[1:]) if table is None else table  # what reads are of
        self._visits: Visits | None = Visits(self._device)
        self._cached: CachedRows | None = None
        self._kept: tuple[Tensor, Tensor] | None = None

    @property
    def cache_size(self) -> int:
        """How many rows are kept at most."""
        return self._most

    @property
    def cache_size_in_bytes(self) -> int:
        """How many bytes they have."""
        return self._most * _row_bytes(self.fallback_feature)

    @property
    def miss_rate(self) -> float:
        """Of the rows that were read by ids since rows are kept, the share that were not among them; 1 before."""
        if self._cached is not None:
            asked, had = self._cached.take_counts()
            self._reads, self._misses = self._reads + asked, self._misses + asked - had
        return self._misses / self._reads if self._reads else 1.0

    def table(self) -> Tensor | None:
        """Return the tensor of the feature, where the device's kernels read it."""
        return None

    def source(self, ids: Tensor) -> Any:
        """Return the source for kernels of the device, the cache included; ``None`` for other ids and features."""
        table = self.table()
        if table is None or ids.device != self._device:
            return None
        self._note(ids)
        return table if self._cached is None else self._cached

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Return rows of the feature, on the device.

        Args:
            ids: ``[count]`` integer; ``None``: all, wherever they are.

        Raises:
            FeatureError: there is no such row.
        """
        rows: Tensor
        if ids is None:
            rows = self.fallback_feature.read()
            return rows
        ids = row_numbers(ids).to(self._device)
        source = self.source(ids)
        if source is not None:
            rows = gather([RowRequest(source, ids, name="the feature")])[0]
            return rows
        self._note(ids)
        with self._lock:
            kept = self._kept
        if kept is None or not kept[0].numel():
            rows = self.fallback_feature.read(ids).to(self._device)
            return rows
        place = torch.searchsorted(kept[0], ids.long()).clamp_(max=kept[0].numel() - 1)
        hit = kept[0][place] == ids
        rows = kept[1][place]
        rows[~hit] = self.fallback_feature.read(ids[~hit]).to(self._device)
        self._reads, self._misses = self._reads + ids.numel(), self._misses + int((~hit).sum())
        return rows

    def _note(self, ids: Tensor) -> None:
        """Count a read; after the last counted one, cache the rows that were requested most often."""
        if self._visits is None:
            return
        with self._lock:
            visits = self._visits
            if visits is None:
                return
            visits.add([RowRequest(self._rows, ids)])
            if visits.rows < VISITS_PER_ROW * self._most:
                return
            hottest = visits.hottest(self._most * _row_bytes(self.fallback_feature))
            ((_, ids),) = hottest
            if self.table() is None:
                self._kept = ids, self.fallback_feature.read(ids).to(self._device)
            elif self._rows.device != self._device:
                cached = keep_hot(hottest, self._device)[id(self._rows)]
                self._kept, self._cached = (ids, cached.rows), cached
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # once: threads read what is kept on streams of their own
            self._visits = None

    def size(self) -> torch.Size:
        """Return the shape of one row."""
        size: torch.Size = self.fallback_feature.size()
        return size

    def count(self) -> int:
        """Return how many rows there are."""
        return _num_rows(self.fallback_feature)

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Change rows of the feature, and cached rows; see the feature's own ``update``.

        Without ``ids`` the cache starts afresh, with as many rows, or bytes, as it was made for.
        """
        self.fallback_feature.update(value, ids)
        self._settle()
        with self._lock:
            if ids is None:
                self._forget()
            elif self._kept is not None:
                self._kept[1].copy_(self.fallback_feature.read(self._kept[0]))

    def metadata(self) -> dict[str, object]:
        """Return the metadata of the feature."""
        metadata: dict[str, object] = self.fallback_feature.metadata()
        return metadata


class GPUCachedFeature(CachedFeature):
    """A feature whose hot rows the current GPU caches.

    A GPU reads the others from pinned memory by itself, so the memory of the feature is pinned here.

    Args:
        fallback_feature: where all rows are.
        cache_size: how many rows are kept.
        max_cache_size_in_bytes: the same, in bytes; either of them.

    Raises:
        InputError: no GPU, no feature, or no size.
        CapacityError: the memory of the feature cannot be pinned.
    """

    def __init__(
        self, fallback_feature: Feature, cache_size: int | None = None, *, max_cache_size_in_bytes: int | None = None
    ) -> None:
        if not torch.cuda.is_available():
            raise InputError(
                "Expected a CUDA device to cache rows on, found none. Use the feature itself, "
                f"a {type(fallback_feature).__name__}."
            )
        device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(fallback_feature, device, cache_size, max_cache_size_in_bytes)

    def _settle(self) -> None:
        if isinstance(self.fallback_feature, TorchBasedFeature) and self.table() is not None:
            self.fallback_feature.pin_memory_()

    def table(self) -> Tensor | None:
        """Return the tensor of the feature; ``None`` for files and other features, which are asked for rows."""
        feature = self.fallback_feature
        in_memory = isinstance(feature, TorchBasedFeature) and not isinstance(feature, DiskBasedFeature)
        return feature.table() if in_memory else None


class CPUCachedFeature(CachedFeature):
    """A feature on disk whose hot rows the host's memory caches.

    Args:
        fallback_feature: where all rows are: a :class:`DiskBasedFeature`, or one of your own.
        max_cache_size_in_bytes: how many bytes of rows are kept.

    Raises:
        InputError: no feature, or no size.
    """

    def __init__(self, fallback_feature: Feature, max_cache_size_in_bytes: int) -> None:
        super().__init__(fallback_feature, torch.device("cpu"), None, max_cache_size_in_bytes)
        if isinstance(fallback_feature, DiskBasedFeature):
            cache_files([fallback_feature.table()], max_cache_size_in_bytes)

    @property
    def miss_rate(self) -> float:
        """Of the rows that were read by ids, the share that was not kept; 1 before any was."""
        table = self.table()
        cache = None if table is None else file_cache(table)
        return super().miss_rate if cache is None else cache.miss_rate

    def table(self) -> Tensor | None:
        """Return the mapped file, if the engine keeps rows of it; ``None``: this object does."""
        feature = self.fallback_feature
        table = feature.table() if isinstance(feature, DiskBasedFeature) else None
        return None if table is None or file_cache(table) is None else table

    def source(self, ids: Tensor) -> Any:
        """Return the mapped file, wherever the ids are; ``None``: rows must be asked of ``read``."""
        return self.table()

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Return rows of the feature, on the device of the ids.

        Args:
            ids: ``[count]`` integer; ``None``: all.

        Raises:
            FeatureError: there is no such row.
        """
        if self.table() is not None:
            return self.fallback_feature.read(ids)
        rows = super().read(ids)
        return rows if ids is None else rows.to(ids.device)


def gpu_cached_feature(
    fallback_features: object, max_cache_size_in_bytes: int
) -> GPUCachedFeature | dict[FeatureKey, GPUCachedFeature]:
    """Cache the hot rows of features on the current GPU, within a number of bytes for all of them.

    Args:
        fallback_features: a feature, or (domain, type, name) -> feature. Each gets a share in proportion to its size.
        max_cache_size_in_bytes: how many bytes are kept in all.

    Raises:
        InputError: no GPU, no feature, or no size.
    """
    return _each(
        lambda feature, nbytes: GPUCachedFeature(feature, max_cache_size_in_bytes=nbytes),
        fallback_features,
        max_cache_size_in_bytes,
    )


def cpu_cached_feature(
    fallback_features: object, max_cache_size_in_bytes: int, policy: str | None = None, pin_memory: bool = False
) -> CPUCachedFeature | dict[FeatureKey, CPUCachedFeature]:
    """Cache the hot rows of features in host memory, within a number of bytes for all of them.

    Args:
        fallback_features: a feature, or (domain, type, name) -> feature. Each gets a share in proportion to its size.
        max_cache_size_in_bytes: how many bytes are kept in all.
        policy: a hint; manyhop chooses the rows once, by counting.
        pin_memory: a hint; rows are copied to a GPU through pinned memory in either case.

    Raises:
        InputError: no feature, no size, or an unknown policy.
    """
    if policy not in _POLICIES:
        raise InputError(f"Expected policy to be one of {_POLICIES}, got {policy!r}. Leave it out.")
    return _each(CPUCachedFeature, fallback_features, max_cache_size_in_bytes)


def _each(make: Callable[[Any, int], F], features: object, nbytes: int) -> F | dict[FeatureKey, F]:
    """Return the cache of a feature, or of each of multiple, which share the bytes."""
    if not isinstance(features, Mapping):
        return make(features, nbytes)
    nbytes = integer("max_cache_size_in_bytes", nbytes)
    sizes = {key: _num_rows(feature) * _row_bytes(feature) for key, feature in features.items()}
    total = max(1, sum(sizes.values()))
    return {key: make(feature, nbytes * sizes[key] // total) for key, feature in features.items()}


def number_of_rows(feature: Feature, rows: int | None, nbytes: int | None) -> int:
    """Return how many rows of a feature a cache of this many rows, or bytes, keeps.

    Raises:
        InputError: no feature, or no size.
    """
    if not callable(getattr(feature, "read", None)):
        raise InputError(f"The fallback_feature must be an instance of Feature, but got {type(feature)}.")
    if (rows is None) == (nbytes is None):
        raise InputError("Expected either cache_size (rows) or max_cache_size_in_bytes, got both or neither.")
    if nbytes is not None:
        rows = -(-integer("max_cache_size_in_bytes", nbytes) // max(1, _row_bytes(feature)))
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InputError(f"Expected a cache of at least one row ({_row_bytes(feature)} bytes), got {rows!r} rows.")
    return min(rows, _num_rows(feature))


def _num_rows(feature: Any) -> int:
    if isinstance(feature, TorchBasedFeature) and isinstance(feature.table(), ShardedRows | DistributedRows):
        raise InputError(
            "Expected a feature whose rows this rank reads alone, to cache them, got one whose rows ranks exchange. "
            "Use the feature itself: loaders cache hot rows of it on their GPUs."
        )
    return int(feature.count()) if callable(getattr(feature, "count", None)) else len(feature.read())


def _first_row(feature: Any) -> Tensor:
    """Return the first row; of a feature without rows, no row."""
    first: Tensor = feature.read(torch.zeros(1, dtype=torch.int64)) if _num_rows(feature) else feature.read()
    return first


def _row_bytes(feature: Feature) -> int:
    first = _first_row(feature)
    return math.prod(first.shape[1:]) * first.dtype.itemsize
