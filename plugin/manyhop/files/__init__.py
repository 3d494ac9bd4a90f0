"""Tensors and whole graphs in files."""

from manyhop.files._graph import StoredEdges, StoredGraph, StoredNodes, open_graph
from manyhop.files._graph_writer import GraphWriter, save_graph
from manyhop.files._rows import Rows, names, open
from manyhop.files._write import TensorFile, write

__all__ = [
    "GraphWriter",
    "Rows",
    "StoredEdges",
    "StoredGraph",
    "StoredNodes",
    "TensorFile",
    "names",
    "open",
    "open_graph",
    "save_graph",
    "write",
]
