"""Sampling graphs from tensors, from DGL graphs, and at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import check_range
from manyhop.errors import GraphError, InputError
from manyhop.graph import columns
from manyhop.memory.places import Place
from manyhop.memory.sharing import share
from manyhop.memory.stores import check_graph_place, place_for_topology
from manyhop.system.arrays import describe, has_memory
from manyhop.system.memory import require_memory
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.types import ORIGINAL_EDGE_ID, etype_str_to_tuple, etype_tuple_to_str

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
