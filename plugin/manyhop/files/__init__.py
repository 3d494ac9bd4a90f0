"""Tensors and whole graphs in files."""

from manyhop.files.formats import names, open
from manyhop.files.graph_writer import GraphWriter, save_graph
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import StoredEdges, StoredGraph, StoredNodes, open_graph
from manyhop.files.tensor_file import TensorFile, write

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
