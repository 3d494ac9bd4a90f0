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
from manyhop_graphbolt.features.disk import DiskBasedFeature
from manyhop_graphbolt.features.feature import Feature, FeatureKey, TorchBasedFeature, row_numbers

_POLICIES = (None, "s3-fifo", "sieve", "lru", "clock")
F = TypeVar("F", bound="_Cached")


class _Cached(Feature):
    """The base of caches. Methods without a cache's own version are those of the feature."""

    def __init__(self, fallback_feature: Any, rows: int | None, nbytes: int | None) -> None:
        self.fallback_feature = fallback_feature
        self._size = rows, nbytes
        self.cache_size = number_of_rows(fallback_feature, rows, nbytes)
        """The maximum number of cached rows."""

    @property
    def cache_size_in_bytes(self) -> int:
        """The maximum number of bytes of cached rows."""
        return self.cache_size * _row_bytes(self.fallback_feature)

    def read(self, ids: Tensor | None = None) -> Any:
        return self.fallback_feature.read(ids)

    def size(self) -> torch.Size:
        return torch.Size(self.fallback_feature.size())

    def count(self) -> int:
        return int(self.fallback_feature.count())

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        self.fallback_feature.update(value, ids)

    def table(self) -> Any:
        return self.fallback_feature.table()

    def metadata(self) -> dict[str, object]:
        return dict(self.fallback_feature.metadata())


class GPUCachedFeature(_Cached):
    """A feature whose hot rows the current GPU caches. Reads from multiple threads are safe.

    Reads are counted until eight times as many rows as the cache holds have been requested. The rows that were
    requested most often are then copied to the GPU, once. A GPU reads the others from pinned memory, so the memory of
    the feature is pinned; rows of files are read by the CPU. Rows that are read by ids are on the GPU.

    Args:
        fallback_feature: a :class:`TorchBasedFeature`, :class:`DiskBasedFeature` or :class:`CPUCachedFeature`.
        cache_size: maximum number of cached rows.
        max_cache_size_in_bytes: the same, in bytes; pass one of them.

    Raises:
        InputError: no GPU, another feature, or no size.
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
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._lock = threading.Lock()
        self._reads = self._misses = 0
        super().__init__(fallback_feature, cache_size, max_cache_size_in_bytes)
        self._begin()

    def _begin(self) -> None:
        """Begin to count the reads of a feature that is new, or has another tensor."""
        feature = self.fallback_feature
        self.cache_size = number_of_rows(feature, *self._size)
        if isinstance(feature, TorchBasedFeature) and not isinstance(feature, DiskBasedFeature):
            feature.pin_memory_()
        self._visits: Visits | None = Visits(self._device)
        self._cached: CachedRows | None = None

    @property
    def miss_rate(self) -> float:
        """The share of rows read by ids that were not cached, since rows are cached; 1 before."""
        if self._cached is not None:
            asked, had = self._cached.take_counts()
            self._reads, self._misses = self._reads + asked, self._misses + asked - had
        return self._misses / self._reads if self._reads else 1.0

    def source(self, ids: Tensor) -> Any:
        """Return the tensor of the feature, or the cache before it for ids on the GPU."""
        if ids.device != self._device:
            return self.table()
        if self._visits is not None:
            self._count(ids)
        return self.table() if self._cached is None else self._cached

    def read(self, ids: Tensor | None = None) -> Any:
        """Return rows of the feature, on the GPU; all of them (``None``) on the device of the feature."""
        if ids is None:
            return super().read()
        ids = row_numbers(ids).to(self._device)
        return gather([RowRequest(self.source(ids), ids, name="the feature")])[0]

    def _count(self, ids: Tensor) -> None:
        """Count a read; after the last counted one, cache the rows that were requested most often."""
        with self._lock:
            visits, table = self._visits, self.table()
            if visits is None:  # another thread has counted the last one
                return
            visits.add([RowRequest(table, ids)])
            if visits.rows < VISITS_PER_ROW * self.cache_size:
                return
            hottest = visits.hottest(self.cache_size_in_bytes)
            if table.device != self._device:
                self._cached = keep_hot(hottest, self._device)[id(table)]
                torch.cuda.synchronize(self._device)  # threads read cached rows on their own streams
            self._visits = None

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Change rows, see the feature's own ``update``; the cache starts again, with its maximum of rows or bytes."""
        super().update(value, ids)
        with self._lock:
            self._begin()


