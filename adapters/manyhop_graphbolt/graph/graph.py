"""The graph that samplers work on, one CSC for all node and edge types; from tensors, from DGL's graphs."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import as_tensor, check_range, integer
from manyhop.errors import GraphError, InputError
from manyhop.features import is_pinned
from manyhop.graph import columns, time_key
from manyhop.loading import next_key
from manyhop.memory.places import Place
from manyhop.memory.sharing import share
from manyhop.memory.stores import TopologyPlace, check_graph_place, place_for_topology
from manyhop.sampling import LaborSpec, NeighborSpec, NodeRequest
from manyhop.sampling.random import Use, below, draw, make_key
from manyhop.system.arrays import describe, has_memory
from manyhop.system.memory import require_memory
from manyhop.system.progress import to_device
from manyhop_dgl.samplers.arguments import draw as draw_seed
from manyhop_graphbolt.features.feature import pinned
from manyhop_graphbolt.graph.topology import ATTRIBUTES, TENSORS, FusedCSC, Topology
from manyhop_graphbolt.types import (
    ORIGINAL_EDGE_ID,
    CSCFormatBase,
    Fanout,
    Nodes,
    SampledSubgraphImpl,
    as_given,
    by_type,
    etype_str_to_tuple,
    etype_tuple_to_str,
    missing,
    split_pairs,
)


class FusedCSCSamplingGraph(FusedCSC):
    """A graph whose edges, of all types in one table, are grouped by destination.

    Nodes of one type have consecutive ids.

    :func:`fused_csc_sampling_graph` and :func:`from_dglgraph` build it. The tensors can be replaced and written to at
    any time; the tables that samplers use follow when they are next requested. In a loader, draws of its methods are a
    function of the minibatch's key; otherwise, of torch's default generator.

    Attributes:
        csc_indptr: see :func:`fused_csc_sampling_graph`, also for ``indices``, ``node_type_offset``, ``type_per_edge``,
            ``node_type_to_id``, ``edge_type_to_id``, ``node_attributes`` and ``edge_attributes``.
        topology_place: where loaders on GPUs read the topology; ``None``: where each of them decides.
    """

    def __getattr__(self, name: str) -> Any:
        raise missing(type(self).__name__, name)

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

    def sample_neighbors(
        self, nodes: Nodes, fanouts: Fanout, replace: bool = False, probs_name: str | None = None
    ) -> SampledSubgraphImpl:
        """Sample in-edges of some nodes.

        Args:
            nodes: ``[n]`` nodes, by node type or not. Nodes that occur twice are sampled for twice.
            fanouts: ``[1]``: edges per node, of all types together; ``[num_edge_types]``: edges per node and
                edge type, by type id. -1 is all.
            replace: sample with replacement.
            probs_name: edge attribute: weights in proportion to which edges are drawn, or a mask that selects
                edges.

        Returns:
            A subgraph with a column per node, whose rows are nodes of the graph.

        Raises:
            InputError: arguments that do not fit the graph.
            GraphError: the attribute is missing, or of a wrong dtype or length.
        """
        topology = self.topology_for([fanouts], probs_name)
        return self._sampled(topology, topology.spec([fanouts], replace=replace), nodes)

    def sample_layer_neighbors(
        self, nodes: Nodes, fanouts: Fanout, replace: bool = False, probs_name: str | None = None
    ) -> SampledSubgraphImpl:
        """Sample in-edges of some nodes so that nodes share their neighbours (arXiv 2210.13339).

        Arguments, result and errors are like in :meth:`sample_neighbors`.
        """
        topology = self.topology_for([fanouts], probs_name)
        return self._sampled(topology, topology.layer_spec([fanouts], replace=replace), nodes)

    def temporal_sample_neighbors(
        self,
        nodes: Nodes,
        input_nodes_timestamp: Nodes,
        fanouts: Fanout,
        replace: bool = False,
        probs_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
    ) -> SampledSubgraphImpl:
        """Sample edges into nodes: the time of the edge and of its source must be earlier than the node's time.

        Args:
            nodes: see :meth:`sample_neighbors`, also for ``fanouts``, ``replace``, ``probs_name``, result and errors.
            input_nodes_timestamp: ``[n]`` time of each node; by node type or not.
            node_timestamp_attr_name: node attribute with times.
            edge_timestamp_attr_name: edge attribute with times.
        """
        times = {"node_time": node_timestamp_attr_name, "edge_time": edge_timestamp_attr_name}
        if not any(times.values()):
            return self.sample_neighbors(nodes, fanouts, replace, probs_name)
        topology = self.topology_for([fanouts], probs_name, **times)
        spec = topology.spec([fanouts], replace=replace, temporal=True)
        return self._sampled(topology, spec, nodes, _latest(topology, nodes, input_nodes_timestamp))

    def sample_negative_edges_uniform(self, edge_type: str | None, node_pairs: Tensor, negative_ratio: int) -> Tensor:
        """Draw destinations for each edge, uniformly among all nodes of their type. Some pairs may be true edges.

        Args:
            edge_type: ``"source:relation:destination"``; ``None`` for a homogeneous graph.
            node_pairs: ``[n, 2]``.
            negative_ratio: how many per edge.

        Returns:
            ``[n * (1 + negative_ratio), 2]``, the given pairs, then those drawn, each source ``negative_ratio`` times.

        Raises:
            InputError: arguments that do not fit the graph.
        """
        integer("negative_ratio", negative_ratio, 1)
        total = self.total_num_nodes
        if edge_type is not None and self.is_heterogeneous:
            dst_type, counts = etype_str_to_tuple(edge_type)[2], self.num_nodes
            if not isinstance(counts, dict) or dst_type not in counts:
                raise InputError(f"Expected an edge type of {list(self.edge_type_to_id or ())}, got {edge_type!r}.")
            total = counts[dst_type]
        src, _ = split_pairs(node_pairs)
        count = src.numel() * negative_ratio
        if count and total < 1:
            raise InputError(f"Expected nodes to draw destinations from, got none of edge type {edge_type!r}.")
        key = next_key(draw_seed)
        drawn = below(draw(make_key(Use.NEGATIVE_DST, *key), np.arange(count)), total)
        dst = torch.from_numpy(drawn).to(src)
        return torch.cat([node_pairs, torch.stack([src.repeat_interleave(negative_ratio), dst], 1)])

    def _sampled(
        self, topology: Topology, spec: NeighborSpec | LaborSpec, nodes: Nodes, latest: dict[str, Tensor] | None = None
    ) -> SampledSubgraphImpl:
        """Sample one hop around seeds, on their device; rows are nodes of the graph."""
        seeds = topology.seeds(nodes)
        gpu = next((ids.device for ids in seeds.values() if ids.is_cuda), None)
        sample = topology.sampler(spec, gpu).sample(NodeRequest(key=next_key(draw_seed), seeds=seeds, time_max=latest))
        sample = topology.by_type(sample)
        csc: dict[str | None, CSCFormatBase] = {}
        edge_ids: dict[str | None, Any] = {}
        for edge_type, row in sample.row.items():
            src, _, dst = edge_type
            count = (sample.num_sampled_nodes or {}).get(dst, [0])[0]
            degree = torch.bincount(sample.col[edge_type], minlength=count)
            indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)]).to(self.csc_indptr.dtype)
            name = etype_tuple_to_str(edge_type) if self.is_heterogeneous else None
            csc[name] = CSCFormatBase(indptr, sample.node[src][row].to(self.indices.dtype))
            edge_ids[name] = sample.edge_id[edge_type]
        ids = as_given(edge_ids) if topology.has_original_edge_ids else None
        return SampledSubgraphImpl(sampled_csc=as_given(csc), original_edge_ids=ids)

    def _map(self, move: Callable[[Tensor], Any]) -> Self:
        """Copy the graph with other tensors."""
        other = copy.copy(self)
        for name in (*TENSORS, *ATTRIBUTES):
            found = {key: move(tensor) for key, tensor in by_type(getattr(self, name)).items()}
            setattr(other, name, None if getattr(self, name) is None else as_given(found))
        return other

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``)."""
        return self._map(lambda x: to_device(x, device, "edges"))

    def pin_memory_(self) -> Self:
        """Pin the memory of all tensors for GPUs to read, in place, or in copies below 64 MiB; return the graph.

        Raises:
            InputError: no GPU.
            CapacityError: the system does not let this process pin as much memory.
        """
        self.__dict__.update(self._map(pinned).__getstate__())
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read all tensors directly."""
        tensors = [tensor for name in (*TENSORS, *ATTRIBUTES) for tensor in by_type(getattr(self, name)).values()]
        return all(tensor.device.type == "cpu" and is_pinned(tensor) for tensor in tensors)

    def __repr__(self) -> str:
        parts = [f"csc_indptr={self.csc_indptr}", f"indices={self.indices}"]
        parts.append(f"total_num_nodes={self.total_num_nodes}, num_edges={self.num_edges}")
        names = ("node_type_offset", "type_per_edge", "node_type_to_id", "edge_type_to_id", *ATTRIBUTES)
        parts += [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
        title, text = type(self).__name__, ",\n".join(parts)
        return textwrap.indent(f"{title}({text},)", " " * (len(title) + 1)).strip()


def _rows(value: object, count: int, name: str, domain: str) -> Tensor:
    tensor = as_tensor(f"{domain} attribute '{name}'", value, GraphError)
    if tensor.dim() == 0 or tensor.size(0) != count:
        raise GraphError(f"Expected {domain} attribute '{name}' of shape [{count}, ...], got {list(tensor.shape)}.")
    return tensor


SamplingGraph = FusedCSCSamplingGraph
"""GraphBolt's name of the base of graphs for sampling, of which there is one kind."""


