"""Features by id: one feature, stores of multiple, and reading many of them by one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_ids
from manyhop.errors import FeatureError, InputError
from manyhop.features import RowRequest

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
