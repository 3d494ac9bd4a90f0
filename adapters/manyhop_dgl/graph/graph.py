"""A graph with the interface of DGL's that training scripts use, its edges and data in manyhop's stores."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import GraphError, InputError
from manyhop.features import CacheSize, is_pinnable, is_pinned, pin, unpin
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, EdgeType, NodeType, build_graph, without_views
from manyhop.memory.places import Place
from manyhop.ranks import cuda
from manyhop_dgl.graph.data import Edges, GraphData, Nodes
from manyhop_dgl.graph.folder import open_folder, save_folder, to_dgl
from manyhop_dgl.graph.frames import RankStores, copied
from manyhop_dgl.graph.topology import Tables, compress, edges_of
from manyhop_embedding import Embedding

if TYPE_CHECKING:
    from dgl import DGLGraph


def checked_edge_type(edge_type: object) -> EdgeType:
    """Check the form of a canonical edge type.

    Raises:
        InputError: a wrong type.
    """
    if isinstance(edge_type, tuple) and len(edge_type) == 3 and all(isinstance(part, str) for part in edge_type):
        return edge_type
    raise InputError(f"Expected edge types as (source type, relation, destination type), got {edge_type!r}.")


def checked_pair(edge_type: EdgeType, pair: Any) -> tuple[Tensor, Tensor]:
    """Return the ends of the edges of one type, ``[num_edges] int64 or int32``, in the memory of the CPU or a GPU.

    Raises:
        GraphError: they are not.
    """
    try:
        src, dst = pair
    except (TypeError, ValueError, RuntimeError):
        raise GraphError(
            f"Expected the edges of {edge_type} as (sources, destinations), got {type(pair).__name__}."
        ) from None
    src, dst = (as_tensor(f"the edges of {edge_type}", ids, GraphError) for ids in (src, dst))
    # An empty list has no dtype.
    src, dst = (ids.long() if ids.numel() == 0 else ids for ids in (src, dst))
    if src.shape != dst.shape or src.dim() != 1:
        raise GraphError(
            f"Expected the edges of {edge_type} as two tensors [num_edges], got shapes {list(src.shape)} and "
            f"{list(dst.shape)}."
        )
    for ids in (src, dst):
        if ids.dtype not in (torch.int32, torch.int64) or ids.device.type not in ("cpu", "cuda"):
            raise GraphError(
                f"Expected ids of {edge_type} as int64 or int32 on the CPU or a GPU, got {ids.dtype} on {ids.device}."
            )
    return src, dst


def node_counts(num_nodes: object, lists: Mapping[EdgeType, tuple[Tensor, Tensor]]) -> dict[NodeType, int]:
    """Return nodes by type, in DGL's order: by name.

    Raises:
        InputError: no numbers.
    """
    found: dict[NodeType, int] = {}
    for (src_type, _, dst_type), (src, dst) in lists.items():
        for node_type, ids in ((src_type, src), (dst_type, dst)):
            found[node_type] = max(found.get(node_type, 0), int(ids.max()) + 1 if ids.numel() else 0)
    if num_nodes is None:
        return dict(sorted(found.items()))
    if not isinstance(num_nodes, Mapping):
        if set(found) != {HOMOGENEOUS_NODE}:
            raise InputError(f"Expected num_nodes as {{node type: number}} of {sorted(found)}, got {num_nodes!r}.")
        num_nodes = {HOMOGENEOUS_NODE: num_nodes}
    for node_type, n in num_nodes.items():
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InputError(f"Expected the number of nodes of type {node_type!r} as an integer, 0 or more, got {n!r}.")
    return dict(sorted(num_nodes.items()))


class Graph(GraphData):
    """A graph of any number of node and edge types to sample from, with the interface of a ``DGLGraph`` but no compute.

    It has types, counts, degrees, edges and data (``ndata``, ``edata``, ``nodes[...]``, ``edges[...]``) under DGL's
    names and with DGL's meaning: edge ``i`` of a type is the ``i``-th one that was passed. It does not
    compute: models run on the blocks that loaders make. :meth:`to_dgl` returns a ``DGLGraph`` for everything else.

    Edges are copied and kept compressed, in 8 bytes each if there are less than 2^31 (a ``DGLGraph``: 16 or more).
    Data is used unchanged, not copied; memory-mapped tensors remain on disk.

    **Several ranks.** With ``placement="shared"``, every node (machine) holds edges and data once, in memory that its
    ranks share; with ``"sharded"``, data of two or more dimensions is spread over the nodes, each node holding a part
    of the rows. With these and with all other places but ``"process"`` and ``"mapped"``, all ranks make the graph and
    set its data in the same order. Each gives a part of the edges (maybe none): those of rank 0 come first, then those
    of rank 1, and so on; two ranks that give the same edges get an error. :func:`share` places a graph that each
    rank could load. ``g.ndata["feat"] = tensor`` sets a tensor that all ranks have whole, :meth:`put_rows` one of which
    each has some rows.

    Args:
        edges: canonical edge type ``(src, relation, dst)`` -> ``(sources, destinations)``, each ``[num_edges]`` int64
            or int32; or such a pair alone, of a graph without types. Those in memory of a GPU are grouped there.
        num_nodes: node type -> number of nodes; an integer for a graph without types; ``None``: by the ids.
        idtype: dtype of ids in blocks; ``None``: int32 if all ids are given so, else int64.
        placement: where data and, for GPUs, edges are read: ``"process"``, ``"shared"``, ``"sharded"``, ``"mapped"``
            (data in files remains there), ``"auto"`` (as ``"shared"``; the first loader decides what GPUs read), or a
            place of GPUs, which all loaders read: ``"pinned"``, ``"device"``, ``"sharded"`` with ``device="cuda"``
            (over the GPUs of each node), ``"distributed"`` (over the GPUs of all nodes). What is spread over GPUs is
            data of two or more dimensions. ``manyhop.files.open(...)`` can be set in the place of data: each rank reads
            only the rows that it is to hold. ``WholeMemory`` and what offers DLPack are kept unchanged.
        device: this rank's GPU, for places of GPUs.
        rank_timeout: seconds to wait for other ranks (600), if there are some.

    Raises:
        GraphError: ids out of range, unequal lengths, wrong dtypes; ranks give the same edges.
        InputError: other arguments that do not make sense.
        CapacityError: the tables do not fit in memory.
        RankError: another rank failed, is late, or gives other edge types.
    """

    def __init__(
        self,
        edges: Mapping[EdgeType, tuple[ArrayLike, ArrayLike]] | tuple[ArrayLike, ArrayLike],
        num_nodes: Mapping[NodeType, builtins.int] | builtins.int | None = None,
        *,
        idtype: torch.dtype | None = None,
        placement: Place = "process",
        device: torch.device | str | None = None,
        rank_timeout: float | None = None,
    ) -> None:
        stores = RankStores.of(placement, rank_timeout, device)
        if not isinstance(edges, Mapping):
            edges = {HOMOGENEOUS_EDGE: edges}
        lists = {checked_edge_type(t): checked_pair(t, pair) for t, pair in sorted(edges.items())}
        if idtype is not None:
            _check_idtype(idtype)
        else:
            dtypes = {ids.dtype for pair in lists.values() for ids in pair}
            idtype = torch.int32 if dtypes == {torch.int32} else torch.int64
        if stores is not None:
            for t, (src, dst) in lists.items():
                joined = stores.edges.join({"sources": src.cpu(), "destinations": dst.cpu()}, f"edges of {t}")
                lists[t] = joined[0], joined[1]
        inputs = {t: EdgeInput(row=s, col=d) for t, (s, d) in lists.items()}
        graph = build_graph(node_counts(num_nodes, lists), inputs, defer=stores is None and cuda.in_reach())
        graph = without_views(graph, [ids for pair in lists.values() for ids in pair])
        self.set_tables(Tables(graph, idtype), stores)

    @classmethod
    def from_dgl(cls, g: DGLGraph) -> Graph:
        """Build a graph of a ``DGLGraph``'s edges, under the same edge ids, and of its data (the same tensors).

        With int32 ids (``g.int()``), the tables are the ``DGLGraph``'s own memory as far as possible.

        Args:
            g: a ``DGLGraph`` on the CPU, not a block.

        Raises:
            InputError: an unsupported object.
        """
        if isinstance(g, Graph):
            raise InputError("Expected a DGLGraph, got Graph. Use it directly.")
        edges_of(g)
        out = cls.of_tables(Tables(compress(g, "in"), g.idtype))
        for node_type, frame in out.node_frames.items():
            frame.update(g.nodes[node_type].data)
        for edge_type, frame in out.edge_frames.items():
            frame.update(g.edges[edge_type].data)
        return out

    @classmethod
    def open(
        cls,
        folder: str | PathLike[str],
        *,
        placement: Place = "auto",
        device: torch.device | str | None = None,
        idtype: torch.dtype = torch.int64,
        cache: CacheSize | None = None,
    ) -> Graph:
        """Open a folder that :meth:`save`, ``manyhop_pyg.save`` or ``manyhop convert`` wrote.

        Args:
            folder: where it is.
            placement: where its tensors are: ``"process"`` reads them into the memory of this process; ``"shared"``
                once per node, for all its ranks; ``"mapped"`` leaves them in their files, of which the system keeps in
                memory what is read often; ``"sharded"`` spreads data of two or more dimensions over the nodes of the
                run; ``"auto"`` decides from sizes, free memory, ranks and nodes (see ``manyhop plan``). Except for
                ``"process"`` and ``"mapped"``, all ranks call this.
            device: this rank's GPU, for places of GPUs.
            idtype: dtype of ids in blocks.
            cache: how much of the data that remain in files (``"mapped"``, maybe ``"auto"``) this process keeps in
                memory, those rows that batches request most often: a float from 0 to 1, the share of the rows of each
                tensor; an integer, bytes for all; or ``"auto"``: half of the memory that is available, divided by the
                ranks of the node.

        Raises:
            InputError: no such folder; files that are damaged or do not fit together; an unknown placement or idtype.
            CapacityError: too little memory; the message names options.
            RankError: another rank failed or is late.
        """
        _check_idtype(idtype)
        return open_folder(cls, folder, placement, device, idtype, cache)

    @property
    def nodes(self) -> Nodes:
        """``g.nodes(ntype)``: the ids of all nodes of a type; ``g.nodes[ntype].data``: their data."""
        return Nodes(self)

    @property
    def edges(self) -> Edges:
        """``g.edges(form, order, etype)``: the ends of all edges; ``g.edges[etype].data``: their data."""
        return Edges(self)

    def to(self, device: torch.device | str) -> Graph:
        """Return the graph itself for the CPU; other devices raise an error.

        Raises:
            InputError: for a GPU: pass ``device`` to the DataLoader instead.
        """
        if torch.device(device).type == "cpu":
            return self
        raise InputError(
            f"Expected the CPU, got {device}: edges and data remain in host memory for all loaders, and the "
            f"DataLoader samples and gathers on the GPU. Leave out g.to(), and pass device={str(device)!r} "
            "to DataLoader."
        )

    def cpu(self) -> Graph:
        """Return the graph itself."""
        return self

    def pin_memory_(self) -> Graph:
        """Pin the data of nodes and edges in place, so that GPUs read it over the bus.

        Data of less than 32 MiB are left unchanged: loaders copy them, as their pages may contain other objects.

        Raises:
            InputError: no GPU.
            CapacityError: the system does not let this process pin as much memory.
        """
        if not torch.cuda.is_available():
            raise InputError("Expected a CUDA device to pin memory for, found none: pin nothing on this machine.")
        for tensor in filter(is_pinnable, self.tensors()):
            pin(tensor)
        return self

    def unpin_memory_(self) -> Graph:
        """Undo :meth:`pin_memory_`."""
        for tensor in self.tensors():
            unpin(tensor)
        return self

    def is_pinned(self) -> bool:
        """Return whether GPUs can read all data of nodes and edges of 32 MiB and more over the bus."""
        tensors = list(filter(is_pinnable, self.tensors()))
        return torch.cuda.is_available() and bool(tensors) and all(is_pinned(tensor) for tensor in tensors)

    def moved(self, placement: Place, device: torch.device | str | None = None) -> Graph:
        """Return a graph with the same edges, whose data of two or more dimensions have a different placement.

        All ranks call it, with whole tensors that are in host memory.

        Args:
            placement: as for a new graph.
            device: this rank's GPU, for places of GPUs.

        Raises:
            InputError: an unknown placement, or a device that does not fit it.
        """
        out = type(self).of_tables(self.tables, RankStores.of(placement, None, device))
        frames = [(out.node_frames[t], frame) for t, frame in self.node_frames.items()]
        frames += [(out.edge_frames[t], frame) for t, frame in self.edge_frames.items()]
        for moved, frame in frames:
            for name, value in frame.items():
                if not isinstance(value, Embedding) and value.ndim > 1:
                    moved[name] = value
                else:
                    moved.hold(name, value)
        return out

    def int(self) -> Graph:
        """Return the same edges and data, with int32 ids in blocks."""
        return self._with_idtype(torch.int32)

    def long(self) -> Graph:
        """Return the same edges and data, with int64 ids in blocks."""
        return self._with_idtype(torch.int64)

    def local_var(self) -> Graph:
        """Copy the graph, not its tensors: data set on the copy do not change this graph."""
        return self._with_idtype(self.idtype)

    def to_dgl(self) -> DGLGraph:
        """Return a ``DGLGraph`` with the same edges, ids and data; needs memory for its edges.

        Raises:
            FeatureError: data that is spread over nodes or GPUs, or trainable.
            MissingExtraError: DGL is not installed.
        """
        return to_dgl(self)

    def save(self, folder: str | PathLike[str], *, crc32: bool = False) -> None:
        """Write edges and data into a new folder, for :meth:`open`. Nothing is pickled.

        Edges are stored in order of destination, and their data with them: edge ids of the stored graph are others.

        Args:
            folder: does not exist yet, or is empty.
            crc32: whether to store checksums of the files, for ``manyhop.files.open_graph(folder).verify()``.

        Raises:
            InputError: a folder with files in it.
            FeatureError: data that is spread over nodes or GPUs, or trainable.
        """
        save_folder(self, folder, crc32=crc32)

    def _with_idtype(self, idtype: torch.dtype) -> Graph:
        out = Graph.__new__(Graph)
        out.__dict__.update(self.__dict__)
        out.tables = Tables(self.tables.graph, idtype)
        out.node_frames, out.edge_frames = copied(self.node_frames), copied(self.edge_frames)
        return out

    if not TYPE_CHECKING:  # mypy would assume that every attribute exists

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"'Graph' object has no attribute {name!r}")
            raise AttributeError(
                f"manyhop_dgl.Graph has no {name!r}: it is a graph to sample from. Use g.to_dgl(), a DGLGraph with the "
                "same edges and data, or the blocks that samplers make."
            )

    def __repr__(self) -> str:
        counts = {t: self.num_nodes(t) for t in self.ntypes}
        return f"Graph(num_nodes={counts}, num_edges={ {t: self.num_edges(t) for t in self.canonical_etypes} })"


def _check_idtype(idtype: object) -> None:
    if idtype not in (torch.int32, torch.int64):
        raise InputError(f"Expected idtype torch.int32 or torch.int64, got {idtype!r}. Pass one of them.")