def _latest(topology: Topology, nodes: Nodes, times: Nodes) -> dict[str, Tensor]:
    """Return the latest time key that edges may have, by seed: the last one before its time."""
    if isinstance(nodes, Mapping) != isinstance(times, Mapping):
        raise InputError("Expected nodes and times both by type, or both as one tensor, got one of each.")
    keys, given = {}, by_type(times)
    for name, ids in by_type(nodes).items():
        time = None if given.get(name) is None else as_tensor(f"times of the nodes {name or ''}", given[name])
        if time is None or list(time.shape) != [len(ids)] or time.is_complex():
            got = "none" if time is None else describe(time)
            raise InputError(f"Expected a time for each of the {len(ids)} nodes {name or ''}, got {got}.")
        if time.dtype.is_floating_point and not topology.floating_time:
            time = time.ceil().long()
        keys[name] = time_key(time, floating=bool(topology.floating_time)) - 1
    if topology.fused or None in keys:  # one table
        return {next(iter(topology.graph.num_nodes)): torch.cat(list(keys.values()))}
    return keys


# A graph saved by torch.save loads with weights_only=True.
torch.serialization.add_safe_globals([FusedCSCSamplingGraph, TopologyPlace])


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def fused_csc_sampling_graph(
    csc_indptr: Tensor,
    indices: Tensor,
    node_type_offset: Tensor | None = None,
    type_per_edge: Tensor | None = None,
    node_type_to_id: Mapping[str, int] | None = None,
    edge_type_to_id: Mapping[str, int] | None = None,
    node_attributes: Mapping[str, Tensor] | None = None,
    edge_attributes: Mapping[str, Tensor] | None = None,
    *,
    placement: Place = "process",
) -> FusedCSCSamplingGraph:
    """Build a sampling graph from tensors, without copying them.

    Args:
        csc_indptr: ``[num_nodes + 1]`` integer: where the edges that lead to each node begin.
        indices: ``[num_edges]`` integer: source node of each edge.
        node_type_offset: ``[num_node_types + 1]`` integer: where the nodes of each type begin.
        type_per_edge: ``[num_edges]`` integer: edge type id of each edge.
        node_type_to_id: node type -> its number, from 0.
        edge_type_to_id: edge type ``"source:relation:destination"`` -> its number, from 0.
        node_attributes: name -> ``[num_nodes, ...]``.
        edge_attributes: name -> ``[num_edges, ...]``, in the order of ``indices``.
        placement: ``"process"``: the tensors are used unchanged. Others have one copy per node, in memory that
            its ranks share; all ranks build the graph then, from the same tensors. ``"pinned"``, ``"device"`` and
            ``"sharded"`` (over the GPUs of each node) are where all loaders of a GPU read the topology, ``"auto"``
            where the first of them decides.

    Raises:
        GraphError: tensors or names that contradict each other.
        InputError: an unknown placement; a placement of GPUs without GPUs.
    """
    tensors: dict[str, object] = {"csc_indptr": csc_indptr, "indices": indices}
    tensors |= {"node_type_offset": node_type_offset, "type_per_edge": type_per_edge}
    checked = {name: _integers(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    if csc_indptr.numel() < 1:
        raise GraphError("Expected csc_indptr of shape [num_nodes + 1], got [].")
    if node_type_to_id is not None and edge_type_to_id is not None:
        _check_names(node_type_to_id, edge_type_to_id)
        if node_type_offset is not None and node_type_offset.numel() != len(node_type_to_id) + 1:
            raise GraphError(
                f"node_type_offset length should be |ntypes| + 1: expected {len(node_type_to_id) + 1}, got "
                f"{node_type_offset.numel()}."
            )
    indices, kinds = checked["indices"], checked.get("type_per_edge")
    graph = FusedCSCSamplingGraph(csc_indptr, indices, node_type_offset, kinds, node_type_to_id, edge_type_to_id)
    if type_per_edge is not None and type_per_edge.numel() != graph.total_num_edges:
        raise GraphError(f"Expected type_per_edge of shape [{graph.total_num_edges}], got {list(type_per_edge.shape)}.")
    graph.node_attributes = None if node_attributes is None else {}
    graph.edge_attributes = None if edge_attributes is None else {}
    for name, tensor in (node_attributes or {}).items():
        graph.add_node_attribute(name, tensor)
    for name, tensor in (edge_attributes or {}).items():
        graph.add_edge_attribute(name, tensor)
    return in_place(lambda: graph, placement)


def in_place(load: Callable[[], FusedCSCSamplingGraph], placement: Place) -> FusedCSCSamplingGraph:
    """Return a graph with its tensors, and topology for GPUs, at a placement; a collective except for ``"process"``."""
    check_graph_place(placement)
    graph = load() if placement == "process" else share(load, what="a sampling graph")
    graph.topology_place = place_for_topology(placement)
    return graph


def _integers(name: str, tensor: object) -> Tensor:
    """Return a tensor of integers, int64 for ``torch.tensor([])``, which is of floats; raise GraphError for others."""
    if isinstance(tensor, Tensor) and has_memory(tensor) and tensor.dim() == 1:
        if tensor.dtype in _INTEGERS:
            return tensor
        if tensor.numel() == 0:
            return tensor.long()
    raise GraphError(f"Expected {name} as a 1-D tensor of integers, got {describe(tensor)}. Convert it.")


def _check_names(node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> None:
    for kind, ids in (("Node", node_types), ("Edge", edge_types)):
        if not all(isinstance(name, str) for name in ids):
            raise GraphError(f"{kind} type name should be string, got {list(ids)}.")
        if not all(isinstance(k, int) and not isinstance(k, bool) for k in ids.values()):
            raise GraphError(f"{kind} type id should be int, got {dict(ids)}.")
        if sorted(ids.values()) != list(range(len(ids))):
            raise GraphError(f"Expected {kind.lower()} type ids from 0 to {len(ids) - 1}, each once, got {dict(ids)}.")
    for name in edge_types:
        src, _, dst = etype_str_to_tuple(name)
        for end in (src, dst):
            if end not in node_types:
                raise GraphError(f"Unrecognized node type {end} in edge type {name}: known are {list(node_types)}.")


def from_dglgraph(
    g: Any, is_homogeneous: bool = False, include_original_edge_id: bool = False
) -> FusedCSCSamplingGraph:
    """Build a sampling graph with the edges and the data of a DGL graph.

    Args:
        g: a ``dgl.DGLGraph``, or a graph with its methods.
        is_homogeneous: leave the types out.
        include_original_edge_id: keep the edge ids of ``g`` (per type), to read edge features by them.

    Raises:
        GraphError: node data that not all node types have, or edge data that not all edge types have.
        InputError: no graph.
    """
    if not hasattr(g, "canonical_etypes"):
        raise InputError(f"Expected a dgl.DGLGraph, got a {type(g).__name__}.")
    ntypes, etypes = list(g.ntypes), list(g.canonical_etypes)
    offset = torch.tensor([0, *(int(g.num_nodes(name)) for name in ntypes)]).cumsum(0)
    start = dict(zip(ntypes, offset.tolist(), strict=False))
    src, dst, kinds, ids = [], [], [], []
    for k, etype in enumerate(etypes):
        u, v = (end.long().cpu() for end in g.edges(etype=etype, order="eid"))
        src.append(u + start[etype[0]])
        dst.append(v + start[etype[2]])
        kinds.append(torch.full_like(u, k))
        ids.append(torch.arange(u.numel()))
    indptr, indices, order = sort_by_destination(torch.cat(src), torch.cat(dst), int(offset[-1]))
    attributes = {ORIGINAL_EDGE_ID: torch.cat(ids)[order].to(g.idtype)} if include_original_edge_id else {}
    graph = FusedCSCSamplingGraph(
        indptr.to(g.idtype),
        indices.to(g.idtype),
        None if is_homogeneous else offset,
        None if is_homogeneous else torch.cat(kinds)[order],
        None if is_homogeneous else {name: k for k, name in enumerate(ntypes)},
        None if is_homogeneous else {etype_tuple_to_str(etype): k for k, etype in enumerate(etypes)},
        {},
        attributes,
    )
    for name, values in joined({t: g.nodes[t].data for t in ntypes}, "node").items():
        graph.add_node_attribute(name, values)
    for name, values in joined({t: g.edges[t].data for t in etypes}, "edge").items():
        graph.add_edge_attribute(name, values[order])
    return graph


def sort_by_destination(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Group edges by destination, in the given order within each group.

    Returns:
        ``indptr [num_nodes + 1]``, ``indices [num_edges]``, and the previous position of each edge, ``int64``.
    """
    for what, ids in (("source", src), ("destination", dst)):
        check_range(f"{what} nodes", ids, num_nodes, GraphError)
    require_memory(
        f"Sorting {src.numel()} edges by destination",
        36 * src.numel() + 8 * num_nodes,  # keys, sorted keys and their order, sorted sources
        "Use fewer edges, or a machine with more memory.",
    )
    found = columns.group(src, dst, num_nodes, num_nodes)
    return found.colptr, found.row.long(), found.position.long()


def joined(by_type: Mapping[object, Mapping[str, Tensor]], domain: str) -> dict[str, Tensor]:
    """Concatenate data of all types. Raise GraphError for data that only some types have."""
    found = {}
    for name in dict.fromkeys(name for data in by_type.values() for name in data):
        missing = [t for t, data in by_type.items() if name not in data]
        if missing:
            raise GraphError(
                f"Expected {domain} data '{name}' for all {domain} types, since it becomes one attribute of the "
                f"sampling graph, got none for {missing}. Remove it from the graph, and read it from a feature store."
            )
        found[name] = torch.cat([data[name].cpu() for data in by_type.values()])
    return found
