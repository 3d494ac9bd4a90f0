"""DGL's graphs of seed edges and of negatives, on the nodes that they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import dgl
import torch
from dgl import graph_index, heterograph_index
from dgl.backend import from_dgl_nd, to_dgl_nd
from dgl.frame import Frame
from dgl.transforms.functional import _CAPI_DGLCompactGraphs
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop_dgl.samplers.blocks import lazy_frames, move
from manyhop_dgl.samplers.plan import parse_device
from manyhop_dgl.typing import GraphLike, Pairs


def pair_graphs(
    g: GraphLike,
    edges: Mapping[EdgeType, Tensor],
    ends: Mapping[EdgeType, Pairs],
    negatives: Mapping[EdgeType, Pairs] | None,
    output_device: torch.device | str | None,
) -> tuple[list[dgl.DGLGraph], dict[NodeType, Tensor]]:
    """The graph of the seed edges, that of the negatives if there are any, and the nodes that both consist of.

    Nodes are numbered where they first occur: the sources, then the destinations of each edge type, seed edges before
    negatives. The first graph has the data of the graph's nodes and edges, gathered where it is first read.

    Args:
        g: the graph.
        edges: canonical edge type -> ``[num_edges]`` ids of the seed edges.
        ends: their sources and destinations.
        negatives: sources and destinations of the negatives.
        output_device: where the graphs shall be.

    Raises:
        InputError: a GPU that is not there.
    """
    node_types, edge_types = list(g.ntypes), list(g.canonical_etypes)
    num_nodes = [g.num_nodes(t) for t in node_types]
    given = [ends] if negatives is None else [ends, negatives]
    indices = [index_of_pairs(node_types, edge_types, num_nodes, pairs) for pairs in given]
    none = to_dgl_nd(torch.empty(0, dtype=g.idtype))
    compact, found = _CAPI_DGLCompactGraphs(indices, [none] * len(node_types))
    nodes = [from_dgl_nd(ids) for ids in found]
    relations = [relation for _, relation, _ in edge_types]
    node_frames, edge_frames = lazy_frames(g)
    empty = torch.empty(0, dtype=g.idtype)
    graphs = [
        dgl.DGLGraph(
            compact[0],
            node_types,
            relations,
            [_with_ids(frame.subframe(ids), dgl.NID, ids) for frame, ids in zip(node_frames, nodes, strict=True)],
            [
                _with_ids(frame.subframe(edges.get(t, empty)), dgl.EID, edges.get(t, empty))
                for frame, t in zip(edge_frames, edge_types, strict=True)
            ],
        )
    ]
    if negatives is not None:
        frames = [_with_ids(Frame(num_rows=ids.numel()), dgl.NID, ids) for ids in nodes]
        graphs.append(dgl.DGLGraph(compact[1], node_types, relations, frames))
    there = parse_device("output_device", output_device)
    if there.type != "cpu":
        graphs = move(graphs, there)
    return graphs, dict(zip(node_types, nodes, strict=True))


def _with_ids(frame: Frame, name: str, ids: Tensor) -> Frame:
    frame[name] = ids
    return frame


def index_of_pairs(
    node_types: list[NodeType],
    edge_types: list[EdgeType],
    num_nodes: list[int],
    pairs: Mapping[EdgeType, Pairs],
) -> heterograph_index.HeteroGraphIndex:
    """The index of a graph with these edges, without DGL's checks: DGL's own, or torch tensors where it has none.

    Args:
        node_types: of the graph.
        edge_types: of the graph, canonical.
        num_nodes: of each node type.
        pairs: canonical edge type -> sources and destinations ``[num_edges]``, on one device.
    """
    at = {t: i for i, t in enumerate(node_types)}
    none = next(iter(pairs.values()))[0][:0]
    relations = []
    for edge_type in edge_types:
        src, dst = pairs.get(edge_type, (none, none))
        ends = at[edge_type[0]], at[edge_type[2]]
        relations.append(
            heterograph_index.create_unitgraph_from_coo(
                1 if ends[0] == ends[1] else 2,
                num_nodes[ends[0]],
                num_nodes[ends[1]],
                src,
                dst,
                ["coo", "csr", "csc"],
            )
        )
    metagraph = _metagraph(tuple(node_types), tuple(edge_types))
    return heterograph_index.create_heterograph_from_relations(metagraph, relations, dgl.utils.toindex(num_nodes))


@lru_cache(maxsize=256)
def _metagraph(node_types: tuple[NodeType, ...], edge_types: tuple[EdgeType, ...]) -> graph_index.GraphIndex:
    """DGL's graph of types."""
    at = {t: i for i, t in enumerate(node_types)}
    src, dst = [at[s] for s, _, _ in edge_types], [at[d] for _, _, d in edge_types]
    return graph_index.from_coo(len(at), src, dst, True)
