"""The part of a graph that holds data: frames of nodes and edges beside the tables of its edges."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Self

from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.graph import EdgeType, NodeType
from manyhop.memory.stores import TopologyPlace
from manyhop_dgl.graph.frames import Frame, TypedData
from manyhop_dgl.graph.home import Home
from manyhop_dgl.graph.queries import Queries
from manyhop_dgl.graph.structure import OwnStructure, Tables
from manyhop_dgl.graph.types import Types
from manyhop_embedding import Embedding


class GraphData(Queries):
    """The part of a :class:`manyhop_dgl.Graph` that holds its edges and data."""

    topology_place: TopologyPlace | None
    node_frames: dict[NodeType, Frame]
    edge_frames: dict[EdgeType, Frame]

    @classmethod
    def of_tables(cls, tables: Tables, home: Home | None = None) -> Self:
        """A graph over these tables, without data."""
        out = cls.__new__(cls)
        out.set_tables(tables, home)
        return out

    def set_tables(self, tables: Tables, home: Home | None) -> None:
        """Take over the edges of a new graph, whose frames are empty."""
        self.topology_place = None if home is None else home.topology
        self.tables, self.types = tables, Types(tables.graph.node_types, tables.graph.edge_types)
        self.node_frames = {t: Frame(n, self.types.title(t, "nodes"), home) for t, n in tables.graph.num_nodes.items()}
        self.edge_frames = {
            t: Frame(tables.graph.num_edges(t), self.types.title(t, "edges"), home) for t in tables.graph.edge_types
        }

    @property
    def structure(self) -> OwnStructure:
        """What topologies are read from."""
        return OwnStructure(self.tables, self.edge_frames)

    @property
    def ndata(self) -> MutableMapping[str, Any]:
        """Data of the nodes by name: tensors ``[num_nodes, ...]``; with several types, ``{type: tensor}``."""
        if len(self.node_frames) == 1:
            return next(iter(self.node_frames.values()))
        return TypedData(self.node_frames, self.types.node_type)

    @property
    def edata(self) -> MutableMapping[str, Any]:
        """Data of the edges by name: tensors ``[num_edges, ...]``; with several types, ``{canonical type: tensor}``."""
        if len(self.edge_frames) == 1:
            return next(iter(self.edge_frames.values()))
        return TypedData(self.edge_frames, self.types.edge_type)

    def put_rows(
        self, name: str, rows: Tensor, *, begin: int, ntype: NodeType | None = None, etype: str | EdgeType | None = None
    ) -> None:
        """Set data of which every rank has a part: ``rows`` from row ``begin`` on. All ranks call it.

        Args:
            name: of the data.
            rows: ``[count, ...]``; the parts of all ranks are all rows, each once. Where there are none: ``[0, ...]``.
            begin: number of the first row.
            ntype: whose data it is, of nodes. Without ``ntype`` and ``etype``: of the only node type.
            etype: whose data it is, of edges.

        Raises:
            FeatureError: the parts do not fit together, or the graph.
            InputError: the graph is in this process only; an unknown type.
            RankError: the ranks do not put the same, or are late.
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
        """Data that is set, replaced or removed inside is as before afterwards."""
        before = self.node_frames, self.edge_frames
        self.node_frames = {t: frame.copy() for t, frame in before[0].items()}
        self.edge_frames = {t: frame.copy() for t, frame in before[1].items()}
        try:
            yield
        finally:
            self.node_frames, self.edge_frames = before

    def tensors(self) -> Iterator[Tensor]:
        """The data of all nodes and edges, as far as they are held here; without embeddings."""
        for frame in (*self.node_frames.values(), *self.edge_frames.values()):
            for value in frame.values():
                if not isinstance(value, Embedding):
                    yield value.rows if isinstance(value, ShardedRows | DistributedRows) else value
