"""Blocks of tensors -> DGL's blocks, without its checks and without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import dgl
import torch
from dgl import graph_index, heterograph_index
from dgl.backend import to_dgl_nd
from dgl.frame import Column, Frame, Scheme
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop_dgl.graph.frames import Frame as FrameOfGraph
from manyhop_dgl.samplers.plan import as_device
from manyhop_dgl.samplers.tensors import BlockTensors
from manyhop_dgl.typing import GraphLike

_COLUMN: dict[str, Any] = vars(Column(torch.empty(0), Scheme((), torch.float32)))
_FRAME: dict[str, Any] = vars(Frame(num_rows=0))
_IDS = {dtype: Scheme((), dtype) for dtype in (torch.int32, torch.int64)}


def make_frame(num_rows: int, columns: dict[str, Column]) -> Frame:
    """Return a frame of ``num_rows`` rows with these columns."""
    frame = object.__new__(Frame)
    frame.__dict__ = {**_FRAME, "_columns": columns, "_num_rows": num_rows, "_initializers": {}}
    return frame


def make_column(values: Tensor) -> Column:
    """Return a column of values ``[num_rows, ...]``."""
    column = object.__new__(Column)
    scheme = tuple.__new__(Scheme, (tuple(values.shape[1:]), values.dtype))
    column.__dict__ = {**_COLUMN, "storage": values, "scheme": scheme}
    return column


def same_columns(frame: Frame) -> Frame:
    """Copy a frame, not its columns."""
    copy = object.__new__(Frame)
    copy.__dict__ = {**frame.__dict__, "_columns": frame._columns.copy()}
    return copy


def frames_of_ids(name: str, ids: Sequence[Tensor], of_graph: Sequence[Frame] | None = None) -> list[Frame]:
    """Make a frame for each tensor of ids ``[num_rows]``, which holds them under this name.

    With the frames of a graph, each also has these rows of one of them, gathered when they are read, and then on the
    device of the ids.
    """
    frames = []
    for i, some in enumerate(ids):
        column, frame = object.__new__(Column), object.__new__(Frame)
        column.__dict__ = {**_COLUMN, "storage": some, "scheme": _IDS[some.dtype]}
        frame.__dict__ = {**_FRAME, "_columns": {name: column}, "_num_rows": some.shape[0], "_initializers": {}}
        if of_graph is not None:
            whole = of_graph[i]
            if whole._columns:
                frame._columns = {**_rows_of(whole._columns, some), name: column}
            frame._initializers, frame._default_initializer = whole._initializers, whole._default_initializer
        frames.append(frame)
    return frames


def _rows_of(columns: dict[str, Column], ids: Tensor) -> dict[str, Column]:
    found: dict[str, Column] = {}
    there: tuple[torch.device, dict[str, object]] = ids.device, {}
    for name, column in columns.items():
        state = column.__dict__
        if state["index"] is not None:
            found[name] = column.subcolumn(ids)
            continue
        made = found[name] = object.__new__(Column)
        device = there if state["device"] is None and state["storage"].device != ids.device else state["device"]
        made.__dict__ = {**state, "index": ids, "device": device, "pinned_by_dgl": False, "_data_nd": None}
    return found


TypeFrames = tuple[Sequence[Frame], Sequence[Frame]]
"""Frames by node type, and by edge type."""

TypeEdges = tuple[list[Any], list[int]]
"""The edges of each type, by :func:`relation_maker`; the numbers of source nodes, then of destination nodes."""

GraphT = TypeVar("GraphT", bound=dgl.DGLGraph)
_FORMATS = ["coo", "csr", "csc"]
_WEIGHTS = "edge_weights"  # DGL's name
_MOST_SHARED = 1 << 22
_shared: dict[torch.dtype, Tensor] = {}


def to_blocks(tensors: BlockTensors, graph: GraphLike | None = None) -> list[DGLBlock]:
    """Return DGL's blocks over the memory of ``tensors``, the input layer first.

    Args:
        tensors: a result of :func:`manyhop_dgl.sample_tensors`, in CPU memory or on a GPU.
        graph: the sampled graph: blocks then have its features, gathered when they are first read, like blocks of
            DGL's samplers. ``None``: they have ``dgl.NID`` and ``dgl.EID``.
    """
    return make_blocks(tensors, None if graph is None else lazy_frames(graph))


def make_blocks(
    tensors: BlockTensors, frames: TypeFrames | None, rows_of: Sequence[EdgeType] | None = None
) -> list[DGLBlock]:
    """Return the blocks of :func:`to_blocks`.

    Args:
        tensors: the batch.
        frames: of the graph, by :func:`lazy_frames`; ``None``: the blocks have ids alone.
        rows_of: the edge types of the graph: the blocks also have the rows and masks of ``tensors``.
    """
    schema = block_schema(tuple(tensors.node), tuple(tensors.hops.num_edges))
    maker = _BlockMaker(tensors, frames, rows_of)
    blocks = []
    for at in range(len(tensors.hops.num_nodes) - 1):
        if maker.relation is index_of_dgl:
            block = schema.block(maker.adjacency(at), maker.node_frames(at), maker.edge_frames(at))
        else:
            nodes, edges = partial(maker.node_frames, at), partial(maker.edge_frames, at)
            block = schema.lazy_block(partial(maker.adjacency, at), nodes, edges)
        blocks.append(block)
    return blocks


def unread(blocks: Sequence[object]) -> tuple[BlockTensors, Sequence[EdgeType] | None] | None:
    """Return the arguments ``tensors`` and ``rows_of`` by which :func:`make_blocks` built these blocks.

    ``None`` unless they are all blocks of a batch, without features of a graph, and none was read or changed.
    """
    found: _BlockMaker | None = None
    for at, block in enumerate(blocks):
        maker = vars(block)["_makers"]["_node_frames"] if type(block) is _LazyBlock else None
        if not isinstance(maker, partial) or maker.args != (at,):  # blocks of GraphBolt consist of layers
            return None
        parts: _BlockMaker = getattr(maker.func, "__self__")  # noqa: B009  # which functions do not have
        if at and parts is not found:
            return None
        found = parts
    if found is None or found.frames != (None, None):
        return None
    tensors = found.tensors
    attributes = block_schema(tuple(tensors.node), tuple(tensors.hops.num_edges)).attributes
    assert attributes is not None
    unchanged = [len(vars(block)) == len(attributes) + 1 for block in blocks]  # the one further entry is _makers
    if len(blocks) != len(tensors.hops.num_nodes) - 1 or not all(unchanged):
        return None
    return tensors, found.rows_of


class _BlockMaker:
    """Builds the parts of a batch's blocks, with the arguments of :func:`make_blocks`."""

    def __init__(self, tensors: BlockTensors, frames: TypeFrames | None, rows_of: Sequence[EdgeType] | None) -> None:
        self.tensors, self.rows_of = tensors, rows_of
        self.frames: TypeFrames | tuple[None, None] = (None, None) if frames is None else frames
        self.relation = relation_maker(next(iter(tensors.node.values())).device)
        self._first: dict[int, list[Tensor]] = {}  # the destinations of a block are the sources of the next

    def adjacency(self, at: int) -> TypeEdges:
        """Return the edges of a block."""
        block = self.tensors.blocks[at]
        relations = [
            self.relation(block.num_src[edge_type[0]], block.num_dst[edge_type[2]], indptr, block.sources[edge_type])
            for edge_type, indptr in block.columns.items()
        ]
        return relations, [*block.num_src.values(), *block.num_dst.values()]

    def node_frames(self, at: int) -> list[Frame]:
        """Return frames of the source nodes of a block, then of the destination nodes, by type."""
        tensors, (of_nodes, _) = self.tensors, self.frames
        num_src, num_dst = tensors.hops.num_nodes[-1 - at], tensors.hops.num_nodes[-2 - at]
        sources = frames_of_ids(dgl.NID, self._ids(num_src), of_nodes)
        targets = frames_of_ids(dgl.NID, self._ids(num_dst), of_nodes)
        if self.rows_of is not None:
            types = list(tensors.node)
            if at == 0:
                put_rows(sources, types, tensors.node_features)
            if at == len(tensors.hops.num_nodes) - 2:
                put_rows(targets, types, tensors.output_features)
            for t, mask in (tensors.masks or {}).items():
                for frames in (sources, targets):
                    frame = frames[types.index(t)]
                    frame._columns["node_mask"] = make_column(mask[: frame.num_rows])
        return sources + targets

    def edge_frames(self, at: int) -> list[Frame]:
        """Return frames of the edges of a block, by type."""
        tensors, (_, of_edges) = self.tensors, self.frames
        block, types = tensors.blocks[at], list(tensors.hops.num_edges)
        frames = frames_of_ids(dgl.EID, list(block.ids.values()), of_edges)
        for t, weight in (block.weights or {}).items():
            frames[types.index(t)]._columns[_WEIGHTS] = make_column(weight)
        if self.rows_of is not None:
            if tensors.edge_features:
                put_rows(frames, self.rows_of, tensors.edge_features[at])
            for t, mask in (block.masks or {}).items():
                frames[types.index(t)]._columns["edge_mask"] = make_column(mask)
        return frames

    def _ids(self, counts: Mapping[NodeType, int]) -> list[Tensor]:
        """Return the first nodes of each type."""
        found = self._first.get(id(counts))
        if found is None:
            nodes = self.tensors.node
            found = [ids if ids.shape[0] == counts[t] else ids[: counts[t]] for t, ids in nodes.items()]
            self._first[id(counts)] = found
        return found


