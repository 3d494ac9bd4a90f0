"""A fused CSC -> the engine's graphs: one table per edge type, or one for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.graph import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    EdgeInput,
    EdgeType,
    Graph,
    build_graph,
    time_key,
    with_edge_ids,
    with_mask,
    with_weights,
)
from manyhop_dgl.graphbolt.graph.fused_csc import FusedCSC
from manyhop_dgl.graphbolt.graph.split import Splitter
from manyhop_dgl.graphbolt.graph.topology import Topology
from manyhop_dgl.graphbolt.items.names import ORIGINAL_EDGE_ID, etype_tuple_to_str


@dataclass(frozen=True, eq=False)
class Tables:
    """What topologies of the same edges and times share."""

    graph: Graph
    """Edge ids are positions in the table of their type."""

    positions: Mapping[EdgeType, Tensor | None]
    """Edge type -> position of each of its edges in the fused CSC; ``None``: they agree."""

    fused: bool
    floating_time: bool | None


def make_tables(g: FusedCSC, fused: bool, node_time: str | None, edge_time: str | None) -> Tables:
    """The tables of a sampling graph, without probabilities.

    Args:
        g: the sampling graph.
        fused: one table for all edge types.
        node_time: node attribute with times; edges have that of their source.
        edge_time: edge attribute with times.

    Raises:
        GraphError: arrays that contradict each other; an attribute that is missing or of a wrong dtype or length.
    """
    times, floating = _times(g, node_time, edge_time)
    graph, positions = _tables(g, fused, times)
    return Tables(graph, positions, fused, None if times is None else floating)


def make_topology(g: FusedCSC, tables: Tables, probs_name: str | None) -> Topology:
    """The tables with probabilities and with the ids that edges have for the user, for GPUs in the graph's place.

    Args:
        g: the sampling graph.
        tables: those of its edges.
        probs_name: edge attribute: floating-point probabilities, or a mask.

    Raises:
        GraphError: an attribute that is missing, or of a wrong dtype or length.
    """
    graph, fused = tables.graph, tables.fused
    weighted = False
    if probs_name is not None:
        probs = edge_attribute(g, probs_name, "probabilities").cpu()
        split = {t: probs if at is None else probs[at] for t, at in tables.positions.items()}
        if probs.dtype == torch.bool:
            graph = with_mask(graph, split)
        elif probs.dtype.is_floating_point:
            graph, weighted = with_weights(graph, split), True
        else:
            raise GraphError(
                f"Probs should have a floating-point or boolean data type: expected that of edge attribute "
                f"'{probs_name}', got {probs.dtype}."
            )
    original = None
    if ORIGINAL_EDGE_ID in (g.edge_attributes or {}):
        original = edge_attribute(g, ORIGINAL_EDGE_ID, "original edge ids")
    splitter = None
    if fused:
        assert g.type_per_edge is not None
        splitter = Splitter(g.node_ranges(), g.edge_types_by_id(), g.type_per_edge, original)
    topology = Topology(
        graph=graph if fused else _with_ids(graph, tables.positions, None if original is None else original.cpu()),
        fused=fused,
        weighted=weighted,
        floating_time=tables.floating_time,
        has_original_edge_ids=original is not None,
        offsets=g.node_ranges(),
        edge_types=g.edge_types_by_id(),
        device=g.indices.device,
        _splitter=splitter,
    )
    if g.topology_place is not None:
        g.topology_place.claim(topology.graph, topology)
    return topology


def edge_attribute(g: FusedCSC, name: str, what: str) -> Tensor:
    """An edge attribute ``[num_edges]``."""
    values = g.edge_attribute(name)
    assert values is not None
    if values.dim() != 1 or values.numel() != g.total_num_edges:
        raise GraphError(
            f"Expected {what} '{name}' of shape [{g.total_num_edges}], one per edge, got {list(values.shape)}."
        )
    return values


def _tables(g: FusedCSC, fused: bool, times: Tensor | None) -> tuple[Graph, dict[EdgeType, Tensor | None]]:
    """A graph without weights, and per edge type the position of its edges in the fused CSC, ``None``: all in order."""
    indptr, indices = g.csc_indptr.cpu(), g.indices.cpu()
    if fused or not g.is_heterogeneous:
        edges = EdgeInput(row=indices, colptr=indptr, time=times)
        return build_graph({HOMOGENEOUS_NODE: g.total_num_nodes}, {HOMOGENEOUS_EDGE: edges}), {HOMOGENEOUS_EDGE: None}
    assert g.type_per_edge is not None
    offsets, kinds = g.node_ranges(), g.type_per_edge.cpu()
    if kinds.numel() and int(kinds.max()) >= len(g.edge_types_by_id()):
        raise GraphError(
            f"Expected type_per_edge below the number of edge types, {len(g.edge_types_by_id())}, got "
            f"{int(kinds.max())}."
        )
    tables, positions = {}, {}
    for k, edge_type in enumerate(g.edge_types_by_id()):
        at = (kinds == k).nonzero().view(-1)
        src, dst = offsets[edge_type[0]], offsets[edge_type[2]]
        colptr = torch.searchsorted(at, indptr.long()[dst.start : dst.stop + 1])
        outside = int(colptr[0]) + at.numel() - int(colptr[-1])
        if outside:
            raise GraphError(
                f"Expected the edges of type '{etype_tuple_to_str(edge_type)}' to lead to nodes of type "
                f"'{edge_type[2]}', got {outside} that do not. Check type_per_edge and node_type_offset."
            )
        row = indices[at] - src.start
        tables[edge_type] = EdgeInput(row=row, colptr=colptr, time=None if times is None else times[at])
        positions[edge_type] = at
    return build_graph({name: len(own) for name, own in offsets.items()}, tables), dict(positions)


def _with_ids(graph: Graph, positions: Mapping[EdgeType, Tensor | None], original: Tensor | None) -> Graph:
    """The graph whose edge ids are the original ones, or positions in the fused CSC."""
    ids = {t: at if original is None else original if at is None else original[at] for t, at in positions.items()}
    return with_edge_ids(graph, {t: of_type for t, of_type in ids.items() if of_type is not None})


def _times(g: FusedCSC, node_time: str | None, edge_time: str | None) -> tuple[Tensor | None, bool]:
    """``[num_edges] int64`` time keys: the later of those of an edge and of its source; whether they are of floats."""
    parts = []
    times = g.node_attribute(node_time)
    if times is not None:
        values = times.cpu()
        if values.shape != (g.total_num_nodes,):
            raise GraphError(f"Expected times '{node_time}' of shape [{g.total_num_nodes}], got {list(values.shape)}.")
        parts.append(values[g.indices.cpu().long()])
    if edge_time is not None:
        parts.append(edge_attribute(g, edge_time, "times").cpu())
    floating = any(values.dtype.is_floating_point for values in parts)
    keys = [time_key(values, floating=floating) for values in parts]
    return (None if not keys else keys[0] if len(keys) == 1 else torch.maximum(*keys)), floating
