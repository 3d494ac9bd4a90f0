"""What can be asked about the edges of a graph: their ends, degrees, whether there are any."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.graph.build import EdgeInput, build_graph
from manyhop.graph.csc import CSC, EdgeType, Graph


def endpoints(graph: Graph, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
    """Return source and destination of each edge of a type, by edge id: both ``[num_edges] int32 or int64``.

    The ids have to be those of all edges, ``0 .. num_edges - 1``.
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
    position = torch.arange(len(pair)) - (degree.cumsum(0) - degree)[pair] + begin[pair]
    found = csc.row[position] == src[pair]
    return torch.zeros(len(src), dtype=torch.bool).index_put_((pair[found],), torch.tensor(True))


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
