"""A ``manyhop_dgl.Graph`` as a ``DGLGraph``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhop.errors import MissingExtraError
from manyhop_dgl.graph.data import GraphData
from manyhop_dgl.graph.frames import whole

if TYPE_CHECKING:
    from dgl import DGLGraph


def to_dgl(graph: GraphData) -> DGLGraph:
    """A ``DGLGraph`` with the same edges, ids and data.

    Raises:
        FeatureError: data that is spread over nodes or GPUs, or trainable.
        MissingExtraError: DGL is not installed.
    """
    try:
        import dgl
    except ModuleNotFoundError as error:
        if error.name != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", "manyhop_dgl.Graph.to_dgl") from None
    tables, idtype = graph.tables.graph, graph.idtype
    edges = {}
    for edge_type, csc in tables.csc.items():
        perm = torch.empty(0, dtype=idtype) if csc.perm is None else csc.perm.to(idtype)
        edges[edge_type] = "csc", (csc.colptr.to(idtype), csc.row.to(idtype), perm)
    g = dgl.heterograph(edges, num_nodes_dict=dict(tables.num_nodes), idtype=idtype)
    for node_type, nodes in graph.node_frames.items():
        for name, value in nodes.items():
            g.nodes[node_type].data[name] = whole(name, value)
    for edge_type, columns in graph.edge_frames.items():
        for name, value in columns.items():
            g.edges[edge_type].data[name] = whole(name, value)
    return g
