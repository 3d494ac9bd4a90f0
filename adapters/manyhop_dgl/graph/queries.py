"""What can be asked about a graph: its types, how many nodes and edges there are, where edges lead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType, has_edges, in_degrees
from manyhop_dgl.edges.seed_edges import as_ids
from manyhop_dgl.graph.structure import Tables
from manyhop_dgl.graph.types import Types

_ALL = "__ALL__"


class Queries:
    """The part of a :class:`manyhop_dgl.Graph` that looks at its edges only."""

    tables: Tables
    types: Types

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
        """The canonical edge type of a relation."""
        return self.types.edge_type(etype)

    def get_ntype_id(self, ntype: NodeType | None) -> int:
        """The place of a node type among ``ntypes``."""
        return self.types.ntypes.index(self.types.node_type(ntype))

    def get_etype_id(self, etype: str | EdgeType | None) -> int:
        """The place of an edge type among ``canonical_etypes``."""
        return self.types.canonical_etypes.index(self.types.edge_type(etype))

    @property
    def idtype(self) -> torch.dtype:
        """Dtype of ids in blocks."""
        return self.tables.idtype

    @property
    def device(self) -> torch.device:
        """The CPU: edges and data are in host memory, wherever batches go."""
        return torch.device("cpu")

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and one edge type."""
        return len(self.types.ntypes) == 1 and len(self.types.canonical_etypes) == 1

    is_block = False

    def num_nodes(self, ntype: NodeType | None = None) -> int:
        """Nodes of a type; of all types together by default."""
        counts = self.tables.graph.num_nodes
        return sum(counts.values()) if ntype is None else counts[self.types.node_type(ntype)]

    def num_edges(self, etype: str | EdgeType | None = None) -> int:
        """Edges of a type; of all types together by default."""
        graph = self.tables.graph
        edge_types = graph.edge_types if etype is None else (self.types.edge_type(etype),)
        return sum(map(graph.num_edges, edge_types))

    number_of_nodes = num_src_nodes = num_dst_nodes = num_nodes
    number_of_edges = num_edges

    def find_edges(self, eid: object, etype: str | EdgeType | None = None) -> tuple[Tensor, Tensor]:
        """Sources and destinations of edges, both ``[n]`` of ``idtype``."""
        edge_type = self.types.edge_type(etype)
        ids, _ = as_ids(eid, self.tables.graph.num_edges(edge_type), f"edges of {edge_type}")
        row, col = self.tables.edge_list(edge_type)
        return row[ids].to(self.idtype), col[ids].to(self.idtype)

    def in_degrees(self, v: object = _ALL, etype: str | EdgeType | None = None) -> Any:
        """``[n]`` of ``idtype``: edges of a type into nodes (all of them by default); an integer for a single node."""
        edge_type = self.types.edge_type(etype)
        graph = self.tables.graph
        if isinstance(v, str) and v == _ALL:
            return in_degrees(graph, edge_type).to(self.idtype)
        ids, single = as_ids(v, graph.num_nodes[edge_type[2]], f"nodes of type {edge_type[2]!r}")
        degrees = in_degrees(graph, edge_type, ids)
        return int(degrees) if single else degrees.to(self.idtype)

    def out_degrees(self, u: object = _ALL, etype: str | EdgeType | None = None) -> Any:
        """``[n]`` of ``idtype``: edges of a type out of nodes (all by default); an integer for a single node."""
        edge_type = self.types.edge_type(etype)
        degrees = self.tables.degrees_out(edge_type)
        if isinstance(u, str) and u == _ALL:
            return degrees.to(self.idtype)
        ids, single = as_ids(u, self.tables.graph.num_nodes[edge_type[0]], f"nodes of type {edge_type[0]!r}")
        return int(degrees[ids]) if single else degrees[ids].to(self.idtype)

    def has_edges_between(self, u: object, v: object, etype: str | EdgeType | None = None) -> Any:
        """``[n] bool``: whether there is an edge from ``u[i]`` to ``v[i]``; one truth value for single nodes.

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
        """Which sparse formats there are; given some, the graph itself: its tables are CSC, and made as needed.

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
        """Nothing: the tables that samplers read are there."""
