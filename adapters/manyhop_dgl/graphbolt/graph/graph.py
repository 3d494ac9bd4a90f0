"""The graph that GraphBolt's samplers work on: one CSC for all node and edge types."""

from __future__ import annotations

import copy
import textwrap
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.features import is_pinned
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop_dgl.graphbolt.features.pinning import pinned
from manyhop_dgl.graphbolt.graph.sampling import Sampling
from manyhop_dgl.graphbolt.graph.tables import make_tables, make_topology
from manyhop_dgl.graphbolt.graph.topology import Topology, fanout_list
from manyhop_dgl.graphbolt.items.names import ORIGINAL_EDGE_ID, etype_str_to_tuple
from manyhop_dgl.graphbolt.typing import Fanout

_TENSORS = ("csc_indptr", "indices", "node_type_offset", "type_per_edge")
_DICTS = ("node_attributes", "edge_attributes")
_NAMES = ("node_type_to_id", "edge_type_to_id")


class SamplingGraph:
    """What all graphs for sampling share."""

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """How many nodes there are; by type in a heterogeneous graph."""
        raise NotImplementedError

    @property
    def num_edges(self) -> int | dict[str, int]:
        """How many edges there are; by type in a heterogeneous graph."""
        raise NotImplementedError

    def copy_to_shared_memory(self, shared_memory_name: str) -> SamplingGraph:
        """Copy the graph into memory that other processes can open by name."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> SamplingGraph:
        """Return a copy on another device."""
        raise NotImplementedError


class FusedCSCSamplingGraph(Sampling, SamplingGraph):
    """A graph whose edges are grouped by destination, those of all types in one table. Nodes of one type have ids that
    follow each other.

    Made by :func:`fused_csc_sampling_graph` and :func:`from_dglgraph`. The tensors can be replaced and written to at
    any time; the tables that samplers use follow when they are next asked for.

    Attributes:
        csc_indptr: ``[num_nodes + 1]`` integer: where the edges of each node begin.
        indices: ``[num_edges]`` integer: source node of each edge.
        node_type_offset: ``[num_node_types + 1]`` integer: where the nodes of each type begin; ``None``: one type.
        type_per_edge: ``[num_edges]`` integer: edge type id of each edge; ``None``: one type.
        node_type_to_id: node type -> its number.
        edge_type_to_id: edge type ``"source:relation:destination"`` -> its number.
        node_attributes: name -> ``[num_nodes, ...]``.
        edge_attributes: name -> ``[num_edges, ...]``, in the order of ``indices``.
    """

    def __init__(
        self,
        csc_indptr: Tensor,
        indices: Tensor,
        node_type_offset: Tensor | None = None,
        type_per_edge: Tensor | None = None,
        node_type_to_id: Mapping[str, int] | None = None,
        edge_type_to_id: Mapping[str, int] | None = None,
        node_attributes: Mapping[str, Tensor] | None = None,
        edge_attributes: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.csc_indptr = csc_indptr
        self.indices = indices
        self.node_type_offset = node_type_offset
        self.type_per_edge = type_per_edge
        self.node_type_to_id = None if node_type_to_id is None else dict(node_type_to_id)
        self.edge_type_to_id = None if edge_type_to_id is None else dict(edge_type_to_id)
        self.node_attributes = None if node_attributes is None else dict(node_attributes)
        self.edge_attributes = None if edge_attributes is None else dict(edge_attributes)
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
        """How many nodes there are; node type -> how many, where types have names."""
        if self.node_type_offset is None or self.node_type_to_id is None:
            return self.total_num_nodes
        offset = self._cache.get("offset", (self.node_type_offset,), lambda: self.node_type_offset.tolist())  # type: ignore[union-attr]
        return {name: offset[k + 1] - offset[k] for name, k in self.node_type_to_id.items()}

    @property
    def num_edges(self) -> int | dict[str, int]:
        """How many edges there are; edge type -> how many, where types have names."""
        if self.type_per_edge is None or self.edge_type_to_id is None:
            return self.total_num_edges
        kinds, least = self.type_per_edge, max(self.edge_type_to_id.values(), default=-1) + 1
        counts = self._cache.get("counts", (kinds,), lambda: torch.bincount(kinds, minlength=least).tolist())
        return {name: counts[k] for name, k in self.edge_type_to_id.items()}

    def node_ranges(self) -> dict[str, range]:
        """Node type -> its ids in the fused CSC, by type id; ``"_N"`` where types have no names."""
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
        """Edge types by type id; ``("_N", "_E", "_N")`` where types have no names."""
        if not self.is_heterogeneous:
            return (HOMOGENEOUS_EDGE,)
        assert self.edge_type_to_id is not None
        return tuple(
            etype_str_to_tuple(name) for name in sorted(self.edge_type_to_id, key=self.edge_type_to_id.__getitem__)
        )

    def topology(
        self,
        *,
        fused: bool = False,
        probs_name: str | None = None,
        node_time: str | None = None,
        edge_time: str | None = None,
    ) -> Topology:
        """The graph as the engine's samplers take it; kept until a tensor that it is made of changes.

        Args:
            fused: one table for all edge types, for fanouts that count for all of them together.
            probs_name: edge attribute ``[num_edges]``: floating-point probabilities, or a mask.
            node_time: node attribute ``[num_nodes]`` with times.
            edge_time: edge attribute ``[num_edges]`` with times.

        Raises:
            GraphError: tensors that contradict each other; an attribute that is missing or of a wrong dtype or length.
        """
        fused = fused and self.is_heterogeneous
        attributes = (self._attribute("node", node_time), self._attribute("edge", edge_time))
        parts = (self.csc_indptr, self.indices, self.node_type_offset, self.type_per_edge, *attributes)
        names = (tuple((self.node_type_to_id or {}).items()), tuple((self.edge_type_to_id or {}).items()))
        key = (fused, node_time, edge_time, names)
        tables = self._cache.get(("tables", key), parts, lambda: make_tables(self, fused, node_time, edge_time))
        more = (self._attribute("edge", probs_name), self._attribute("edge", ORIGINAL_EDGE_ID))
        make = partial(make_topology, self, tables, probs_name)
        topology: Topology = self._cache.get(("topology", key, probs_name), (*parts, *more), make)
        return topology

    def topology_for(self, fanouts: Sequence[Fanout], probs_name: str | None = None, **times: str | None) -> Topology:
        """The topology that fanouts ask for: a fused one where a fanout counts for all edge types together.

        Args:
            fanouts: per layer an integer, or ``[1]`` or ``[num_edge_types]`` integers.
            probs_name: see :meth:`topology`.
            times: ``node_time`` and ``edge_time``; see :meth:`topology`.

        Raises:
            GraphError: see :meth:`topology`.
        """
        hops = [fanout_list(fanout) for fanout in fanouts]
        several = self.is_heterogeneous and len(self.edge_types_by_id()) > 1
        fused = several and any(len(hop) == 1 and hop[0] > 0 for hop in hops)
        return self.topology(fused=fused, probs_name=probs_name, **times)

    def _attribute(self, domain: str, name: str | None) -> Tensor | None:
        attributes: dict[str, Tensor] | None = self.node_attributes if domain == "node" else self.edge_attributes
        return None if name is None or attributes is None else attributes.get(name)

    def node_attribute(self, name: str) -> Tensor | None:
        """A node attribute; ``None`` where there is none of this name."""
        return self._attribute("node", name)

    def edge_attribute(self, name: str) -> Tensor | None:
        """An edge attribute; ``None`` where there is none of this name."""
        return self._attribute("edge", name)

    def add_node_attribute(self, name: str, tensor: Tensor) -> None:
        """Add a node attribute, ``[num_nodes, ...]``.

        Raises:
            GraphError: another number of nodes.
        """
        self.node_attributes = {**(self.node_attributes or {}), name: _rows(tensor, self.total_num_nodes, name, "node")}

    def add_edge_attribute(self, name: str, tensor: Tensor) -> None:
        """Add an edge attribute, ``[num_edges, ...]``, in the order of ``indices``.

        Raises:
            GraphError: another number of edges.
        """
        self.edge_attributes = {**(self.edge_attributes or {}), name: _rows(tensor, self.total_num_edges, name, "edge")}

    def copy_to_shared_memory(self, shared_memory_name: str) -> FusedCSCSamplingGraph:
        """Copy the graph into memory that other processes open with :func:`load_from_shared_memory`.

        The name is free again when the copy is gone, or the process that made it.

        Args:
            shared_memory_name: any name without a slash; it belongs to this machine and user.

        Raises:
            InputError: the name is taken, or the graph lies on a GPU.
            CapacityError: there is not enough shared memory.
        """
        from manyhop_dgl.graphbolt.graph.shared import copy_to_shared_memory

        return copy_to_shared_memory(self, shared_memory_name)

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``)."""
        return self._map(lambda x: x.pin_memory() if device == "pinned" else x.to(device))

    def pin_memory_(self) -> Self:
        """Pin the memory of all tensors, so that GPUs read it by themselves: where it is, below 64 MiB in copies.
        Returns the graph.

        Raises:
            InputError: there is no GPU.
            CapacityError: the system does not let this process pin as much memory.
        """
        self.__dict__.update(self._map(pinned).__getstate__())
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read all tensors directly."""
        return all(tensor.device.type == "cpu" and is_pinned(tensor) for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        found = [getattr(self, name) for name in _TENSORS]
        found += [tensor for name in _DICTS for tensor in (getattr(self, name) or {}).values()]
        return [tensor for tensor in found if tensor is not None]

    def _map(self, move: Callable[[Tensor], Tensor]) -> Self:
        """A copy with other tensors."""
        other = copy.copy(self)
        for name in _TENSORS:
            tensor = getattr(self, name)
            setattr(other, name, None if tensor is None else move(tensor))
        for name in _DICTS:
            tensors = getattr(self, name)
            setattr(other, name, None if tensors is None else {k: move(x) for k, x in tensors.items()})
        return other

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._cache = _Cache()

    def __repr__(self) -> str:
        parts = [f"csc_indptr={self.csc_indptr}", f"indices={self.indices}"]
        parts.append(f"total_num_nodes={self.total_num_nodes}, num_edges={self.num_edges}")
        for name in ("node_type_offset", "type_per_edge", *_NAMES, *_DICTS):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)}")
        title, text = type(self).__name__, ",\n".join(parts)
        return textwrap.indent(f"{title}({text},)", " " * (len(title) + 1)).strip()


torch.serialization.add_safe_globals(
    [FusedCSCSamplingGraph]
)  # a graph saved by torch.save loads with weights_only=True


class _Cache:
    """Things that are made of tensors, made anew once one of these is another, or was written to, or has moved."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[tuple[object, ...], tuple[Tensor | None, ...], Any]] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, parts: tuple[Tensor | None, ...], make: Callable[[], Any]) -> Any:
        state = tuple([None if x is None else (id(x), _version(x), x.data_ptr()) for x in parts])
        with self._lock:
            found = self._found.get(key)
            if found is None or found[0] != state:
                found = self._found[key] = (state, parts, make())  # parts: so that no other tensor gets the same id
            return found[2]


def _version(tensor: Tensor) -> int:
    """How often a tensor was written to in place; those of inference mode do not know."""
    return 0 if tensor.is_inference() else tensor._version


def _rows(tensor: Tensor, count: int, name: str, domain: str) -> Tensor:
    if tensor.dim() == 0 or tensor.size(0) != count:
        raise GraphError(f"Expected {domain} attribute '{name}' of shape [{count}, ...], got {list(tensor.shape)}.")
    return tensor
