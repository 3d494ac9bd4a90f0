"""Features of which a GPU keeps the rows that are asked for most often."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import CachedRows, RowRequest, gather, keep_hot
from manyhop_dgl.graphbolt.features.feature import Feature, FeatureKey, row_numbers
from manyhop_dgl.graphbolt.features.torch_based import TorchBasedFeature

_TIMES = 8  # rows asked for, of those that are kept: enough to tell rows that are asked for often from others


class GPUCachedFeature(Feature):
    """A feature of which the current GPU keeps rows.

    Reads are counted until it is known which rows are asked for most often (after eight times as many reads as rows are
    kept); these are copied to the GPU and stay there. The others come from the feature: a GPU reads pinned memory by
    itself, so its memory is pinned here. Rows are the same with and without a cache.

    Args:
        fallback_feature: where all rows are.
        cache_size: how many rows are kept.
        max_cache_size_in_bytes: the same, in bytes; either of them.

    Raises:
        InputError: no GPU, no feature, or no size.
        CapacityError: the memory of the feature cannot be pinned.
    """

    def __init__(
        self, fallback_feature: Any, cache_size: int | None = None, *, max_cache_size_in_bytes: int | None = None
    ) -> None:
        if not torch.cuda.is_available():
            raise InputError(
                "Expected a CUDA device to cache rows on, found none. Use the feature itself, "
                f"a {type(fallback_feature).__name__}."
            )
        device = torch.device("cuda", torch.cuda.current_device())
        self._rows = HotReads(fallback_feature, device, cache_size, max_cache_size_in_bytes)
        if isinstance(fallback_feature, TorchBasedFeature):
            fallback_feature.pin_memory_()

    @property
    def fallback_feature(self) -> Any:
        """Where all rows are."""
        return self._rows.feature

    @property
    def cache_size(self) -> int:
        """How many rows are kept at most."""
        return self._rows.most

    @property
    def cache_size_in_bytes(self) -> int:
        """How many bytes they have."""
        return self._rows.most * _row_bytes(self._rows.feature)

    @property
    def miss_rate(self) -> float:
        """Of the rows that were read by ids on the GPU, the share that it did not have."""
        return self._rows.miss_rate()

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Rows of the feature, on the GPU.

        Args:
            ids: ``[count]`` integer; ``None``: all, wherever they are.

        Raises:
            FeatureError: there is no such row.
        """
        if ids is None:
            rows: Tensor = self._rows.feature.read()
            return rows
        return self._rows.read(row_numbers(ids).to(self._rows.device))

    def source(self, ids: Tensor) -> Any:
        """What a GPU's kernels read, the cache included; ``None`` for ids and features of other kinds."""
        return self._rows.source(ids) if ids.device == self._rows.device else None

    def size(self) -> torch.Size:
        """The shape of one row."""
        size: torch.Size = self._rows.feature.size()
        return size

    def count(self) -> int:
        """How many rows there are."""
        return self._rows.num_rows

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Change rows of the feature, and of what the GPU keeps; see the feature's own ``update``.

        Without ``ids`` the cache starts afresh, with as many rows, or bytes, as it was made for.
        """
        self._rows.feature.update(value, ids)
        if isinstance(self._rows.feature, TorchBasedFeature):
            self._rows.feature.pin_memory_()
        self._rows.refresh(replaced=ids is None)

    def metadata(self) -> dict[str, Any]:
        """What is known of the feature."""
        metadata: dict[str, Any] = self._rows.feature.metadata()
        return metadata


def gpu_cached_feature(
    fallback_features: Any, max_cache_size_in_bytes: int
) -> GPUCachedFeature | dict[FeatureKey, GPUCachedFeature]:
    """Features of which the current GPU keeps rows, within a number of bytes for all of them.

    Args:
        fallback_features: a feature, or (domain, type, name) -> feature. Each gets a share in proportion to its size.
        max_cache_size_in_bytes: how many bytes are kept in all.

    Raises:
        InputError: no GPU, no feature, or no size.
    """
    if not isinstance(fallback_features, Mapping):
        return GPUCachedFeature(fallback_features, max_cache_size_in_bytes=max_cache_size_in_bytes)
    sizes = {key: _num_rows(feature) * _row_bytes(feature) for key, feature in fallback_features.items()}
    total = max(1, sum(sizes.values()))
    return {
        key: GPUCachedFeature(feature, max_cache_size_in_bytes=max_cache_size_in_bytes * sizes[key] // total)
        for key, feature in fallback_features.items()
    }


class HotReads:
    """Reads of a feature, of which one device keeps the rows that are asked for most often. Safe to use from threads.

    Args:
        feature: where all rows are.
        device: the GPU.
        cache_size: how many rows are kept.
        max_cache_size_in_bytes: the same, in bytes; either of them.
    """

    def __init__(
        self,
        feature: Any,
        device: torch.device,
        cache_size: int | None = None,
        max_cache_size_in_bytes: int | None = None,
    ) -> None:
        self.feature, self.device = feature, device
        self._size = cache_size, max_cache_size_in_bytes
        self._lock = threading.Lock()
        self._reads = self._misses = 0
        self._forget()

    def _forget(self) -> None:
        self.most = _number_of_rows(self.feature, *self._size)
        self.num_rows = _num_rows(self.feature)
        self._visits: Tensor | None = torch.zeros(self.num_rows, dtype=torch.int32, device=self.device)
        self._counted = 0
        self._kept: CachedRows | None = None
        self._ids: Tensor | None = None
        self._copies: Tensor | None = None

    def source(self, ids: Tensor) -> Any:
        """The tensor of the feature, with what is kept of it; ``None`` where it has none that a GPU reads."""
        if not isinstance(self.feature, TorchBasedFeature):
            return None
        self._note(ids)
        return self._kept if self._kept is not None else self.feature.source(ids)

    def read(self, ids: Tensor) -> Tensor:
        """Rows on the device."""
        source = self.source(ids)
        if source is not None:
            rows: Tensor = gather([RowRequest(source, ids, name="the feature")])[0]
            return rows
        self._note(ids)
        with self._lock:
            kept, copies = self._ids, self._copies
        if kept is None or copies is None or not kept.numel():
            missing: Tensor = self.feature.read(ids).to(self.device)
            return missing
        place = torch.searchsorted(kept, ids.long()).clamp_(max=kept.numel() - 1)
        hit = kept[place] == ids
        out = copies[place]
        out[~hit] = self.feature.read(ids[~hit]).to(self.device)
        self._reads, self._misses = self._reads + ids.numel(), self._misses + int((~hit).sum())
        return out

    def refresh(self, *, replaced: bool) -> None:
        """Rows of the feature have changed; ``replaced``: it has another tensor."""
        with self._lock:
            if replaced:
                self._forget()
            elif self._kept is not None and self._ids is not None:
                self._kept.rows.copy_(self.feature.read(self._ids))
            elif self._copies is not None:
                self._copies.copy_(self.feature.read(self._ids))

    def miss_rate(self) -> float:
        """Share of rows that were not there, of those asked for since rows are kept; 1 before."""
        if self._kept is not None:
            asked, had = self._kept.take_counts()
            self._reads, self._misses = self._reads + asked, self._misses + asked - had
        return self._misses / self._reads if self._reads else 1.0

    def _note(self, ids: Tensor) -> None:
        """Count a read; after the last that counts, keep what was asked for most often."""
        if self._visits is None:
            return
        with self._lock:
            if self._visits is None:
                return
            known = ids[(ids >= 0) & (ids < self.num_rows)].long()  # reading the others is an error, which comes later
            self._visits[known] += 1
            self._counted += known.numel()
            if self._counted >= _TIMES * self.most:
                self._keep(self._visits)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # once: threads read what is kept on streams of their own
                self._visits = None

    def _keep(self, visits: Tensor) -> None:
        order = torch.argsort(visits, descending=True, stable=True)[: self.most]
        ids = order[visits[order] > 0].sort().values
        tensor = self.feature.source(ids) if isinstance(self.feature, TorchBasedFeature) else None
        self._ids = ids
        if tensor is None:
            self._copies = self.feature.read(ids).to(self.device)
        elif tensor.device != self.device:
            self._kept = keep_hot([([tensor], ids)], self.device)[id(tensor)]


def _number_of_rows(feature: Any, rows: int | None, nbytes: int | None) -> int:
    if not callable(getattr(feature, "read", None)):
        raise InputError(f"The fallback_feature must be an instance of Feature, but got {type(feature)}.")
    if (rows is None) == (nbytes is None):
        raise InputError("Expected either cache_size (rows) or max_cache_size_in_bytes, got both or neither.")
    if nbytes is not None:
        rows = -(-nbytes // max(1, _row_bytes(feature)))
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InputError(f"Expected a cache of at least one row ({_row_bytes(feature)} bytes), got {rows!r} rows.")
    return min(rows, _num_rows(feature))


def _num_rows(feature: Any) -> int:
    return int(feature.count()) if callable(getattr(feature, "count", None)) else len(feature.read())


def _row_bytes(feature: Any) -> int:
    first: Tensor = feature.read(torch.zeros(1, dtype=torch.int64)) if _num_rows(feature) else feature.read()
    return math.prod(first.shape[1:]) * first.dtype.itemsize
