"""The part of a graph that holds its edges and its data by type; ``g.nodes`` and ``g.edges``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyhop import arguments
from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.graph import EdgeType, NodeType, has_edges, in_degrees
from manyhop.memory.stores import TopologyPlace
from manyhop_dgl.graph.frames import Frame, RankStores, TypedData, copied
from manyhop_dgl.graph.topology import Tables, type_of
from manyhop_embedding import Embedding


class Types:
    """The types of one graph.

    Args:
        ntypes: node types, in order.
        canonical_etypes: edge types ``(src, relation, dst)``, in order.
    """

    def __init__(self, ntypes: Sequence[NodeType], canonical_etypes: Sequence[EdgeType]) -> None:
        self.ntypes, self.canonical_etypes = list(ntypes), list(canonical_etypes)

    def node_type(self, name: object) -> NodeType:
        """Return the node type of a name; ``None``: the only one.

        Raises:
            InputError: no such type; ``None`` if there are multiple.
        """
        return str(self._one(name, "node", self.ntypes))

    def edge_type(self, name: object) -> EdgeType:
        """Return the canonical edge type of a triple or a relation; ``None``: the only one.

        Raises:
            InputError: no such type; a name that multiple have; ``None`` if there are multiple.
        """
        edge_type: EdgeType = self._one(name, "edge", self.canonical_etypes)
        return edge_type

    def _one(self, name: object, kind: str, known: list[Any]) -> Any:
        if name is not None:
            return type_of(name, known, kind, "the graph")
        if len(known) != 1:
            raise InputError(f"Expected the {kind} type, as the graph has several: {known}.")
        return known[0]

    def title(self, kind: NodeType | EdgeType, ends: str) -> str:
        """Name the owner of data in errors."""
        alone = len(self.ntypes) == 1 and len(self.canonical_etypes) == 1
        return f"the {ends}" if alone else f"the {ends} of type {kind!r}"


def as_ids(ids: object, bound: int, what: str) -> tuple[Tensor, bool]:
    """Return ids of any form that DGL accepts as ``[n] int64``, and whether it was a single id outside of a tensor.

    Raises:
        InputError: no ids, or ids that are not in ``[0, bound)``.
    """
    single = not isinstance(ids, Tensor | np.ndarray) and hasattr(ids, "__index__")
    tensor = as_tensor(what, ids)
    if tensor.dim() == 0:
        tensor = tensor.view(1)
    if tensor.dtype == torch.bool:
        if tensor.shape != (bound,):
            raise InputError(f"Expected a mask of {what} of shape [{bound}], got {list(tensor.shape)}.")
        return tensor.nonzero().view(-1), False
    if tensor.device.type != "cpu":
        raise InputError(f"Expected {what} on the CPU, like the graph, got ids on {tensor.device}.")
    return arguments.as_ids(what, tensor, bound).long(), single


_ALL = "__ALL__"


class GraphData:
    """The part of a :class:`manyhop_dgl.Graph` that holds its edges and data."""

    tables: Tables
    types: Types
    topology_place: TopologyPlace | None
    node_frames: dict[NodeType, Frame]
    edge_frames: dict[EdgeType, Frame]

    @property
    def ntypes(self) -> list[NodeType]:
        """Node types, in order."""
        return list(self.types.ntypes)

    @property
    def etypes(self) -> list[str]:
        """Names of the relations, one per edge type, in order."""
        return [t[1] for t in self.types.canonical_etypes]

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        """Edge types ``(src, relation, dst)``, in order."""
        return list(self.types.canonical_etypes)

    srctypes = dsttypes = ntypes

    def to_canonical_etype(self, etype: str | EdgeType) -> EdgeType:
        """Return the canonical edge type of a relation."""
        return self.types.edge_type(etype)

    def get_ntype_id(self, ntype: NodeType | None) -> int:
        """Return the number of a node type in ``ntypes``."""
        return self.types.ntypes.index(self.types.node_type(ntype))

    def get_etype_id(self, etype: str | EdgeType | None) -> int:
        """Return the number of an edge type in ``canonical_etypes``."""
        return self.types.canonical_etypes.index(self.types.edge_type(etype))

    @property
    def idtype(self) -> torch.dtype:
        """Dtype of ids in blocks."""
        return self.tables.idtype

    @property
    def device(self) -> torch.device:
        """The CPU: edges and data are in host memory, for batches on any device."""
        return torch.device("cpu")

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and one edge type."""
        return len(self.types.ntypes) == 1 and len(self.types.canonical_etypes) == 1

    is_block = False

    def num_nodes(self, ntype: NodeType | None = None) -> int:
        """Return nodes of a type; of all types together by default."""
        counts = self.tables.graph.num_nodes
        return sum(counts.values()) if ntype is None else counts[self.types.node_type(ntype)]

    def num_edges(self, etype: str | EdgeType | None = None) -> int:
        """Return edges of a type; of all types together by default."""
        graph = self.tables.graph
        edge_types = graph.edge_types if etype is None else (self.types.edge_type(etype),)
        return sum(map(graph.num_edges, edge_types))

    number_of_nodes = num_src_nodes = num_dst_nodes = num_nodes
    number_of_edges = num_edges

    def find_edges(self, eid: object, etype: str | EdgeType | None = None) -> tuple[Tensor, Tensor]:
        """Return sources and destinations of edges, both ``[n]`` of ``idtype``."""
        edge_type = self.types.edge_type(etype)
        ids, _ = as_ids(eid, self.tables.graph.num_edges(edge_type), f"edges of {edge_type}")
        row, col = self.tables.edge_list(edge_type)
        return row[ids].to(self.idtype), col[ids].to(self.idtype)

    def in_degrees(self, v: object = _ALL, etype: str | EdgeType | None = None) -> Any:
        """Return the in-degrees ``[n]`` of ``idtype`` of nodes (default: all); an integer for a single node."""
        edge_type = self.types.edge_type(etype)
        graph = self.tables.graph
        if isinstance(v, str) and v == _ALL:
            return in_degrees(graph, edge_type).to(self.idtype)
        ids, single = as_ids(v, graph.num_nodes[edge_type[2]], f"nodes of type {edge_type[2]!r}")
        degrees = in_degrees(graph, edge_type, ids)
        return int(degrees) if single else degrees.to(self.idtype)

    def out_degrees(self, u: object = _ALL, etype: str | EdgeType | None = None) -> Any:
        """Return ``[n]`` of ``idtype``: edges of a type out of nodes (all by default); an integer for a single node."""
        edge_type = self.types.edge_type(etype)
        degrees = self.tables.degrees_out(edge_type)
        if isinstance(u, str) and u == _ALL:
            return degrees.to(self.idtype)
        ids, single = as_ids(u, self.tables.graph.num_nodes[edge_type[0]], f"nodes of type {edge_type[0]!r}")
        return int(degrees[ids]) if single else degrees[ids].to(self.idtype)

    def has_edges_between(self, u: object, v: object, etype: str | EdgeType | None = None) -> Any:
        """Return ``[n] bool``: whether there is an edge from ``u[i]`` to ``v[i]``; one truth value for single nodes.

        Raises:
            InputError: nodes that do not exist; numbers of sources and destinations that differ, of which none is 1.
        """
        edge_type = self.types.edge_type(etype)
        num_nodes = self.tables.graph.num_nodes
        src, one_src = as_ids(u, num_nodes[edge_type[0]], f"nodes of type {edge_type[0]!r}")
        dst, one_dst = as_ids(v, num_nodes[edge_type[2]], f"nodes of type {edge_type[2]!r}")
        if len(src) != len(dst) and 1 not in (len(src), len(dst)):
            raise InputError(f"Expected as many sources as destinations, got {len(src)} and {len(dst)}.")
        n = max(len(src), len(dst)) if len(src) and len(dst) else 0
        found = has_edges(self.tables.graph, edge_type, src.expand(n), dst.expand(n))
        return bool(found) if one_src and one_dst else found

    def formats(self, formats: str | list[str] | None = None) -> Any:
        """Return the sparse formats; if some are passed, the graph itself: its tables are CSC, built as needed.

        Raises:
            InputError: a format other than ``"coo"``, ``"csr"`` and ``"csc"``.
        """
        if formats is None:
            return {"created": ["csc"], "not created": ["coo", "csr"]}
        given = [formats] if isinstance(formats, str) else list(formats)
        if not given or not set(given) <= {"coo", "csr", "csc"}:
            raise InputError(f"Expected formats among 'coo', 'csr' and 'csc', got {formats!r}.")
        return self

    def create_formats_(self) -> None:
        """Do nothing: the samplers' tables exist already."""

    @classmethod
    def of_tables(cls, tables: Tables, stores: RankStores | None = None) -> Self:
        """Return a graph over these tables, without data."""
        out = cls.__new__(cls)
        out.set_tables(tables, stores)
        return out

    def set_tables(self, tables: Tables, stores: RankStores | None) -> None:
        """Take over the edges of a new graph, whose frames are empty."""
        self.topology_place = None if stores is None else stores.topology
        self.tables, self.types = tables, Types(tables.graph.node_types, tables.graph.edge_types)
        self.node_frames = {
            t: Frame(n, self.types.title(t, "nodes"), stores) for t, n in tables.graph.num_nodes.items()
        }
        self.edge_frames = {
            t: Frame(tables.graph.num_edges(t), self.types.title(t, "edges"), stores) for t in tables.graph.edge_types
        }

    @property
    def ndata(self) -> MutableMapping[str, Any]:
        """Data of the nodes by name: tensors ``[num_nodes, ...]``; with multiple types, ``{type: tensor}``."""
        if len(self.node_frames) == 1:
            return next(iter(self.node_frames.values()))
        return TypedData(self.node_frames, self.types.node_type)

    @property
    def edata(self) -> MutableMapping[str, Any]:
        """Data of the edges by name: tensors ``[num_edges, ...]``; with multiple types, ``{type: tensor}``."""
        if len(self.edge_frames) == 1:
            return next(iter(self.edge_frames.values()))
        return TypedData(self.edge_frames, self.types.edge_type)

    def put_rows(
        self, name: str, rows: Tensor, *, begin: int, ntype: NodeType | None = None, etype: str | EdgeType | None = None
    ) -> None:
        """Set parts of data: ``rows`` of this rank begin at row ``begin``. All ranks call it.

        Args:
            name: of the data.
            rows: ``[count, ...]``; the parts of all ranks are all rows, each once. If there are none: ``[0, ...]``.
            begin: number of the first row.
            ntype: whose data it is, of nodes. Without ``ntype`` and ``etype``: of the only node type.
            etype: whose data it is, of edges.

        Raises:
            FeatureError: the parts do not fit together, or the graph.
            InputError: the graph is in this process only; an unknown type.
            RankError: the ranks set different data, or are late.
        """
        if ntype is not None and etype is not None:
            raise InputError(f"Expected either ntype or etype, got {ntype!r} and {etype!r}.")
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise InputError(f"Expected begin as the number of the first row, 0 or more, got {begin!r}.")
        if etype is not None:
            self.edge_frames[self.types.edge_type(etype)].put(name, rows, begin)
        else:
            self.node_frames[self.types.node_type(ntype)].put(name, rows, begin)

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Restore data that are set, replaced or removed in the body."""
        before = self.node_frames, self.edge_frames
        self.node_frames, self.edge_frames = copied(before[0]), copied(before[1])
        try:
            yield
        finally:
            self.node_frames, self.edge_frames = before

    def tensors(self) -> Iterator[Tensor]:
        """Yield the data of all nodes and edges in this process, without embeddings."""
        for frame in (*self.node_frames.values(), *self.edge_frames.values()):
            for value in frame.values():
                if not isinstance(value, Embedding):
                    yield value.rows if isinstance(value, ShardedRows | DistributedRows) else value


class Nodes:
    """``g.nodes``."""

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph

    def __call__(self, ntype: NodeType | None = None) -> Tensor:
        """``[num_nodes]`` of ``idtype``: 0, 1, 2, ..."""
        node_type = self._graph.types.node_type(ntype)
        return torch.arange(self._graph.num_nodes(node_type), dtype=self._graph.idtype)

    def __getitem__(self, ntype: NodeType | None) -> DataOf:
        return DataOf(self._graph.node_frames[self._graph.types.node_type(ntype)])


class Edges:
    """``g.edges``."""

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph

    def __call__(self, form: str = "uv", order: str = "eid", etype: str | EdgeType | None = None) -> Any:
        """All edges of a type.

        Args:
            form: ``"uv"``: (sources, destinations); ``"eid"``: the ids of the edges; ``"all"``: all three. Each is
                ``[num_edges]`` of ``idtype``.
            order: ``"eid"``: by edge id; ``"srcdst"``: by source, then by destination.
            etype: which.
        """
        graph = self._graph
        if form not in ("uv", "eid", "all") or order not in ("eid", "srcdst"):
            raise InputError(f"Expected form 'uv', 'eid' or 'all', order 'eid' or 'srcdst', got {form!r}, {order!r}.")
        row, col = graph.tables.edge_list(graph.types.edge_type(etype))
        ids = torch.arange(len(row))
        if order == "srcdst":
            ids = torch.sort(col, stable=True).indices
            ids = ids[torch.sort(row[ids], stable=True).indices]
            row, col = row[ids], col[ids]
        ends = row.to(graph.idtype), col.to(graph.idtype)
        eid = ids.to(graph.idtype)
        return ends if form == "uv" else eid if form == "eid" else (*ends, eid)

    def __getitem__(self, etype: str | EdgeType | None) -> DataOf:
        return DataOf(self._graph.edge_frames[self._graph.types.edge_type(etype)])


class DataOf:
    """``g.nodes[ntype]`` and ``g.edges[etype]``."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @property
    def data(self) -> MutableMapping[str, Any]:
        """Name -> tensor ``[num_nodes or num_edges, ...]``."""
        return self._frame

    @data.setter
    def data(self, value: Mapping[str, object]) -> None:
        items = dict(value)
        self._frame.clear()
        self._frame.update(items)