class CPUCachedFeature(_Cached):
    """A feature on disk whose hot rows the host's memory caches; once all rows are updated, all are in memory.

    Args:
        fallback_feature: a :class:`DiskBasedFeature`.
        max_cache_size_in_bytes: maximum number of bytes of cached rows.

    Raises:
        InputError: another feature, or no size.
    """

    def __init__(self, fallback_feature: Feature, max_cache_size_in_bytes: int) -> None:
        if not isinstance(fallback_feature, DiskBasedFeature):
            raise InputError(
                f"Expected a DiskBasedFeature to cache rows of in memory, got a {type(fallback_feature).__name__}. Use "
                "the feature itself."
            )
        super().__init__(fallback_feature, None, max_cache_size_in_bytes)
        cache_files([fallback_feature.table()], max_cache_size_in_bytes)

    @property
    def miss_rate(self) -> float:
        """The share of rows read by ids that were not cached; 1 before any was read."""
        cache = file_cache(self.table())
        return 1.0 if cache is None else cache.miss_rate


def gpu_cached_feature(
    fallback_features: object, max_cache_size_in_bytes: int
) -> GPUCachedFeature | dict[FeatureKey, GPUCachedFeature]:
    """Cache the hot rows of features on the current GPU.

    Args:
        fallback_features: a feature, or (domain, type, name) -> feature. Each gets a share in proportion to its size.
        max_cache_size_in_bytes: maximum number of bytes of all caches.

    Raises:
        InputError: no GPU, no feature, or no size.
    """
    return _each(GPUCachedFeature, fallback_features, max_cache_size_in_bytes)


def cpu_cached_feature(
    fallback_features: object, max_cache_size_in_bytes: int, policy: str | None = None, pin_memory: bool = False
) -> CPUCachedFeature | dict[FeatureKey, CPUCachedFeature]:
    """Cache the hot rows of features on disk in host memory.

    Args:
        fallback_features: a feature, or (domain, type, name) -> feature. Each gets a share in proportion to its size.
        max_cache_size_in_bytes: maximum number of bytes of all caches.
        policy: a hint; rows are selected by counting.
        pin_memory: a hint; rows are copied to a GPU through pinned memory in either case.

    Raises:
        InputError: no feature, no size, or an unknown policy.
    """
    if policy not in _POLICIES:
        raise InputError(f"Expected policy to be one of {_POLICIES}, got {policy!r}. Leave it out.")
    return _each(CPUCachedFeature, fallback_features, max_cache_size_in_bytes)


def _each(make: Callable[..., F], features: object, nbytes: int) -> F | dict[FeatureKey, F]:
    """Return the cache of a feature, or of each of multiple, which share the bytes."""
    if not isinstance(features, Mapping):
        return make(features, max_cache_size_in_bytes=nbytes)
    nbytes = integer("max_cache_size_in_bytes", nbytes)
    sizes = {key: row * feature.count() if (row := _row_bytes(feature)) else 0 for key, feature in features.items()}
    total = max(1, sum(sizes.values()))
    shares = {key: nbytes * size // total for key, size in sizes.items()}
    return {key: make(feature, max_cache_size_in_bytes=shares[key]) for key, feature in features.items()}


def number_of_rows(feature: Any, rows: int | None, nbytes: int | None) -> int:
    """Return the number of rows of a feature that a cache of this many rows, or bytes, holds."""
    table = feature.table() if isinstance(feature, Feature) else None
    if table is None or isinstance(table, ShardedRows | DistributedRows):
        got = f"a {type(feature).__name__}" if table is None else "one whose rows ranks exchange"
        raise InputError(
            "Expected a TorchBasedFeature or a DiskBasedFeature to cache rows of, which this rank reads alone, got "
            f"{got}. Use it without a cache."
        )
    if (rows is None) == (nbytes is None):
        raise InputError("Expected either cache_size (rows) or max_cache_size_in_bytes, got both or neither.")
    if nbytes is not None:
        rows = -(-integer("max_cache_size_in_bytes", nbytes) // max(1, _row_bytes(feature)))
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InputError(f"Expected a cache of at least one row ({_row_bytes(feature)} bytes), got {rows!r} rows.")
    return min(rows, len(table))


def _row_bytes(feature: Any) -> int:
    """Return the bytes of one row; 0 without a table, which :func:`number_of_rows` reports."""
    table = feature.table() if isinstance(feature, Feature) else None
    return 0 if table is None else math.prod(table.shape[1:]) * int(table.dtype.itemsize)
