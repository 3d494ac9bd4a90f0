"""Columns of the user's data that batches read rows from: planned once, and again after the data has changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, FeatureStore, HeteroData
from torch_geometric.data.storage import BaseStorage, EdgeStorage, NodeStorage
from torch_geometric.typing import SparseTensor, TensorFrame

from manyhop.errors import FeatureError
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType, NodeType
from manyhop_embedding import Embedding
from manyhop_pyg.data.feature_store import FeatureStore as OwnStore
from manyhop_pyg.data.feature_store import StoreColumn
from manyhop_pyg.data.topologies import kind_of_rows
from manyhop_pyg.typing import Attributes, Batch, PyGData, StoreSize

Placed = Callable[[str, object], object]
"""Name and value of an attribute -> the source of its rows: a copy on another device, or the value itself."""


class Column(NamedTuple):
    """An attribute with one entry per node or per edge."""

    key: str
    value: object
    dim: int
    title: str
    """What errors call it."""


class StorePlan:
    """Plan for the attributes of one of PyG's storages."""

    def __init__(
        self, data: Batch, store: BaseStorage, edges: bool, device: torch.device | None, placed: Placed
    ) -> None:
        items = list(store._mapping.items())
        self._store = store
        self._keys = [key for key, _ in items]
        self._values = [value for _, value in items]
        self.template: Attributes = dict(items)
        """Initial attributes of a batch, in order: values shared by all batches, and placeholders."""
        self.num_nodes = "num_nodes" in self.template
        self.edge_index: Tensor | None = None
        self.adjacencies: list[tuple[str, SparseTensor]] = []
        """``adj`` and ``adj_t``."""
        self.of_nodes: list[Column] = []
        self.of_edges: list[Column] = []
        self.embeddings: list[tuple[str, Embedding]] = []
        """Trainable rows of nodes."""
        self._moved: list[tuple[Tensor, int]] = []  # values copied into the template, and their versions
        has_rows = isinstance(store, NodeStorage | EdgeStorage)  # shared attributes of heterogeneous data have none
        for key, value in items:
            if key == "num_nodes":
                continue
            if edges and key == "edge_index":
                self.edge_index, self.template[key] = value, None  # until the edges are set
            elif edges and isinstance(value, SparseTensor):
                self.adjacencies += [(key, value)] if key in ("adj", "adj_t") else []
            elif isinstance(store, NodeStorage) and isinstance(value, Embedding):
                self.embeddings.append((key, value))
            elif has_rows and store.is_node_attr(key):
                self.of_nodes.append(_column(data, store, key, value, placed))
            elif has_rows and store.is_edge_attr(key):
                self.of_edges.append(_column(data, store, key, value, placed))
            elif device is not None and isinstance(value, Tensor):
                self.template[key] = value.to(device)
                if value.device != device:
                    self._moved.append((value, value._version))

    def fits(self, store: BaseStorage) -> bool:
        """Return whether the store is unchanged."""
        mapping = store._mapping
        return (
            store is self._store
            and list(mapping) == self._keys
            and all([a is b for a, b in zip(mapping.values(), self._values, strict=True)])  # called for each batch
            and not (self._moved and any(value._version != version for value, version in self._moved))
        )

    def begin(self, parent: Batch) -> BaseStorage:
        """Return a store for a batch, whose values are still to be replaced."""
        store = object.__new__(type(self._store))
        attributes = store.__dict__
        attributes.update(self._store.__dict__)
        attributes.pop("_cached_attr", None)
        attributes["_mapping"] = self.template.copy()
        attributes["_parent"] = weakref.ref(parent)
        return store


class DataPlan:
    """Plan for all attributes of ``Data`` or ``HeteroData``."""

    def __init__(self, data: Batch, device: torch.device | None, placed: Placed) -> None:
        self.data = data
        self.nodes: dict[NodeType, StorePlan] = {}
        self.edges: dict[EdgeType, StorePlan] = {}
        self._shared: StorePlan | None = None
        if isinstance(data, Data):
            self.edges[HOMOGENEOUS_EDGE] = StorePlan(data, data.stores[0], True, device, placed)
        else:
            self.nodes = {t: StorePlan(data, store, False, device, placed) for t, store in data.node_items()}
            self.edges = {t: StorePlan(data, store, True, device, placed) for t, store in data.edge_items()}
            self._shared = StorePlan(data, data.stores[0], False, device, placed)
        stores = [*self.nodes.values(), *self.edges.values()]
        self.sources = [column.value for store in stores for column in (*store.of_nodes, *store.of_edges)]
        """Sources of rows."""
        self.embeddings = [key for store in stores for key, _ in store.embeddings]
        """Names of trainable rows."""
        edges = {kind: store.edge_index for kind, store in self.edges.items() if store.edge_index is not None}
        self.edge_index_devices = {kind: value.device for kind, value in edges.items() if device is None}
        """Device of ``edge_index`` in batches, by edge type; empty if the batch is on one device."""
        self.edge_index_types = [kind for kind, value in edges.items() if isinstance(value, EdgeIndex)]
        """Edge types whose edges are PyG's ``EdgeIndex``."""

    def fits(self, data: object) -> bool:
        """Return whether the data is the planned one, unchanged."""
        if data is not self.data:
            return False
        if isinstance(data, Data):
            return self.edges[HOMOGENEOUS_EDGE].fits(data._store)
        nodes, edges = data._node_store_dict, data._edge_store_dict
        return (
            list(nodes) == list(self.nodes)
            and list(edges) == list(self.edges)
            and all(plan.fits(nodes[kind]) for kind, plan in self.nodes.items())
            and all(plan.fits(edges[kind]) for kind, plan in self.edges.items())
            and self._shared is not None
            and self._shared.fits(data._global_store)
        )

    def shared_objects(self) -> frozenset[int]:
        """Return the ids of objects that all batches share with the data."""
        plans = [*self.nodes.values(), *self.edges.values(), *([] if self._shared is None else [self._shared])]
        return frozenset(id(value) for plan in plans for value in plan.template.values())

    def begin(self) -> Batch:
        """Return a batch: a copy of the data with its own stores, whose values are still to be replaced."""
        data = self.data
        batch = object.__new__(type(data))
        attributes = batch.__dict__
        attributes.update(data.__dict__)
        if self._shared is None:
            attributes["_store"] = self.edges[HOMOGENEOUS_EDGE].begin(batch)
            return batch
        attributes["_global_store"] = self._shared.begin(batch)
        attributes["_node_store_dict"] = {kind: plan.begin(batch) for kind, plan in self.nodes.items()}
        attributes["_edge_store_dict"] = {kind: plan.begin(batch) for kind, plan in self.edges.items()}
        return batch


