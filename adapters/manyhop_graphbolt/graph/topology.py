"""The tensors of a fused CSC, and the same in the engine's form: tables per edge type or one for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import as_ids
from manyhop.errors import GraphError, InputError
from manyhop.features import BufferPool
from manyhop.graph import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    EdgeInput,
    EdgeType,
    Graph,
    NodeType,
    PlacedGraph,
    build_graph,
    time_key,
    with_edge_ids,
    with_mask,
    with_weights,
)
from manyhop.memory.places import Place
from manyhop.memory.stores import TopologyPlace, topology_place
from manyhop.sampling import LaborSpec, NeighborSpec, SampledSubgraph
from manyhop.sampling.contract import Engine
from manyhop.sampling.engines import engine_for, placed_engine
from manyhop.system.arrays import version_of
from manyhop_graphbolt.graph.layers import fanout_list, fanouts_by_type
from manyhop_graphbolt.graph.split import Splitter
from manyhop_graphbolt.types import (
    ORIGINAL_EDGE_ID,
    Fanout,
    Nodes,
    etype_str_to_tuple,
    etype_tuple_to_str,
)

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
        ids, offset = dict(self.node_type_to_id or {}), torch.as_tensor(self.node_type_offset).tolist()
        if offset[0] != 0 or offset[-1] != self.total_num_nodes or sorted(offset) != offset:
            raise GraphError(
                f"Expected node_type_offset to rise from 0 to {self.total_num_nodes} (number of nodes), got {offset}."
            )
        names = sorted(ids, key=ids.__getitem__)
        return {name: range(a, b) for name, a, b in zip(names, offset[:-1], offset[1:], strict=True)}

    def edge_types_by_id(self) -> tuple[EdgeType, ...]:
        """Return edge types by type id; ``("_N", "_E", "_N")`` if types have no names."""
        if not self.is_heterogeneous:
            return (HOMOGENEOUS_EDGE,)
        ids = dict(self.edge_type_to_id or {})
        names = sorted(ids, key=ids.__getitem__)
        return tuple(map(etype_str_to_tuple, names))

    def node_attribute(self, name: str | None) -> Tensor | None:
        """Return a node attribute, ``[num_nodes, ...]``; ``None`` for no name. An unknown one raises GraphError."""
        return _named(self.node_attributes, name, "node")

    def edge_attribute(self, name: str | None) -> Tensor | None:
        """Return an edge attribute, ``[num_edges, ...]``; ``None`` for no name. An unknown one raises GraphError."""
        return _named(self.edge_attributes, name, "edge")

    def topology(
        self,
        *,
        fused: bool = False,
        probs_name: str | None = None,
        node_time: str | None = None,
        edge_time: str | None = None,
    ) -> Topology:
        """Return the graph for the engine's samplers. It is cached until one of its tensors changes.

        Args:
            fused: one table for all edge types, for fanouts that count for all of them together.
            probs_name: edge attribute ``[num_edges]``: floating-point probabilities, or a mask.
            node_time: node attribute ``[num_nodes]`` with times.
            edge_time: edge attribute ``[num_edges]`` with times.

        Raises:
            GraphError: tensors that contradict each other; an attribute that is missing or of a wrong dtype or length.
        """
        fused = fused and self.is_heterogeneous
        attributes = (self.node_attribute(node_time), self.edge_attribute(edge_time))
        parts = (self.csc_indptr, self.indices, self.node_type_offset, self.type_per_edge, *attributes)
        names = (tuple((self.node_type_to_id or {}).items()), tuple((self.edge_type_to_id or {}).items()))
        key = (fused, node_time, edge_time, names)
        tables = self._cache.get(("tables", key), parts, lambda: tables_of(self, fused, node_time, edge_time))
        more = (self.edge_attribute(probs_name), (self.edge_attributes or {}).get(ORIGINAL_EDGE_ID))
        make = partial(Topology, self, tables, fused=fused, probs_name=probs_name)
        topology: Topology = self._cache.get(("topology", key, probs_name), (*parts, *more), make)
        return topology

    def topology_for(self, fanouts: Sequence[Fanout], probs_name: str | None = None, **times: str | None) -> Topology:
        """Return the topology for fanouts: a fused one if a fanout counts for all edge types together.

        Args:
            fanouts: per layer an integer, or ``[1]`` or ``[num_edge_types]`` integers.
            probs_name: see :meth:`topology`, also for ``node_time`` and ``edge_time`` of ``times``, and errors.
        """
        hops = [fanout_list(fanout) for fanout in fanouts]
        several = self.is_heterogeneous and len(self.edge_types_by_id()) > 1
        fused = several and any(len(hop) == 1 and hop[0] > 0 for hop in hops)
        return self.topology(fused=fused, probs_name=probs_name, **times)

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


Tables = tuple[Graph, dict[EdgeType, Tensor | None], bool | None]
"""A graph whose edge ids are positions in the table of their type; by edge type, the position of each edge in the fused
CSC (``None``: they agree); whether times are floating-point (``None`` without times)."""


def tables_of(g: FusedCSC, fused: bool, node_time: str | None, edge_time: str | None) -> Tables:
    """Build the tables of a sampling graph, without probabilities, which topologies of these edges and times share."""
    times, floating = _times(g, node_time, edge_time)
    indptr, indices = g.csc_indptr.cpu(), g.indices.cpu()
    if fused or not g.is_heterogeneous:
        edges = EdgeInput(row=indices, colptr=indptr, time=times)
        graph = build_graph({HOMOGENEOUS_NODE: g.total_num_nodes}, {HOMOGENEOUS_EDGE: edges})
        return graph, {HOMOGENEOUS_EDGE: None}, floating
    assert g.type_per_edge is not None
    offsets, edge_types, kinds = g.node_ranges(), g.edge_types_by_id(), g.type_per_edge.cpu()
    if kinds.numel() and int(kinds.max()) >= len(edge_types):
        raise GraphError(
            f"Expected type_per_edge below the number of edge types, {len(edge_types)}, got {int(kinds.max())}."
        )
    tables, positions = {}, {}
    for k, edge_type in enumerate(edge_types):
        at = positions[edge_type] = (kinds == k).nonzero().view(-1)
        src, dst = offsets[edge_type[0]], offsets[edge_type[2]]
        colptr = torch.searchsorted(at, indptr.long()[dst.start : dst.stop + 1])
        outside = int(colptr[0]) + at.numel() - int(colptr[-1])
        if outside:
            raise GraphError(
                f"Expected the edges of type '{etype_tuple_to_str(edge_type)}' to lead to nodes of type "
                f"'{edge_type[2]}', got {outside} that do not. Check type_per_edge and node_type_offset."
            )
        time = None if times is None else times[at]
        tables[edge_type] = EdgeInput(row=indices[at] - src.start, colptr=colptr, time=time)
    graph = build_graph({name: len(own) for name, own in offsets.items()}, tables)
    return graph, dict(positions), floating


class Topology:
    """The engine's view of a sampling graph: tables with probabilities and the user's edge ids, for GPUs at the graph's
    placement.

    Attributes:
        graph: by node and edge type, on the CPU; of a homogeneous graph, and if ``fused``, with the node type ``"_N"``.
        fused: whether one table has all types of a heterogeneous graph: ids are positions in the fused CSC.
        weighted: whether the edges have probabilities.
        floating_time: whether times are floating-point; ``None`` without times.
        has_original_edge_ids: whether samples have original edge ids, not positions in the fused CSC.
        offsets: node type -> its nodes in the fused CSC.
        edge_types: by edge type id.
    """

    def __init__(self, g: FusedCSC, tables: Tables, *, fused: bool, probs_name: str | None) -> None:
        graph, positions, self.floating_time = tables
        self.fused, self.weighted = fused, False
        if probs_name is not None:
            probs = edge_attribute(g, probs_name, "probabilities").cpu()
            split = {t: probs if at is None else probs[at] for t, at in positions.items()}
            if probs.dtype == torch.bool:
                graph = with_mask(graph, split)
            elif probs.dtype.is_floating_point:
                graph, self.weighted = with_weights(graph, split), True
            else:
                raise GraphError(
                    f"Probs should have a floating-point or boolean data type: expected that of edge attribute "
                    f"'{probs_name}', got {probs.dtype}."
                )
        original = None
        if ORIGINAL_EDGE_ID in (g.edge_attributes or {}):
            original = edge_attribute(g, ORIGINAL_EDGE_ID, "original edge ids")
        self.has_original_edge_ids = original is not None
        self.offsets, self.edge_types, self._device = g.node_ranges(), g.edge_types_by_id(), g.indices.device
        self.splitter: Splitter | None = None
        if fused:
            assert g.type_per_edge is not None
            self.splitter = Splitter(self.offsets, self.edge_types, g.type_per_edge, original)
        elif original is not None:
            ids = original.cpu()
            graph = with_edge_ids(graph, {t: ids if at is None else ids[at] for t, at in positions.items()})
        self.graph = graph
        self._placed: dict[torch.device, PlacedGraph] = {}
        self._engines: dict[tuple[torch.device | None, str], Engine] = {}
        self._lock = threading.Lock()
        if g.topology_place is not None:
            g.topology_place.claim(graph, self)

    def spec(self, fanouts: Sequence[Fanout], *, replace: bool = False, temporal: bool = False) -> NeighborSpec:
        """Return the spec of neighbour sampling; each layer samples for all nodes so far (trees: for the latest)."""
        return NeighborSpec(
            fanouts=fanouts_by_type(fanouts, self.graph.edge_types, len(self.edge_types), fused=self.fused),
            replace=replace,
            weighted=self.weighted,
            expand="new" if temporal else "all",
            temporal="uniform" if temporal else None,
            disjoint=temporal,
        )

    def layer_spec(self, fanouts: Sequence[Fanout], *, replace: bool = False, **options: Any) -> LaborSpec:
        """Return the spec of layer-neighbour sampling, whose nodes share neighbours as in GraphBolt."""
        fans = fanouts_by_type(fanouts, self.graph.edge_types, len(self.edge_types), fused=self.fused)
        return LaborSpec(fanouts=fans, method="exact", replace=replace, weighted=self.weighted, **options)

    def sampler(self, spec: NeighborSpec | LaborSpec, device: torch.device | None = None) -> Engine:
        """Return an engine for this topology, made once. A GPU reads the graph's place, or pinned memory."""
        where = None if device is None or device.type == "cpu" else device
        if where is not None:
            check_on_gpu(spec, where)
        key = (where, repr(spec))
        with self._lock:
            if key not in self._engines:
                if where is None:
                    self._engines[key] = engine_for(self.graph, spec, empty=BufferPool().empty)
                    return self._engines[key]
                if where not in self._placed:
                    store = topology_place(self.graph)
                    default: Place = "device" if self._device.type == "cuda" else "pinned"
                    place = None if store is None else store.place
                    self._placed[where] = PlacedGraph.of(self.graph, where, place or default)
                self._engines[key] = placed_engine(self._placed[where], spec)
            return self._engines[key]

    def seeds(self, nodes: Nodes) -> dict[NodeType, Tensor]:
        """Seed nodes for the engine: ``[num_seeds] int64`` by node type, or as ids of the fused CSC."""
        typed = isinstance(nodes, Mapping)
        if typed == (tuple(self.offsets) == (HOMOGENEOUS_NODE,)):
            kinds = ("without types", "by type") if typed else ("by type", "without types")
            raise InputError(f"Expected nodes {kinds[0]}, of the types {list(self.offsets)}, got some {kinds[1]}.")
        seeds = {}
        for name, ids in (nodes if isinstance(nodes, Mapping) else {HOMOGENEOUS_NODE: nodes}).items():
            if name not in self.offsets:
                raise InputError(f"Expected nodes of the types {list(self.offsets)}, got '{name}'.")
            on_gpu = isinstance(ids, Tensor) and ids.is_cuda  # kernels check them
            what = f"nodes of type '{name}'" if typed else "nodes"
            seeds[name] = as_ids(what, ids, None if on_gpu else len(self.offsets[name])).long()
        if not self.fused:
            return seeds
        parts = [ids + self.offsets[name].start for name, ids in seeds.items()]
        return {HOMOGENEOUS_NODE: torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)}

    def by_type(self, sample: SampledSubgraph) -> SampledSubgraph:
        """Split a sample by node and edge type; nodes and edges of each type keep their order.

        Only a ``fused`` topology has samples that are not so already.
        """
        return sample if self.splitter is None else self.splitter.split(sample)


