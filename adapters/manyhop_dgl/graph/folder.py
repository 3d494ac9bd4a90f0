"""Graphs in folders, and as DGL graphs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from manyhop import files
from manyhop.errors import MissingExtraError
from manyhop.features import CacheSize
from manyhop.files import Rows, StoredGraph
from manyhop.files.stored_graph import tensor_of
from manyhop.graph import EdgeInput, build_graph
from manyhop.loading import folders
from manyhop.memory.places import Place
from manyhop.memory.stores import store_device
from manyhop_dgl.graph.data import GraphData
from manyhop_dgl.graph.frames import Frame, RankStores, whole
from manyhop_dgl.graph.topology import Tables

if TYPE_CHECKING:
    from dgl import DGLGraph


def to_dgl(graph: GraphData) -> DGLGraph:
    """Return a ``DGLGraph`` with the same edges, ids and data."""
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
    for node_type, frame in graph.node_frames.items():
        g.nodes[node_type].data.update(_tensors(frame))
    for edge_type, frame in graph.edge_frames.items():
        g.edges[edge_type].data.update(_tensors(frame))
    return g


G = TypeVar("G", bound=GraphData)


def open_folder(
    cls: type[G],
    folder: str | PathLike[str],
    placement: Place,
    device: torch.device | str | None,
    idtype: torch.dtype,
    cache: CacheSize | None,
) -> G:
    """Return the graph in a folder."""
    on_gpu = store_device(placement, device, None) is not None
    where: Place = "sharded" if on_gpu else placement
    stored, chosen = folders.open_placed(folder, where)
    sharded = folders.sharded_rows(stored, chosen)
    tensors = folders.load(stored, chosen, where, cache)
    stores = RankStores.of(placement if on_gpu else "sharded", None, device) if sharded or on_gpu else None
    edges = {}
    for edge_type, found in sorted(stored.edges.items()):  # types in DGL's order
        if found.row is not None and found.colptr is not None:
            edges[edge_type] = EdgeInput(row=tensors[id(found.row)], colptr=tensors[id(found.colptr)])
        else:
            assert found.edge_index is not None
            row, col = tensor_of(found.edge_index)
            edges[edge_type] = EdgeInput(row=row, col=col)
    counts = {name: nodes.count for name, nodes in sorted(stored.nodes.items())}
    topology = folders.on_all_ranks(f"edges of {stored.path.name}", where, lambda: build_graph(counts, edges))
    graph = cls.of_tables(Tables(topology, idtype), stores)
    for node_type, nodes in stored.nodes.items():
        _fill(graph.node_frames[node_type], nodes.tensors, tensors, stores)
    for edge_type, found in stored.edges.items():
        _fill(graph.edge_frames[edge_type], found.tensors, tensors, stores)
    return graph


def save_folder(graph: GraphData, folder: str | PathLike[str], *, crc32: bool) -> StoredGraph:
    """Write a graph into a new folder."""
    return files.save_graph(
        folder,
        graph.tables.graph.num_nodes,
        {t: graph.tables.edge_list(t) for t in graph.canonical_etypes},
        node_tensors={t: _tensors(frame) for t, frame in graph.node_frames.items()},
        edge_tensors={t: _tensors(frame) for t, frame in graph.edge_frames.items()},
        homogeneous=graph.tables.graph.is_homogeneous,
        crc32=crc32,
    )


def _fill(frame: Frame, named: Mapping[str, Rows], tensors: Mapping[int, Tensor], stores: RankStores | None) -> None:
    for name, rows in named.items():
        held = tensors.get(id(rows))
        if held is None:
            assert stores is not None
            frame.hold(name, stores.spread.read(rows, name))
        else:
            frame.hold(name, held)


def _tensors(frame: Frame) -> dict[str, Tensor]:
    return {name: whole(name, value) for name, value in frame.items()}