def put_rows(frames: Sequence[Frame], kinds: Sequence[object], rows: Mapping[str, object]) -> None:
    """Add rows to the frames of their types; see :func:`each_of`."""
    for name, kind, value in each_of(rows, kinds):
        frames[kinds.index(kind)]._columns[name] = make_column(value)


def each_of(rows: Mapping[str, Any], kinds: Sequence[Any]) -> list[tuple[str, Any, Tensor]]:
    """Return name, type and rows, of rows by name: of the one type there is, or by type."""
    return [
        (name, kind, value)
        for name, some in rows.items()
        for kind, value in (some.items() if isinstance(some, dict) else [(kinds[0], some)])
    ]


class _LazyBlock(DGLBlock):  # type: ignore[misc]  # DGL is untyped
    """A block whose adjacency and frames are built when they are first read. Once complete, it is a ``DGLBlock``."""

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__
        make = state.get("_makers", _NONE).get(name)
        if make is not None:
            made = state.setdefault(name, make())  # all threads get one object
            if state.keys() >= _PARTS:
                self.__class__ = DGLBlock
                state.pop("_makers", None)
            return made
        if name in state:  # built by another thread since
            return state[name]
        raise AttributeError(f"'DGLBlock' object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: object) -> Any:
        return self._whole().__reduce_ex__(protocol)

    def __copy__(self) -> DGLBlock:
        return self._whole().__copy__()

    def _whole(self) -> DGLBlock:
        for name in _PARTS:
            getattr(self, name)
        self.__class__ = DGLBlock
        return self


_PARTS = frozenset({"_graph", "_node_frames", "_edge_frames"})
_NONE: dict[str, Any] = {}


class _BlockSchema:
    """Builds blocks of equal types. The first one creates the attributes that depend on types only, for all others."""

    def __init__(self, node_types: tuple[NodeType, ...], edge_types: tuple[EdgeType, ...]) -> None:
        at = {t: i for i, t in enumerate(node_types)}
        src, dst = [at[s] for s, _, _ in edge_types], [len(at) + at[d] for _, _, d in edge_types]
        self._ends = list(zip(src, dst, strict=True))
        self._metagraph = graph_index.from_coo(2 * len(at), src, dst, True)
        self._names = list(node_types), [relation for _, relation, _ in edge_types]
        self.attributes: dict[str, Any] | None = None

    def block(self, adjacency: TypeEdges, nodes: list[Frame], edges: list[Frame]) -> DGLBlock:
        """Return one block.

        Args:
            adjacency: its edges.
            nodes: frames of the source nodes, then of the destination nodes, by type.
            edges: frames of the edge types.
        """
        index = self._index(*adjacency)
        if self.attributes is None:
            first = DGLBlock(index, (self._names[0], self._names[0]), self._names[1], nodes, edges)
            self.attributes = {name: value for name, value in vars(first).items() if name not in _PARTS}
            return first
        block = object.__new__(DGLBlock)
        block.__dict__.update(self.attributes, _graph=index, _node_frames=nodes, _edge_frames=edges)
        return block

    def lazy_block(
        self,
        adjacency: Callable[[], TypeEdges],
        nodes: Callable[[], list[Frame]],
        edges: Callable[[], list[Frame]],
    ) -> DGLBlock:
        """Return a block that calls these functions, for the arguments of :meth:`block`, when it is first read."""
        if self.attributes is None:
            return self.block(adjacency(), nodes(), edges())
        block = object.__new__(_LazyBlock)
        makers = {"_graph": lambda: self._index(*adjacency()), "_node_frames": nodes, "_edge_frames": edges}
        block.__dict__.update(self.attributes, _makers=makers)
        return block

    def _index(self, relations: list[Any], num_nodes: list[int]) -> heterograph_index.HeteroGraphIndex:
        if not isinstance(relations[0], heterograph_index.HeteroGraphIndex):
            from manyhop_dgl_cuda.index import TorchGraphIndex

            return TorchGraphIndex(self._ends, relations, num_nodes, metagraph=self._metagraph)
        counts = to_dgl_nd(torch.tensor(num_nodes))
        return heterograph_index._CAPI_DGLHeteroCreateHeteroGraphWithNumNodes(self._metagraph, relations, counts)


block_schema = lru_cache(maxsize=256)(_BlockSchema)


def relation_maker(device: torch.device) -> Callable[[int, int, Tensor, Tensor], Any]:
    """Return a function that builds the edges of one type: DGL's index, or torch tensors on devices without it.

    Its arguments are the numbers of source and destination nodes, and CSC: ``indptr [num_dst + 1]`` and
    ``[num_edges]`` sources.
    """
    from manyhop_dgl_cuda.dispatch import on_torch

    if not on_torch(device):
        return index_of_dgl
    from manyhop_dgl_cuda.adjacency import Adjacency

    return Adjacency.from_csc


def index_of_dgl(num_src: int, num_dst: int, indptr: Tensor, sources: Tensor) -> heterograph_index.HeteroGraphIndex:
    ids = counting(sources.numel(), sources.dtype, sources.device)
    return heterograph_index._CAPI_DGLHeteroCreateUnitGraphFromCSR(
        2, num_src, num_dst, to_dgl_nd(indptr), to_dgl_nd(sources), to_dgl_nd(ids), _FORMATS, True
    )


def lazy_frames(graph: GraphLike) -> TypeFrames:
    """Return DGL's frames of a graph's current node and edge data, by type.

    Loaders gather data of other nodes (machines), which the frames do not contain.
    """
    if isinstance(graph, dgl.DGLGraph):
        return [*map(same_columns, graph._node_frames)], [*map(same_columns, graph._edge_frames)]
    own: Any = graph  # a manyhop_dgl.Graph
    return [*map(_lazy, own.node_frames.values())], [*map(_lazy, own.edge_frames.values())]


def _lazy(frame: FrameOfGraph) -> Frame:
    return Frame({name: value for name, value in frame.data.items() if isinstance(value, Tensor)}, frame.num_rows)


def counting(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``[n]``: 0, 1, 2, ..., the position of each edge. Blocks share one tensor, which DGL only reads.

    DGL can omit it, but not all DGL kernels support that.
    """
    if device.type != "cpu" or n > _MOST_SHARED:
        return torch.arange(n, dtype=dtype, device=device)
    shared = _shared.get(dtype)
    if shared is None or shared.numel() < n:
        shared = _shared[dtype] = torch.arange(min(2 * n, _MOST_SHARED), dtype=dtype)
    return shared[:n]


def move(graphs: Iterable[GraphT], device: torch.device) -> list[GraphT]:
    """Return graphs or blocks on a device.

    Raises:
        InputError: a missing GPU.
    """
    there = as_device(device)
    return [graph if graph.device == there else graph.to(there) for graph in graphs]
