"""Blocks of tensors -> DGL's blocks, without its checks and without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import dgl
import torch
from dgl import graph_index, heterograph_index
from dgl.backend import to_dgl_nd
from dgl.frame import Frame
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop_dgl.graph.dgl_frames import frames_of_ids, make_column
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.samplers.plan import as_device
from manyhop_dgl.samplers.tensors import BlockTensors
from manyhop_dgl.torch_graphs.adjacency import Adjacency
from manyhop_dgl.torch_graphs.index import TorchGraphIndex
from manyhop_dgl.torch_graphs.where import on_torch
from manyhop_dgl.typing import GraphLike

GraphT = TypeVar("GraphT", bound=dgl.DGLGraph)
_FORMATS = ["coo", "csr", "csc"]
_WEIGHTS = "edge_weights"  # DGL's name
_MOST_SHARED = 1 << 22
_shared: dict[torch.dtype, Tensor] = {}


def to_blocks(
    tensors: BlockTensors,
    graph: GraphLike | None = None,
    *,
    frames: tuple[Sequence[Frame], Sequence[Frame]] | None = None,
) -> list[DGLBlock]:
    """Return DGL's blocks over the memory of ``tensors``, the input layer first.

    Args:
        tensors: what :func:`manyhop_dgl.sample_tensors` gives, in CPU memory or on a GPU.
        graph: the graph that was sampled: blocks then have its features, gathered where they are first read, as those
            of DGL's samplers. ``None``: they have ``dgl.NID`` and ``dgl.EID``.
        frames: those of the graph, by :func:`lazy_frames`, where they are known.
    """
    if frames is None and graph is not None:
        frames = lazy_frames(graph)
    of_nodes, of_edges = (None, None) if frames is None else frames
    first = tensors.blocks[0]
    kind = block_kind(tuple(tensors.node), tuple(first.columns))
    relation = relation_maker(next(iter(tensors.node.values())).device)
    blocks = []
    sources = _first(tensors.node, first.num_src)
    for block in tensors.blocks:
        targets = _first(tensors.node, block.num_dst)
        nodes = frames_of_ids(dgl.NID, sources, of_nodes) + frames_of_ids(dgl.NID, targets, of_nodes)
        edges = frames_of_ids(dgl.EID, list(block.ids.values()), of_edges)
        if weights := block.weights:
            for edge_type, frame in zip(block.columns, edges, strict=True):
                if edge_type in weights:
                    frame._columns[_WEIGHTS] = make_column(weights[edge_type])
        relations = [
            relation(block.num_src[edge_type[0]], block.num_dst[edge_type[2]], indptr, block.sources[edge_type])
            for edge_type, indptr in block.columns.items()
        ]
        blocks.append(kind.block(relations, [*block.num_src.values(), *block.num_dst.values()], nodes, edges))
        sources = targets  # of the next block
    return blocks


class _Kind:
    """Blocks of the same types, which differ in their edges and data only: what the first one finds out about its types
    serves the others."""

    def __init__(self, node_types: tuple[NodeType, ...], edge_types: tuple[EdgeType, ...]) -> None:
        at = {t: i for i, t in enumerate(node_types)}
        src, dst = [at[s] for s, _, _ in edge_types], [len(at) + at[d] for _, _, d in edge_types]
        self._ends = list(zip(src, dst, strict=True))
        self._metagraph = graph_index.from_coo(2 * len(at), src, dst, True)
        self._names = list(node_types), [relation for _, relation, _ in edge_types]
        self._attributes: dict[str, Any] | None = None

    def block(self, relations: list[Any], num_nodes: list[int], nodes: list[Frame], edges: list[Frame]) -> DGLBlock:
        """One block.

        Args:
            relations: the edges of each type, of :func:`relation_maker`.
            num_nodes: numbers of source nodes, then of destination nodes, by type.
            nodes: frames in that order.
            edges: frames of the edge types.
        """
        if isinstance(relations[0], Adjacency):
            index = TorchGraphIndex(self._ends, relations, num_nodes, metagraph=self._metagraph)
        else:
            counts = to_dgl_nd(torch.tensor(num_nodes))
            index = heterograph_index._CAPI_DGLHeteroCreateHeteroGraphWithNumNodes(self._metagraph, relations, counts)
        if self._attributes is None:
            first = DGLBlock(index, (self._names[0], self._names[0]), self._names[1], nodes, edges)
            own = ("_graph", "_node_frames", "_edge_frames")
            self._attributes = {name: value for name, value in vars(first).items() if name not in own}
            return first
        block = object.__new__(DGLBlock)
        vars(block).update(self._attributes, _graph=index, _node_frames=nodes, _edge_frames=edges)
        return block


block_kind = lru_cache(maxsize=256)(_Kind)


def relation_maker(device: torch.device) -> Callable[[int, int, Tensor, Tensor], Any]:
    """Return what makes the edges of one type, sorted by destination: DGL's index, or torch tensors where DGL's C++
    cannot hold them.

    It takes the numbers of source and destination nodes, ``indptr [num_dst + 1]``, where the edges of each destination
    begin, and ``[num_edges]`` sources.
    """
    return Adjacency.from_csc if on_torch(device) else _index_of_dgl


def _index_of_dgl(num_src: int, num_dst: int, indptr: Tensor, sources: Tensor) -> Any:
    ids = counting(sources.numel(), sources.dtype, sources.device)
    return heterograph_index._CAPI_DGLHeteroCreateUnitGraphFromCSR(
        2, num_src, num_dst, to_dgl_nd(indptr), to_dgl_nd(sources), to_dgl_nd(ids), _FORMATS, True
    )


def lazy_frames(graph: GraphLike) -> tuple[Sequence[Frame], Sequence[Frame]]:
    """DGL's frames of a graph's node types and edge types, as they are now. Data on other nodes (machines) is not in
    them: loaders bring it."""
    if isinstance(graph, dgl.DGLGraph):
        return graph._node_frames, graph._edge_frames
    data = frames(graph)
    return [_lazy(data.nodes[t], graph.num_nodes(t)) for t in graph.ntypes], [
        _lazy(data.edges[t], graph.num_edges(t)) for t in graph.canonical_etypes
    ]


def _lazy(data: Mapping[str, object], num_rows: int) -> Frame:
    return Frame({name: value for name, value in data.items() if isinstance(value, Tensor)}, num_rows)


def _first(nodes: Mapping[NodeType, Tensor], counts: Mapping[NodeType, int]) -> list[Tensor]:
    """The first nodes of each type."""
    return [ids if ids.shape[0] == counts[t] else ids[: counts[t]] for t, ids in nodes.items()]


def counting(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[n]``: 0, 1, 2, ..., the place of each edge. DGL only reads it, so blocks share one.

    DGL has a notation without them, but not all of its kernels know it.
    """
    if device.type != "cpu" or n > _MOST_SHARED:
        return torch.arange(n, dtype=dtype, device=device)
    shared = _shared.get(dtype)
    if shared is None or shared.numel() < n:
        shared = _shared[dtype] = torch.arange(min(2 * n, _MOST_SHARED), dtype=dtype)
    return shared[:n]


def move(graphs: Iterable[GraphT], device: torch.device) -> list[GraphT]:
    """Graphs or blocks on a device.

    Raises:
        InputError: a GPU that is not there.
    """
    there = as_device(device)
    return [graph if graph.device == there else graph.to(there) for graph in graphs]
