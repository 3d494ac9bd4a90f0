"""Build graphs on torch tensors from the arguments of DGL's functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dgl import DGLError, graph_index
from dgl.backend import from_dgl_nd, to_dgl_nd
from dgl.backend import to_backend_ctx as from_ctx
from dgl.heterograph_index import HeteroGraphIndex
from dgl.ndarray import DGLContext, NDArray
from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl_cuda import subgraphs
from manyhop_dgl_cuda.adjacency import Adjacency
from manyhop_dgl_cuda.index import TorchGraphIndex


def from_coo(
    num_ntypes: int,
    num_src: int,
    num_dst: int,
    row: Tensor,
    col: Tensor,
    formats: str | Sequence[str],
    row_sorted: bool = False,
    col_sorted: bool = False,
) -> TorchGraphIndex:
    """Build a graph of one edge type: ``dgl.heterograph_index.create_unitgraph_from_coo``.

    ``row_sorted`` and ``col_sorted`` spare DGL's C++ a sort by source; here only a backward pass sorts by source.
    """
    return _unit_graph(num_ntypes, Adjacency.from_coo(int(num_src), int(num_dst), row, col), formats)


def from_csr(
    num_ntypes: int,
    num_src: int,
    num_dst: int,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor,
    formats: str | Sequence[str],
    transpose: bool = False,
) -> TorchGraphIndex:
    """Build a graph of one edge type: ``create_unitgraph_from_csr``; ``transpose``: of CSC. No ids: 0, 1, 2, ..."""
    num_segments = int(num_dst if transpose else num_src)
    if indptr.numel() != num_segments + 1:
        raise DGLError(
            f"Expected indptr to have an element per node and one more, {num_segments + 1}, got {indptr.numel()}. "
            "Pass a num_nodes that fits indptr."
        )
    ids = edge_ids if edge_ids.numel() else None
    if transpose:
        relation = Adjacency.from_csc(int(num_src), int(num_dst), indptr, indices, ids)
    else:
        relation = Adjacency.from_csc(int(num_dst), int(num_src), indptr, indices, ids).reverse
    return _unit_graph(num_ntypes, relation, formats)


def from_relations(
    metagraph: graph_index.GraphIndex, rel_graphs: Sequence[TorchGraphIndex], num_nodes_per_type: NDArray | None
) -> TorchGraphIndex:
    """Build a graph from graphs of one edge type: ``create_heterograph_from_relations``."""
    _check_devices(rel_graphs)
    ends = [metagraph.find_edge(i) for i in range(len(rel_graphs))]
    relations = [graph.only_relation() for graph in rel_graphs]
    if num_nodes_per_type is None:
        known = {}
        for (src, dst), relation in zip(ends, relations, strict=True):
            known.update({src: relation.num_src, dst: relation.num_dst})
        num_nodes = [known.get(t, 0) for t in range(metagraph.num_nodes())]
    else:
        num_nodes = num_nodes_per_type.tonumpy().tolist()
    return TorchGraphIndex(ends, relations, num_nodes, rel_graphs[0].allowed, metagraph)


def from_dgl(gidx: HeteroGraphIndex) -> TorchGraphIndex:
    """Build a graph from an index of DGL, with its available formats: of a block, CSC without a sort."""
    created = set(gidx.formats()["created"])
    ends = [gidx.metagraph.find_edge(i) for i in range(gidx.number_of_etypes())]
    relations = []
    for etype, (src, dst) in enumerate(ends):
        num = gidx.num_nodes(src), gidx.num_nodes(dst)
        if "coo" not in created and "csc" in created:
            _, _, indptr, indices, ids = gidx.adjacency_matrix_tensors(etype, True, "csr")
            relations.append(Adjacency.from_csc(*num, indptr, indices, ids if ids.numel() else None))
        else:
            rows, cols, _ = gidx.edges(etype, "eid")
            relations.append(Adjacency.from_coo(*num, rows, cols))
    num_nodes = [gidx.num_nodes(t) for t in range(gidx.number_of_ntypes())]
    allowed = [name for names in gidx.formats().values() for name in names]
    return TorchGraphIndex(ends, relations, num_nodes, allowed, gidx.metagraph)


def copy_to(gidx: HeteroGraphIndex, ctx: DGLContext) -> TorchGraphIndex:
    """Move an index of DGL to a device: ``HeteroGraphIndex.copy_to``."""
    return from_dgl(gidx).to(from_ctx(ctx))


def disjoint_union(metagraph: graph_index.GraphIndex, graphs: Sequence[TorchGraphIndex]) -> TorchGraphIndex:
    """Join graphs of the same types: ``dgl.heterograph_index.disjoint_union``, of ``dgl.batch``."""
    _check_devices(graphs)
    first = graphs[0]
    before = [[0] * len(first.num_nodes_by_type)]  # per graph and node type: nodes of the graphs before
    for graph in graphs:
        before.append([a + b for a, b in zip(before[-1], graph.num_nodes_by_type, strict=True)])
    num_nodes = before[-1]
    relations = []
    for etype, (src, dst) in enumerate(first.ends):
        parts = [graph.relations[etype] for graph in graphs]
        rows = torch.cat([part.src + begin[src] for part, begin in zip(parts, before, strict=False)])
        cols = torch.cat([part.dst + begin[dst] for part, begin in zip(parts, before, strict=False)])
        relations.append(Adjacency.from_coo(num_nodes[src], num_nodes[dst], rows, cols))
    return TorchGraphIndex(first.ends, relations, num_nodes, first.allowed, metagraph)


def to_block(
    gidx: TorchGraphIndex, dst_nodes: Sequence[NDArray], include_dst_in_src: bool, src_nodes: Sequence[NDArray]
) -> tuple[TorchGraphIndex, list[NDArray], list[NDArray]]:
    """Make a block: ``_CAPI_DGLToBlock``, with DGL's arrays."""
    given = [from_dgl_nd(t) for t in dst_nodes], include_dst_in_src, [from_dgl_nd(t) for t in src_nodes]
    block, sources, edges = subgraphs.to_block(gidx, *given)
    return block, [to_dgl_nd(t) for t in sources], [to_dgl_nd(t) for t in edges]