def check_on_gpu(spec: NeighborSpec | LaborSpec, device: torch.device) -> None:
    """Raise InputError for a spec that a GPU does not sample."""
    if isinstance(spec, LaborSpec) and spec.replace:
        raise InputError(
            f"Expected replace=False for layer-neighbour sampling on {device}, got True. Leave replace out, or sample "
            "on the CPU and move minibatches by copy_to() after sampling."
        )


def edge_attribute(g: FusedCSC, name: str, what: str) -> Tensor:
    """Return an edge attribute ``[num_edges]``."""
    values = g.edge_attribute(name)
    assert values is not None
    if values.dim() != 1 or values.numel() != g.total_num_edges:
        raise GraphError(
            f"Expected {what} '{name}' of shape [{g.total_num_edges}], one per edge, got {list(values.shape)}."
        )
    return values


def _times(g: FusedCSC, node_time: str | None, edge_time: str | None) -> tuple[Tensor | None, bool | None]:
    """Return time keys ``[num_edges] int64``, the later of edge and source, and whether the times are floats."""
    parts = []
    times = g.node_attribute(node_time)
    if times is not None:
        values = times.cpu()
        if values.shape != (g.total_num_nodes,):
            raise GraphError(f"Expected times '{node_time}' of shape [{g.total_num_nodes}], got {list(values.shape)}.")
        parts.append(values[g.indices.cpu().long()])
    if edge_time is not None:
        parts.append(edge_attribute(g, edge_time, "times").cpu())
    if not parts:
        return None, None
    floating = any(values.dtype.is_floating_point for values in parts)
    keys = [time_key(values, floating=floating) for values in parts]
    return (keys[0] if len(keys) == 1 else torch.maximum(*keys)), floating
