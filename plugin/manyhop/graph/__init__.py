"""Topology: one compressed (CSC) table per edge type, built once, shared by all samplers."""

from manyhop.graph.build import EdgeInput, build_graph, time_key
from manyhop.graph.csc import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeSlice, EdgeType, Graph, NodeType
from manyhop.graph.placed import PlacedGraph, grouped_on, place
from manyhop.graph.variants import (
    endpoints,
    has_edges,
    in_degrees,
    out_degrees,
    reverse_edges,
    with_edge_ids,
    with_mask,
    with_weights,
    without_edges,
    without_views,
)

__all__ = [
    "CSC",
    "HOMOGENEOUS_EDGE",
    "HOMOGENEOUS_NODE",
    "EdgeInput",
    "EdgeSlice",
    "EdgeType",
    "Graph",
    "NodeType",
    "PlacedGraph",
    "build_graph",
    "endpoints",
    "grouped_on",
    "has_edges",
    "in_degrees",
    "out_degrees",
    "place",
    "reverse_edges",
    "time_key",
    "with_edge_ids",
    "with_mask",
    "with_weights",
    "without_edges",
    "without_views",
]
