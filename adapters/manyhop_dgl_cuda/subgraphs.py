"""Subgraphs and blocks on torch tensors: nodes and edges have the order of DGL's C++ on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl_cuda.adjacency import Adjacency, HeteroAdjacency, positions

HeteroT = TypeVar("HeteroT", bound=HeteroAdjacency)


@dataclass(frozen=True, slots=True)
class Induced(Generic[HeteroT]):
    """Part of a graph: ``dgl.heterograph_index.HeteroSubgraphIndex``."""

    graph: HeteroT
    induced_nodes: list[Tensor]
    """By node type: ids in the whole graph."""
    induced_edges: list[Tensor]
    """By edge type."""


def node_subgraph(gidx: HeteroT, nodes: Sequence[Tensor]) -> Induced[HeteroT]:
    """Return the edges between some nodes, by node type; they are in the order of their sources."""
    places = [_places(ids, num_nodes) for ids, num_nodes in zip(nodes, gidx.num_nodes_by_type, strict=True)]
    relations, edges = [], []
    for (src, dst), whole in zip(gidx.ends, gidx.relations, strict=True):
        at_src, to, ids = whole.csr.of(nodes[src])
        at_dst = places[dst][to.long()]
        inside = at_dst >= 0
        relations.append(Adjacency.from_coo(nodes[src].numel(), nodes[dst].numel(), at_src[inside], at_dst[inside]))
        edges.append(ids[inside])
    return Induced(gidx.with_relations(relations, [ids.numel() for ids in nodes]), list(nodes), edges)


def edge_subgraph(gidx: HeteroT, edges: Sequence[Tensor], preserve_nodes: bool) -> Induced[HeteroT]:
    """Return some edges, by edge type; all nodes, or the edges' nodes, numbered by first occurrence."""
    kept = [whole.select(ids) for whole, ids in zip(gidx.relations, edges, strict=True)]
    if preserve_nodes:
        like = gidx.relations[0].src
        nodes = [torch.arange(n, device=like.device, dtype=like.dtype) for n in gidx.num_nodes_by_type]
        return Induced(gidx.with_relations(kept), nodes, list(edges))
    incident: list[list[Tensor]] = [[] for _ in gidx.num_nodes_by_type]
    for (src, dst), part in zip(gidx.ends, kept, strict=True):
        incident[src].append(part.src)
        incident[dst].append(part.dst)
    nodes, places = _relabel(gidx, incident)
    relations = []
    for (src, dst), part in zip(gidx.ends, kept, strict=True):
        at_src, at_dst = places[src][part.src.long()], places[dst][part.dst.long()]
        relations.append(Adjacency.from_coo(nodes[src].numel(), nodes[dst].numel(), at_src, at_dst))
    return Induced(gidx.with_relations(relations, [ids.numel() for ids in nodes]), nodes, list(edges))


def to_block(
    gidx: HeteroT, dst_nodes: Sequence[Tensor], include_dst_in_src: bool, src_nodes: Sequence[Tensor]
) -> tuple[HeteroT, list[Tensor], list[Tensor]]:
    """Make a block of all edges: ``_CAPI_DGLToBlock``.

    Args:
        gidx: the graph; all its edges end at ``dst_nodes``.
        dst_nodes: by node type: destinations, in the order of the block.
        include_dst_in_src: destinations are the first sources.
        src_nodes: by node type: the sources; empty: the edges' sources, by first occurrence.

    Returns:
        The block, sources by node type, and edges by edge type.

    Raises:
        InputError: an edge whose end is not among the nodes given.
    """
    num_types = len(gidx.num_nodes_by_type)
    # As in DGL, there are no edges of types that end at no node given.
    kept = [
        whole if dst_nodes[dst].numel() else whole.select(dst_nodes[dst])
        for (_, dst), whole in zip(gidx.ends, gidx.relations, strict=True)
    ]
    if src_nodes:
        sources = list(src_nodes)
        src_places = [_places(ids, n) for ids, n in zip(sources, gidx.num_nodes_by_type, strict=True)]
    else:
        incident = [[ids] if include_dst_in_src else [] for ids in dst_nodes]
        for (src, _), part in zip(gidx.ends, kept, strict=True):
            incident[src].append(part.src)
        sources, src_places = _relabel(gidx, incident)
    dst_places = [_places(ids, n) for ids, n in zip(dst_nodes, gidx.num_nodes_by_type, strict=True)]
    relations = []
    for (src, dst), part in zip(gidx.ends, kept, strict=True):
        at_src, at_dst = src_places[src][part.src.long()], dst_places[dst][part.dst.long()]
        if bool((at_src < 0).any()) or bool((at_dst < 0).any()):
            raise InputError(
                "Expected dst_nodes and src_nodes to have all nodes with edges, got a graph with an edge between "
                "others. Take a subgraph first (dgl.in_subgraph), or leave them out."
            )
        relations.append(Adjacency.from_coo(sources[src].numel(), dst_nodes[dst].numel(), at_src, at_dst))
    num_nodes = [ids.numel() for ids in (*sources, *dst_nodes)]
    block = gidx.with_relations(relations, num_nodes, [(src, num_types + dst) for src, dst in gidx.ends])
    return block, sources, [positions(part.src) for part in kept]


def _places(ids: Tensor, num_nodes: int) -> Tensor:
    """Return ``[num_nodes]``: where each node is among ``ids``, -1 where it is not."""
    places = torch.full((num_nodes,), -1, device=ids.device, dtype=ids.dtype)
    return places.index_copy_(0, ids.long(), positions(ids))


def _relabel(gidx: HeteroAdjacency, incident: Sequence[Sequence[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """Number nodes by type, in order of first occurrence; return also the number of each node."""
    nodes, places = [], []
    like = gidx.relations[0].src
    for some, num_nodes in zip(incident, gidx.num_nodes_by_type, strict=True):
        ids = torch.cat([like[:0], *some])
        first = torch.full((num_nodes,), ids.numel(), device=ids.device)
        first.scatter_reduce_(0, ids.long(), positions(ids, torch.int64), "amin")
        own = ids[first[ids.long()] == positions(ids, torch.int64)]
        nodes.append(own)
        places.append(_places(own, num_nodes))
    return nodes, places
