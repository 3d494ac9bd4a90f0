"""The edges of a graph, of DGL or of this package, as topologies are made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, EdgeType, Graph, build_graph, endpoints, out_degrees, reverse_edges
from manyhop.memory.mapped_files import identity
from manyhop.memory.sharing import once_per_node
from manyhop.memory.stores import WHOLE_ONCE, checksum
from manyhop_dgl.typing import TypeNames

if TYPE_CHECKING:
    from dgl import DGLGraph

EdgeDir = Literal["in", "out"]


@dataclass(frozen=True)
class GraphReader:
    """How the topology of a graph is read."""

    owner: object
    """The object that lives as long as the tables."""
    edges: object
    """An object that is replaced when edges are added or removed."""
    names: TypeNames
    """Node types and canonical edge types."""
    idtype: torch.dtype
    build: Callable[[EdgeDir], Graph]
    """Compresses the edges, without weights."""
    edge_data: Callable[[EdgeType], Mapping[str, object]]
    """Returns the data of the edges of a canonical type, by name."""


def read_dgl(g: DGLGraph) -> GraphReader:
    """Read a ``DGLGraph``.

    Raises:
        InputError: a block, or a graph on a GPU.
    """
    if g.is_block:
        raise InputError("Expected a graph to sample from, got a block (message flow graph). Pass the graph itself.")
    if g.device.type != "cpu":
        raise InputError(
            f"Expected a graph on the CPU, got one on {g.device}. Pass it in host memory, without g.to(device): to "
            "sample on a GPU, manyhop has its own tables there."
        )
    names = tuple(g.ntypes), tuple(g.canonical_etypes)
    return GraphReader(g, g._graph, names, g.idtype, partial(_compress, g), lambda edge_type: g.edges[edge_type].data)


def _compress(g: DGLGraph, edge_dir: EdgeDir) -> Graph:
    formats = g.formats()
    # DGL's own table: its order within a column is that of DGL's blocks, and with int32 ids it is not copied.
    table = "csc" if edge_dir == "in" else "csr"
    compressed = table in (*formats["created"], *formats["not created"])
    edges = {}
    for edge_type in g.canonical_etypes:
        src, relation, dst = edge_type
        if compressed:
            pointer, ids, edge_id = g.adj_tensors(table, edge_type)
            ends = ids, None
        else:
            pointer = None
            row, col, edge_id = g.edges(form="all", order=None, etype=edge_type)
            ends = (row, col) if edge_dir == "in" else (col, row)
        ids = _unless_counting(edge_id)
        given = EdgeInput(row=ends[0], col=ends[1], colptr=pointer, edge_id=ids, reversed=edge_dir == "out")
        edges[edge_type if edge_dir == "in" else (dst, relation, src)] = given
    return build_graph({node_type: g.num_nodes(node_type) for node_type in g.ntypes}, edges)


class Tables:
    """The edges of a graph. ``reader_of`` reads topologies from it."""

    def __init__(self, graph: Graph, idtype: torch.dtype) -> None:
        self.graph, self.idtype = graph, idtype
        self._lock = threading.Lock()
        self._lists: dict[EdgeType, tuple[Tensor, Tensor]] = {}
        self._degrees: dict[EdgeType, Tensor] = {}

    def edge_list(self, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
        """Return source and destination by edge id, both ``[num_edges] int32 or int64``; made once."""
        with self._lock:
            if edge_type not in self._lists:
                self._lists[edge_type] = endpoints(self.graph, edge_type)
            return self._lists[edge_type]

    def degrees_out(self, edge_type: EdgeType) -> Tensor:
        """Return ``[num_src] int64``; made once."""
        with self._lock:
            if edge_type not in self._degrees:
                self._degrees[edge_type] = out_degrees(self.graph, edge_type)
            return self._degrees[edge_type]

    def with_idtype(self, idtype: torch.dtype) -> Tables:
        """Return the tables with ids of a different dtype."""
        return Tables(self.graph, idtype)

    def __reduce__(self) -> tuple[type[Tables], tuple[Graph, torch.dtype]]:
        return Tables, (self.graph, self.idtype)


def read_tables(tables: Tables, frames: Mapping[EdgeType, Mapping[str, object]]) -> GraphReader:
    """Read the tables of a ``manyhop_dgl.Graph`` with the data of its edges."""
    graph = tables.graph
    names = graph.node_types, graph.edge_types

    def build(edge_dir: EdgeDir) -> Graph:
        if edge_dir == "in":
            return graph
        return built_once(f"reversed {names}", graph.tables(), lambda: reverse_edges(graph))

    return GraphReader(tables, tables, names, tables.idtype, build, frames.__getitem__)


def built_once(what: str, inputs: Iterable[Tensor], build: Callable[[], Graph]) -> Graph:
    """Return ``build()``. If ranks share the memory of all inputs, one rank per node builds it."""
    inputs = list(inputs)
    contents = [identity(tensor) for tensor in inputs]
    if None in contents:
        return build()
    sums = [checksum(tensor, whole=WHOLE_ONCE) for tensor in inputs]
    return once_per_node(f"tables of DGL {what} {contents} {sums}", build, what="the topology")


def _unless_counting(edge_id: Tensor) -> Tensor | None:
    """Return the ids, or ``None`` for 0, 1, 2, ..., which need no table. DGL's tensor is empty then."""
    n = edge_id.numel()
    if n == 0 or bool((edge_id == torch.arange(n, dtype=edge_id.dtype)).all()):
        return None
    return edge_id
