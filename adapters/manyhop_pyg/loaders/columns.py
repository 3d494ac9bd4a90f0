"""The tensors that batches of a loader take rows from: attributes of data, or of a feature store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch_geometric.data import Data, FeatureStore, HeteroData

from manyhop_pyg.batch.plan import DataPlan
from manyhop_pyg.data.feature_store import FeatureStore as OwnStore
from manyhop_pyg.data.feature_store import StoreColumn
from manyhop_pyg.data.remote import is_of_edges
from manyhop_pyg.typing import Batch, PyGData, StoreSize


class DataColumns:
    """The ``Columns`` of ``Data`` and ``HeteroData``: every attribute with a row per node or edge."""

    complete = True
    kept_rows = None

    def __init__(self, data: Batch) -> None:
        self._data = data

    def named(self) -> list[tuple[str, object]]:
        """Return name and value of each attribute."""
        found: list[tuple[str, object]] = []

        def note(name: str, value: object) -> object:
            found.append((name, value))
            return value

        DataPlan(self._data, None, note)
        return found

    def place(self, source: Callable[[str, object], object], device: torch.device) -> DataPlan:
        """Return what to do with the attributes of the data as it is now."""
        return DataPlan(self._data, device, source)

    def fits(self, placed: DataPlan) -> bool:
        """Whether the data is still as it was."""
        return placed.fits(self._data)


class PlacedStore:
    """The tensors of a feature store of ours, each where a GPU reads it."""

    def __init__(self, columns: list[StoreColumn], sources: list[object]) -> None:
        self.columns, self.sources = columns, sources
        self.pairs = list(zip(columns, sources, strict=True))
        """Each column with what its rows are read from."""
        self._by_size: dict[StoreSize, list[tuple[StoreColumn, object, bool]]] = {}

    def without_types(self, size: StoreSize) -> list[tuple[StoreColumn, object, bool]]:
        """Return the same of a store without types, and whether it has a row per edge of a graph of this size."""
        found = self._by_size.get(size)
        if found is None:
            found = [(*pair, is_of_edges(size, pair[0].name, len(pair[0].tensor))) for pair in self.pairs]
            self._by_size[size] = found
        return found

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: batches share no object with a store."""
        return frozenset()


class StoreColumns:
    """The ``Columns`` of a feature store. Those of another kind than ours hold what only they know."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """How many rows of other nodes a GPU keeps of each tensor; ``None``: as its memory allows."""
        return self._store.kept_rows if isinstance(self._store, OwnStore) else None

    @property
    def complete(self) -> bool:
        """Whether the store is ours."""
        return type(self._store) is OwnStore

    def named(self) -> list[tuple[str, object]]:
        """Return name and value of each tensor."""
        return self._store.named_tensors() if isinstance(self._store, OwnStore) else []

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedStore:
        """Return the tensors that the store has now."""
        columns: list[StoreColumn] = self._store.columns()
        return PlacedStore(columns, [source(column.title, column.tensor) for column in columns])

    def fits(self, placed: PlacedStore) -> bool:
        """Whether no tensor was put or removed since. Asked for each batch."""
        return self._store.known_columns is placed.columns


def columns_of(data: PyGData) -> DataColumns | StoreColumns:
    """Return the columns of a loader's data."""
    return DataColumns(data) if isinstance(data, Data | HeteroData) else StoreColumns(data[0])
