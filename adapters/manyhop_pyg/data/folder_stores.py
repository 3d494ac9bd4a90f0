"""Graphs on disk as a pair of stores, with features that are spread over nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from manyhop.errors import InputError
from manyhop.files import Rows, StoredGraph
from manyhop.files.stored_graph import tensor_of
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.data.graph_store import GraphStore


def check_can_be_stores(graph: StoredGraph) -> None:
    """Raise InputError if the graph has something that stores would give in another shape."""
    for stored in graph.edges.values():
        for name in stored.transposed:
            if len(stored.tensors[name].shape) > 1:
                raise InputError(
                    f"{graph.path}: expected tensors of edges with the edges as their first dimension, got '{name}', "
                    "which has them as its last: stores cannot express that. Transpose it and save again, or open with "
                    "placement='mapped' or 'shared'."
                )


def build_stores(
    graph: StoredGraph,
    tensors: Mapping[int, Tensor],
    sharded: Collection[int],
    features: FeatureStore,
    edges: GraphStore,
) -> tuple[FeatureStore, GraphStore]:
    """Put all nodes and edges of ``graph`` into stores. All ranks call it.

    Args:
        graph: what is in the folder.
        tensors: ``id`` of rows -> the tensor, of all that are not sharded.
        sharded: ``id`` of rows -> of those that are.
        features: holds tensors that are sharded in its own place.
        edges: holds the edges.
    """

    def put(group: str | tuple[str, str, str] | None, named: Mapping[str, Rows]) -> None:
        for name, rows in named.items():
            held = rows if id(rows) in sharded else tensors[id(rows)]
            features.hold(held, group_name=group, attr_name=name)

    for node_type, nodes in graph.nodes.items():
        put(None if graph.is_homogeneous else node_type, nodes.tensors)
    for edge_type, stored in graph.edges.items():
        group = None if graph.is_homogeneous else edge_type
        put(group, stored.tensors)
        size = graph.nodes[edge_type[0]].count, graph.nodes[edge_type[2]].count
        if stored.row is not None and stored.colptr is not None:
            # Loaders over stores take the dtype of ids from that of the pointers; those over Data have int64.
            row, colptr = tensors[id(stored.row)], tensors[id(stored.colptr)].long()
            edges.put_edge_index((row, colptr), edge_type=group, layout="csc", size=size)
        else:
            assert stored.edge_index is not None
            edges.put_edge_index(tuple(tensor_of(stored.edge_index)), edge_type=group, layout="coo", size=size)
    return features, edges