def in_subgraph(
    gidx: TorchGraphIndex, nodes: Sequence[NDArray], relabel_nodes: bool
) -> subgraphs.Induced[TorchGraphIndex]:
    """Return the in-edges of nodes, by node type: ``_CAPI_DGLInSubgraph``."""
    ids = [from_dgl_nd(t) for t in nodes]
    edges = [gidx.in_edges(i, ids[dst])[2] for i, (_, dst) in enumerate(gidx.ends)]
    return gidx.edge_subgraph(edges, not relabel_nodes)


def out_subgraph(
    gidx: TorchGraphIndex, nodes: Sequence[NDArray], relabel_nodes: bool
) -> subgraphs.Induced[TorchGraphIndex]:
    """Return the out-edges of nodes, by node type: ``_CAPI_DGLOutSubgraph``."""
    ids = [from_dgl_nd(t) for t in nodes]
    edges = [gidx.out_edges(i, ids[src])[2] for i, (src, _) in enumerate(gidx.ends)]
    return gidx.edge_subgraph(edges, not relabel_nodes)


def pinned_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return rows of pinned memory on the device of their ids: ``dgl.utils.gather_pinned_tensor_rows``."""
    return tensor.index_select(0, rows.to(tensor.device)).to(rows.device)


def _check_devices(graphs: Sequence[TorchGraphIndex]) -> None:
    where = {str(from_ctx(graph.ctx)) for graph in graphs}
    if len(where) > 1:
        raise InputError(f"Expected graphs on one device, got some on {' and '.join(sorted(where))}. Move them to one.")


def _unit_graph(num_ntypes: int, relation: Adjacency, formats: str | Sequence[str]) -> TorchGraphIndex:
    allowed = [formats] if isinstance(formats, str) else formats
    if num_ntypes == 1:
        return TorchGraphIndex([(0, 0)], [relation], [relation.num_src], allowed)
    return TorchGraphIndex([(0, 1)], [relation], [relation.num_src, relation.num_dst], allowed)
