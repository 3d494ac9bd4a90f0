"""Edges of a ``manyhop_dgl.Graph``: compressed tables, and what is made of them when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.graph import EdgeType, Graph, endpoints, out_degrees, reverse_edges
from manyhop_dgl.graph.topology import EdgeDir, built_once
from manyhop_dgl.typing import TypeNames


class Tables:
    """The edges of a graph. ``structure_of`` reads topologies from it."""

    def __init__(self, graph: Graph, idtype: torch.dtype) -> None:
        self.graph, self.idtype = graph, idtype
        self._lock = threading.Lock()
        self._lists: dict[EdgeType, tuple[Tensor, Tensor]] = {}
        self._degrees: dict[EdgeType, Tensor] = {}

    def edge_list(self, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
        """Source and destination by edge id, both ``[num_edges] int32 or int64``; made once."""
        with self._lock:
            if edge_type not in self._lists:
                self._lists[edge_type] = endpoints(self.graph, edge_type)
            return self._lists[edge_type]

    def degrees_out(self, edge_type: EdgeType) -> Tensor:
        """``[num_src] int64``; made once."""
        with self._lock:
            if edge_type not in self._degrees:
                self._degrees[edge_type] = out_degrees(self.graph, edge_type)
            return self._degrees[edge_type]

    def with_idtype(self, idtype: torch.dtype) -> Tables:
        """The same tables, ids as another dtype."""
        return Tables(self.graph, idtype)

    def __reduce__(self) -> tuple[type[Tables], tuple[Graph, torch.dtype]]:
        return Tables, (self.graph, self.idtype)


@dataclass(frozen=True)
class OwnStructure:
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
