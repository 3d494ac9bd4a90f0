"""``g.nodes`` and ``g.edges``: called, they give ids; indexed by a type, its data."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop_dgl.graph.data import GraphData
from manyhop_dgl.graph.frames import Frame


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