def attributes_of(batch: Batch, kind: NodeType | EdgeType) -> Attributes:
    """Return the attributes of a type, which is added if it is new; homogeneous batches have one storage."""
    if not isinstance(batch, HeteroData):
        own: Attributes = batch._store._mapping
        return own
    stores = batch._node_store_dict if isinstance(kind, str) else batch._edge_store_dict
    store = stores.get(kind)
    mapping: Attributes = (batch[kind] if store is None else store)._mapping
    return mapping


def has_embeddings(data: object) -> bool:
    """Return whether nodes of the data have trainable rows."""
    stores = data.stores if isinstance(data, Data | HeteroData) else []
    return any(
        isinstance(value, Embedding)
        for store in stores
        if isinstance(store, NodeStorage)
        for value in store._mapping.values()
    )


def _column(data: Batch, store: BaseStorage, key: str, value: object, placed: Placed) -> Column:
    if isinstance(value, TensorFrame):
        return Column(key, value, 0, key)
    if not isinstance(value, Tensor | np.ndarray):
        raise FeatureError(
            f"Expected the attribute '{key}' to be a tensor, an array or a TensorFrame, as it has one entry per "
            f"node or edge, got a {type(value).__name__}. Convert it, or keep it outside of the data."
        )
    dim = data.__cat_dim__(key, value, store)
    name = key if store._key is None else f"{key!r} of {store._key!r}"
    return Column(key, placed(name, value), dim + value.ndim if dim < 0 else dim, name)


class DataColumns:
    """The ``Columns`` of ``Data`` and ``HeteroData``: every attribute with a row per node or edge."""

    complete = True
    kept_rows = None

    def __init__(self, data: Batch) -> None:
        self._data = data

    def named(self) -> list[tuple[str, object]]:
        """Return name and value of each attribute."""
        found: list[tuple[str, object]] = []
        DataPlan(self._data, None, lambda name, value: found.append((name, value)))
        return found

    def place(self, source: Callable[[str, object], object], device: torch.device) -> DataPlan:
        """Return the plan for the current attributes of the data."""
        return DataPlan(self._data, device, source)

    def fits(self, placed: DataPlan) -> bool:
        """Return whether the data is unchanged."""
        return placed.fits(self._data)


class PlacedStore:
    """The tensors of manyhop's feature store, each with the source that a GPU reads."""

    def __init__(self, columns: list[StoreColumn], sources: list[object]) -> None:
        self.columns, self.sources = columns, sources
        self._by_kind: dict[StoreSize | None, dict[NodeType | EdgeType, list[Column]]] = {}

    def by_kind(self, size: StoreSize | None) -> dict[NodeType | EdgeType, list[Column]]:
        """Return the columns of each node and edge type; see ``kind_of_rows``."""
        found = self._by_kind.get(size)
        if found is None:
            found = self._by_kind[size] = {}
            for column, source in zip(self.columns, self.sources, strict=True):
                kind = kind_of_rows(column.group, column.name, len(column.tensor), size)
                if kind is not None:
                    found.setdefault(kind, []).append(Column(column.name, source, 0, column.title))
        return found

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: batches share no object with a store."""
        return frozenset()


class StoreColumns:
    """The ``Columns`` of a feature store; empty for stores of other classes."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self.complete = type(store) is OwnStore
        """Whether the store is manyhop's."""
        self._own = store if isinstance(store, OwnStore) else None

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """Return how many rows of other nodes a GPU caches per tensor; ``None``: as its memory allows."""
        return None if self._own is None else self._own.kept_rows

    def named(self) -> list[tuple[str, object]]:
        """Return name and value of each tensor."""
        return [] if self._own is None else self._own.named_tensors()

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedStore:
        """Return the tensors that the store has now."""
        columns: list[StoreColumn] = self._store.columns()
        return PlacedStore(columns, [source(column.title, column.tensor) for column in columns])

    def fits(self, placed: PlacedStore) -> bool:
        """Return whether no tensor was put or removed since; called for each batch."""
        return self._store.known_columns is placed.columns


def columns_of(data: PyGData) -> DataColumns | StoreColumns:
    """Return the columns of a loader's data."""
    return DataColumns(data) if isinstance(data, Data | HeteroData) else StoreColumns(data[0])
