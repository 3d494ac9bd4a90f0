"""Small graphs for tests of GraphBolt's stages, and what their neighbourhoods are, found by looking at every edge."""

import itertools

import torch

import manyhop_dgl.graphbolt as gb
from manyhop.features import gather
from manyhop_graphbolt.features.feature import read_by
from manyhop_graphbolt.types import ORIGINAL_EDGE_ID

NTYPES = {"user": 0, "item": 1}
ETYPES = {"user:follows:user": 0, "user:likes:item": 1, "item:liked:user": 2}


def random_graph(num_nodes=60, num_edges=400, seed=0, ids=True, **attributes):
    """A homogeneous graph whose edges have ids of their own; its edge list is in ``.edges [2, num_edges]``, by id."""
    generator = torch.Generator().manual_seed(seed)
    dst = torch.randint(num_nodes, (num_edges,), generator=generator)
    src = torch.randint(num_nodes, (num_edges,), generator=generator)
    order = dst.sort(stable=True).indices
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), dst.bincount(minlength=num_nodes).cumsum(0)])
    edge_attributes = {name: value[order] for name, value in attributes.items()}
    if ids:
        edge_attributes[ORIGINAL_EDGE_ID] = order
    graph = gb.fused_csc_sampling_graph(indptr, src[order], edge_attributes=edge_attributes)
    graph.edges = torch.stack([src, dst])
    return graph


def random_hetero_graph(num_users=30, num_items=20, num_edges=120, seed=0):
    """A graph of two node types and three edge types; ``.edges`` has its edge lists by type, by id."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"user": num_users, "item": num_items}
    begin = {"user": 0, "item": num_users}
    edges, parts = {}, []
    for name, number in ETYPES.items():
        src_type, _, dst_type = name.split(":")
        src = torch.randint(sizes[src_type], (num_edges,), generator=generator)
        dst = torch.randint(sizes[dst_type], (num_edges,), generator=generator)
        edges[name] = torch.stack([src, dst])
        kind = torch.full_like(src, number)
        parts.append(torch.stack([src + begin[src_type], dst + begin[dst_type], kind, torch.arange(num_edges)]))
    src, dst, kind, ids = torch.cat(parts, dim=1)
    order = torch.argsort(dst * len(ETYPES) + kind, stable=True)
    counts = dst.bincount(minlength=num_users + num_items)
    graph = gb.fused_csc_sampling_graph(
        torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        src[order],
        node_type_offset=torch.tensor([0, num_users, num_users + num_items]),
        type_per_edge=kind[order],
        node_type_to_id=NTYPES,
        edge_type_to_id=ETYPES,
        edge_attributes={ORIGINAL_EDGE_ID: ids[order]},
    )
    graph.edges = edges
    return graph


def in_edges(edges, nodes):
    """The edges ``(src, dst, id)`` of an edge list that lead to some nodes."""
    wanted = set(nodes.tolist())
    return sorted((s, d, i) for i, (s, d) in enumerate(edges.T.tolist()) if d in wanted)


def edges_of(layer, name=None):
    """The edges ``(src, dst, id)`` of a layer, as nodes of the graph; of one type."""
    csc, rows, columns, ids = (
        layer.sampled_csc,
        layer.original_row_node_ids,
        layer.original_column_node_ids,
        layer.original_edge_ids,
    )
    if name is not None:
        src, _, dst = name.split(":")
        csc, rows, columns, ids = csc[name], rows[src], columns[dst], ids[name]
    col = torch.repeat_interleave(torch.arange(columns.numel()), csc.indptr.diff())
    return sorted(zip(rows[csc.indices].tolist(), columns[col].tolist(), ids.tolist(), strict=True))


def check_layers(minibatch, seeds):
    """What holds for the layers of any minibatch of a homogeneous graph."""
    layers = minibatch.sampled_subgraphs
    assert torch.equal(layers[-1].original_column_node_ids, seeds)
    for layer in layers:
        rows, columns = layer.original_row_node_ids, layer.original_column_node_ids
        assert torch.equal(rows[: columns.numel()], columns)
        assert layer.sampled_csc.indptr.numel() == columns.numel() + 1
        assert int(layer.sampled_csc.indptr[-1]) == layer.sampled_csc.indices.numel()
    for outer, inner in itertools.pairwise(layers):
        assert torch.equal(outer.original_column_node_ids, inner.original_row_node_ids)
    assert torch.equal(minibatch.input_nodes, layers[0].original_row_node_ids)


def batches(names, items, batch_size=8, **kwargs):
    """An item sampler over tensors with these names."""
    return gb.ItemSampler(gb.ItemSet(items, names=names), batch_size=batch_size, **kwargs)


def read_many(store, requests):
    """Rows of several features, each (domain, type, name, ids), by one gather."""
    return read_by(store, requests, gather)


NODE_TYPES = {"a": 0, "b": 1}
EDGE_TYPES = {"a:x:a": 0, "a:y:b": 1, "b:z:a": 2}


def small(ids=True, **attributes):
    """Nodes 0-2 of type a, 3-4 of type b. Edge types are mixed inside of columns; ids of edges are their positions."""
    attributes = {ORIGINAL_EDGE_ID: torch.arange(8)} | attributes if ids else attributes
    return gb.fused_csc_sampling_graph(
        torch.tensor([0, 3, 5, 6, 8, 8]),
        torch.tensor([3, 1, 4, 0, 4, 2, 0, 1]),
        node_type_offset=torch.tensor([0, 3, 5]),
        type_per_edge=torch.tensor([2, 0, 2, 0, 2, 0, 1, 1], dtype=torch.uint8),
        node_type_to_id=NODE_TYPES,
        edge_type_to_id=EDGE_TYPES,
        edge_attributes=attributes or None,
    )


def typed_edges_of(graph, edge_type):
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
