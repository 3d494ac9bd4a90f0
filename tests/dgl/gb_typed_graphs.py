"""Small graphs in GraphBolt's form, and their edges."""

import torch

import manyhop_dgl.graphbolt as gb

NODE_TYPES = {"a": 0, "b": 1}
EDGE_TYPES = {"a:x:a": 0, "a:y:b": 1, "b:z:a": 2}


def small(**attributes):
    """Nodes 0-2 of type a, 3-4 of type b. Edge types are mixed inside of columns."""
    return gb.fused_csc_sampling_graph(
        torch.tensor([0, 3, 5, 6, 8, 8]),
        torch.tensor([3, 1, 4, 0, 4, 2, 0, 1]),
        node_type_offset=torch.tensor([0, 3, 5]),
        type_per_edge=torch.tensor([2, 0, 2, 0, 2, 0, 1, 1], dtype=torch.uint8),
        node_type_to_id=NODE_TYPES,
        edge_type_to_id=EDGE_TYPES,
        edge_attributes=attributes or None,
    )


def edges_of(graph, edge_type):
    """(source, destination, position) of each edge of a type, in ids of their types; found edge by edge."""
    src, _, dst = edge_type.split(":")
    begin = dict(zip(NODE_TYPES, graph.node_type_offset.tolist(), strict=False))
    column = torch.repeat_interleave(graph.csc_indptr.diff().long())
    return sorted(
        (int(u) - begin[src], int(v) - begin[dst], i)
        for i, (u, v, k) in enumerate(zip(graph.indices, column, graph.type_per_edge, strict=True))
        if int(k) == EDGE_TYPES[edge_type]
    )


def table(topology, edge_type):
    """The same, of the engine's table."""
    csc = topology.graph.csc[tuple(edge_type.split(":"))]
    column = torch.repeat_interleave(csc.colptr.diff())
    return sorted(zip(csc.row.tolist(), column.tolist(), csc.perm.tolist(), strict=True))


def picked(sub, edge_type=None):
    """(source, column) of each sampled edge."""
    csc = sub.sampled_csc if edge_type is None else sub.sampled_csc[edge_type]
    column = torch.repeat_interleave(csc.indptr.diff().long())
    return list(zip(csc.indices.tolist(), column.tolist(), strict=True))
