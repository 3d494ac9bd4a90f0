"""Graphs derived from the tables of a graph, and queries of its edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.graph.build import EdgeInput, build_graph, weight_tables
from manyhop.graph.columns import roomy
from manyhop.graph.csc import CSC, EdgeType, Graph, of_type
from manyhop.memory import segments
from manyhop.memory.mapped_files import reside_in_files
from manyhop.system.arrays import has_memory
from manyhop.system.memory import require_memory


def with_weights(graph: Graph, weights: Mapping[EdgeType, Tensor]) -> Graph:
    """Return the same edges with weights; the tables of the topology are not copied.

    Args:
        graph: the topology.
        weights: edge type -> ``[num_edges]`` real, by edge id: finite and not negative. Types without an entry are
            unchanged.

    Raises:
        GraphError: an unknown edge type; weights of wrong length, dtype or value.
        CapacityError: the tables of the weights do not fit in memory.
    """
    csc = dict(graph.csc)
    for edge_type, weight in weights.items():
        table = _table(csc, edge_type)
        require_memory(
            f"The weights{of_type(edge_type)} ({table.num_edges} edges)",
            16 * table.num_edges + 8 * table.num_dst,
            "Use fewer edges, or a machine with more memory.",
        )
        tables: dict[str, Any] = weight_tables(edge_type, weight, table.perm, table.colptr)
        csc[edge_type] = replace(table, **tables)
    return replace(graph, csc=csc)


def with_mask(graph: Graph, masks: Mapping[EdgeType, Tensor]) -> Graph:
    """Return the edges that masks let through, under the ids and with the times that they had; of a graph without
    weights.

    Args:
        graph: the topology.
        masks: edge type -> ``[num_edges] bool``, by edge id. Types without an entry keep all edges.

    Raises:
        GraphError: an unknown edge type; a mask of another shape or dtype; a graph with weights.
    """
    csc = dict(graph.csc)
    for edge_type, mask in masks.items():
        table = _table(csc, edge_type)
        if mask.dtype != torch.bool or mask.shape != (table.num_edges,):
            raise GraphError(
                f"Expected the mask{of_type(edge_type)} as bool of shape [{table.num_edges}], got {mask.dtype} of "
                f"shape {list(mask.shape)}."
            )
        if table.weight is not None:
            raise GraphError(
                f"Expected edges{of_type(edge_type)} without weights, to be masked. Mask first, then add weights."
            )
        kept = (mask if table.perm is None else mask[table.perm.long()]).nonzero().view(-1)
        small = table.num_edges <= 2**31
        csc[edge_type] = replace(
            table,
            colptr=torch.searchsorted(kept, table.colptr),
            row=table.row[kept],
            perm=kept.to(torch.int32 if small else torch.int64) if table.perm is None else table.perm[kept],
            time=None if table.time is None else table.time[kept],
        )
    return replace(graph, csc=csc)


def with_edge_ids(graph: Graph, ids: Mapping[EdgeType, Tensor]) -> Graph:
    """Return the same edges under other ids; the other tables are not copied.

    Args:
        graph: the topology.
        ids: edge type -> ``[num_edges]`` integers, by the edge id that there is. Types without an entry keep theirs.

    Raises:
        GraphError: an unknown edge type.
    """
    csc = dict(graph.csc)
    for edge_type, new in ids.items():
        table = _table(csc, edge_type)
        perm = new if table.perm is None else new[table.perm.long()]
        small = perm.numel() == 0 or int(perm.max()) < 2**31
        csc[edge_type] = replace(table, perm=perm.to(torch.int32 if small else torch.int64))
    return replace(graph, csc=csc)


def without_edges(graph: Graph, edge_type: EdgeType) -> Graph:
    """Return a graph of one node type without edges.

    Args:
        graph: the topology.
        edge_type: between node types of the graph; one that it has, or another.
    """
    device = next((csc.row.device for csc in graph.csc.values()), None)
    empty = CSC(
        num_src=graph.num_nodes[edge_type[0]],
        colptr=torch.zeros(graph.num_nodes[edge_type[2]] + 1, dtype=torch.int64, device=device),
        row=torch.empty(0, dtype=torch.int32, device=device),
    )
    return Graph(num_nodes=graph.num_nodes, csc={edge_type: empty}, node_time=graph.node_time)


def without_views(graph: Graph, sources: Iterable[Tensor]) -> Graph:
    """Copy tables that are views of the user's private memory, which may change: those in files and segments stay.

    Args:
        graph: made of the sources.
        sources: tensors of the user.
    """
    found = {tensor.untyped_storage().data_ptr() for tensor in sources if has_memory(tensor)}
    in_files = reside_in_files([*found])
    private = {at for at, in_file in zip(found, in_files, strict=True) if not in_file and segments.where(at) is None}

    def own(table: Any) -> Any:
        is_tensor = isinstance(table, Tensor) and table.device.type == "cpu" and table.numel() > 0
        if not is_tensor or table.untyped_storage().data_ptr() not in private:
            return table
        return roomy(table.numel(), table.numpy().dtype.type).copy_(table)

    csc = {
        edge_type: replace(tables, **{field.name: own(getattr(tables, field.name)) for field in fields(tables)})
        if type(tables) is CSC
        else tables  # not grouped yet: changes raise an error
        for edge_type, tables in graph.csc.items()
    }
    node_time = {node_type: own(time) for node_type, time in graph.node_time.items()}
    return Graph(num_nodes=graph.num_nodes, csc=csc, node_time=node_time)


def _table(csc: Mapping[EdgeType, CSC], edge_type: EdgeType) -> CSC:
    if edge_type not in csc:
        raise GraphError(f"Unknown edge type {edge_type}. The graph has: {list(csc)}.")
    return csc[edge_type].made()


def endpoints(graph: Graph, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
    """Return source and destination of each edge of a type, by edge id: both ``[num_edges] int32 or int64``.

    The ids must be ``0 .. num_edges - 1``.
    """
    csc = graph.csc[edge_type]
    row, col = csc.row, _destinations(csc)
    if csc.perm is None:
        return row, col
    at = csc.perm.long()
    return torch.empty_like(row).index_copy_(0, at, row), torch.empty_like(col).index_copy_(0, at, col)


def in_degrees(graph: Graph, edge_type: EdgeType, nodes: Tensor | None = None) -> Tensor:
    """Return the number of edges of a type into each of the nodes, ``[n] int64``; ``None``: into all nodes."""
    return _degrees(graph.csc[edge_type], nodes)


def out_degrees(graph: Graph, edge_type: EdgeType) -> Tensor:
    """Return the number of edges of a type out of each node, ``[num_src] int64``."""
    csc = graph.csc[edge_type]
    return torch.bincount(csc.row, minlength=csc.num_src)


def has_edges(graph: Graph, edge_type: EdgeType, src: Tensor, dst: Tensor) -> Tensor:
    """Return whether there is an edge of a type from ``src[i]`` to ``dst[i]``, ``[n] bool``."""
    csc = graph.csc[edge_type]
    begin, degree = csc.colptr[dst], _degrees(csc, dst)
    pair = torch.repeat_interleave(degree)
    position = torch.arange(len(pair), device="cpu") - (degree.cumsum(0) - degree)[pair] + begin[pair]
    found = csc.row[position] == src[pair]
    return torch.zeros(len(src), dtype=torch.bool, device="cpu").index_fill_(0, pair[found], True)


def reverse_edges(graph: Graph) -> Graph:
    """Return a graph with the same edges from destination to source, under the ids that they had.

    Edge type ``(src, rel, dst)`` becomes ``(dst, rel, src)``. Weights and times are left out.
    """
    edges = {}
    for (src, relation, dst), csc in graph.csc.items():
        edges[dst, relation, src] = EdgeInput(row=_destinations(csc), col=csc.row, edge_id=csc.perm)
    return build_graph(graph.num_nodes, edges)


def _degrees(csc: CSC, nodes: Tensor | None) -> Tensor:
    if nodes is None:
        return torch.diff(csc.colptr)
    return csc.colptr[nodes + 1] - csc.colptr[nodes]


def _destinations(csc: CSC) -> Tensor:
    """Return where each stored edge leads, ``[num_edges] int32 or int64``."""
    col = torch.repeat_interleave(torch.diff(csc.colptr))
    return col.int() if csc.num_dst <= 2**31 else col
