"""The edges of a graph, of DGL or of this package, as topologies are made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

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


class GraphReader(Protocol):
    """The source of a topology: DGL's own graph (``DGLGraphReader``), or the tables of a ``manyhop_dgl.Graph``."""

    @property
    def owner(self) -> object:
        """The object that lives as long as the tables."""

    @property
    def edges(self) -> object:
        """An object that is replaced when edges are added or removed."""

    @property
    def names(self) -> TypeNames:
        """Node types and canonical edge types."""

    @property
    def idtype(self) -> torch.dtype:
        """Dtype of ids."""

    def build(self, edge_dir: EdgeDir) -> Graph:
        """Compress the edges, without weights."""

    def edge_data(self, edge_type: EdgeType) -> Mapping[str, object]:
        """Name -> data, of the edges of one canonical type."""


class DGLGraphReader:
    """The edges of a ``DGLGraph``, and their data."""

    def __init__(self, g: DGLGraph) -> None:
        if g.is_block:
            raise InputError(
                "Expected a graph to sample from, got a block (message flow graph). Pass the graph itself."
            )
        if g.device.type != "cpu":
            raise InputError(
                f"Expected a graph on the CPU, got one on {g.device}. Pass it in host memory, without "
                "g.to(device): to sample on a GPU, manyhop has its own tables there."
            )
        self._g = g

    @property
    def owner(self) -> object:
        return self._g

    @property
    def edges(self) -> object:
        return self._g._graph

    @property
    def names(self) -> TypeNames:
        return tuple(self._g.ntypes), tuple(self._g.canonical_etypes)

    @property
    def idtype(self) -> torch.dtype:
        return self._g.idtype  # type: ignore[no-any-return]  # DGL is untyped

    def build(self, edge_dir: EdgeDir) -> Graph:
        g = self._g
        formats = g.formats()
        # DGL's own table: its order within a column is that of DGL's blocks, and with int32 ids it is not copied.
        table = "csc" if edge_dir == "in" else "csr"
        compressed = table in (*formats["created"], *formats["not created"])
        edges = {}
        for edge_type in g.canonical_etypes:
            src, relation, dst = edge_type
            if compressed:
                pointer, ids, edge_id = g.adj_tensors(table, edge_type)
                given = EdgeInput(
                    row=ids, colptr=pointer, edge_id=_unless_counting(edge_id), reversed=edge_dir == "out"
                )
            else:
                row, col, edge_id = g.edges(form="all", order=None, etype=edge_type)
                ends = (row, col) if edge_dir == "in" else (col, row)
                given = EdgeInput(
                    row=ends[0], col=ends[1], edge_id=_unless_counting(edge_id), reversed=edge_dir == "out"
                )
            edges[edge_type if edge_dir == "in" else (dst, relation, src)] = given
        num_nodes = {node_type: g.num_nodes(node_type) for node_type in g.ntypes}
        return build_graph(num_nodes, edges)

    def edge_data(self, edge_type: EdgeType) -> Mapping[str, object]:
        return self._g.edges[edge_type].data  # type: ignore[no-any-return]


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


@dataclass(frozen=True)
class TablesReader:
    """How ``topology_of`` reads a ``manyhop_dgl.Graph``."""

    tables: Tables
    frames: Mapping[EdgeType, Mapping[str, object]]

    @property
    def owner(self) -> object:
        return self.tables

    @property
    def edges(self) -> object:
        return self.tables

    @property
    def names(self) -> TypeNames:
        return self.tables.graph.node_types, self.tables.graph.edge_types

    @property
    def idtype(self) -> torch.dtype:
        return self.tables.idtype

    def build(self, edge_dir: EdgeDir) -> Graph:
        graph = self.tables.graph
        if edge_dir == "in":
            return graph
        return built_once(f"reversed {self.names}", graph.tables(), lambda: reverse_edges(graph))

    def edge_data(self, edge_type: EdgeType) -> Mapping[str, object]:
        return self.frames[edge_type]


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
