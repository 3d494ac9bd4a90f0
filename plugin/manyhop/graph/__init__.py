"""Topology: one compressed (CSC) table per edge type, built once, shared by all samplers."""

from manyhop.graph._build import EdgeInput, build_graph, time_key
from manyhop.graph._graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, Graph, NodeType
from manyhop.graph._place import place
from manyhop.graph._variants import with_mask, with_weights
from manyhop.graph.placed import PlacedGraph

__all__ = [
    "CSC",
    "HOMOGENEOUS_EDGE",
    "HOMOGENEOUS_NODE",
    "EdgeInput",
    "EdgeType",
    "Graph",
    "NodeType",
    "PlacedGraph",
    "build_graph",
    "place",
    "time_key",
    "with_mask",
    "with_weights",
]
