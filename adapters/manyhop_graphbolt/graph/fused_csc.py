"""The tensors of a fused CSC: one table for the edges of all types."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import GraphError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop.memory.stores import TopologyPlace
from manyhop.system.arrays import version_of
from manyhop_graphbolt.types import as_given, by_type, etype_str_to_tuple

TENSORS = ("csc_indptr", "indices", "node_type_offset", "type_per_edge")
ATTRIBUTES = ("node_attributes", "edge_attributes")


@dataclass(eq=False, repr=False)
class FusedCSC:
    """Edges grouped by destination, with the types and attributes of nodes and edges; see ``FusedCSCSamplingGraph``."""

    csc_indptr: Tensor
    indices: Tensor
    node_type_offset: Tensor | None = None
    type_per_edge: Tensor | None = None
    node_type_to_id: Mapping[str, int] | None = None
    edge_type_to_id: Mapping[str, int] | None = None
    node_attributes: Mapping[str, Tensor] | None = None
    edge_attributes: Mapping[str, Tensor] | None = None
    topology_place: TopologyPlace | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name in ("node_type_to_id", "edge_type_to_id", *ATTRIBUTES):
            value = getattr(self, name)
            setattr(self, name, None if value is None else dict(value))
        self._cache = _Cache()

    @property
    def total_num_nodes(self) -> int:
        """The number of nodes of all types."""
        return self.csc_indptr.numel() - 1

    @property
    def total_num_edges(self) -> int:
        """The number of edges of all types."""
        return self.indices.numel()

    @property
    def is_heterogeneous(self) -> bool:
        """Whether nodes and edges have types with names."""
        parts = (self.node_type_offset, self.type_per_edge, self.node_type_to_id, self.edge_type_to_id)
        return all(part is not None for part in parts)

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """The number of nodes, or node type -> number if types have names."""
        if self.node_type_offset is None or self.node_type_to_id is None:
            return self.total_num_nodes
        offset = self.node_type_offset
        counts = self._cache.get("nodes", (offset,), lambda: offset.diff().tolist())
        return {name: counts[k] for name, k in self.node_type_to_id.items()}

    @property
    def num_edges(self) -> int | dict[str, int]:
        """The number of edges, or edge type -> number if types have names."""
        if self.type_per_edge is None or self.edge_type_to_id is None:
            return self.total_num_edges
        kinds, least = self.type_per_edge, max(self.edge_type_to_id.values(), default=-1) + 1
        counts = self._cache.get("edges", (kinds,), lambda: torch.bincount(kinds, minlength=least).tolist())
        return {name: counts[k] for name, k in self.edge_type_to_id.items()}

    def node_ranges(self) -> dict[str, range]:
        """Return node type -> its ids in the fused CSC, by type id; ``"_N"`` if types have no names.

        Raises:
            GraphError: ``node_type_offset`` does not rise from 0 to the number of nodes.
        """
        if not self.is_heterogeneous:
            return {HOMOGENEOUS_NODE: range(self.total_num_nodes)}
        assert self.node_type_offset is not None
        assert self.node_type_to_id is not None
        offset = self.node_type_offset.tolist()
        if offset[0] != 0 or offset[-1] != self.total_num_nodes or sorted(offset) != offset:
            raise GraphError(
                f"Expected node_type_offset to rise from 0 to {self.total_num_nodes} (number of nodes), got {offset}."
            )
        names = sorted(self.node_type_to_id, key=self.node_type_to_id.__getitem__)
        return {name: range(a, b) for name, a, b in zip(names, offset[:-1], offset[1:], strict=True)}

    def edge_types_by_id(self) -> tuple[EdgeType, ...]:
        """Return edge types by type id; ``("_N", "_E", "_N")`` if types have no names."""
        if not self.is_heterogeneous:
            return (HOMOGENEOUS_EDGE,)
        assert self.edge_type_to_id is not None
        names = sorted(self.edge_type_to_id, key=self.edge_type_to_id.__getitem__)
        return tuple(map(etype_str_to_tuple, names))

    def node_attribute(self, name: str | None) -> Tensor | None:
        """Return a node attribute, ``[num_nodes, ...]``; ``None`` for no name. An unknown one raises GraphError."""
        return _named(self.node_attributes, name, "node")

    def edge_attribute(self, name: str | None) -> Tensor | None:
        """Return an edge attribute, ``[num_edges, ...]``; ``None`` for no name. An unknown one raises GraphError."""
        return _named(self.edge_attributes, name, "edge")

    def add_node_attribute(self, name: str, tensor: Tensor) -> None:
        """Add a node attribute, ``[num_nodes, ...]``.

        Raises:
            GraphError: a different number of nodes.
        """
        self.node_attributes = {**(self.node_attributes or {}), name: _rows(tensor, self.total_num_nodes, name, "node")}

    def add_edge_attribute(self, name: str, tensor: Tensor) -> None:
        """Add an edge attribute, ``[num_edges, ...]``, in the order of ``indices``.

        Raises:
            GraphError: a different number of edges.
        """
        self.edge_attributes = {**(self.edge_attributes or {}), name: _rows(tensor, self.total_num_edges, name, "edge")}

    def _map(self, move: Callable[[Tensor], Any]) -> Self:
        """Copy the graph with other tensors."""
        other = copy.copy(self)
        for name in (*TENSORS, *ATTRIBUTES):
            found = {key: move(tensor) for key, tensor in by_type(getattr(self, name)).items()}
            setattr(other, name, None if getattr(self, name) is None else as_given(found))
        return other

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update({"topology_place": None} | state)  # older files have none
        self._cache = _Cache()


class _Cache:
    """Things that are made of tensors, built again once one of these is another, or was written to, or has moved."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple[object, ...], tuple[Tensor | None, ...], Any]] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, parts: tuple[Tensor | None, ...], make: Callable[[], object]) -> Any:
        state = tuple([None if x is None else (id(x), version_of(x), x.data_ptr()) for x in parts])
        with self._lock:
            found = self._found.get(key)
            if found is None or found[0] != state:
                found = self._found[key] = (state, parts, make())  # parts: so that no other tensor gets the same id
            return found[2]


def _named(attributes: Mapping[str, Tensor] | None, name: str | None, domain: str) -> Tensor | None:
    if name is not None and name not in (attributes or {}):
        raise GraphError(f"Unknown {domain} attribute '{name}': expected one of {list(attributes or {})}.")
    return None if name is None or attributes is None else attributes[name]


def _rows(value: object, count: int, name: str, domain: str) -> Tensor:
    tensor = as_tensor(f"{domain} attribute '{name}'", value, GraphError)
    if tensor.dim() == 0 or tensor.size(0) != count:
        raise GraphError(f"Expected {domain} attribute '{name}' of shape [{count}, ...], got {list(tensor.shape)}.")
    return tensor
