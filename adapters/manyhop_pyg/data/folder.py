"""Graphs on disk as PyG's data objects, or as stores: ``manyhop_pyg.save`` and ``manyhop_pyg.open``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data, Dataset, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop.features import CacheSize
from manyhop.files import GraphWriter, Rows, StoredEdges, StoredGraph
from manyhop.files.graph_writer import NodeIds, edge_pieces
from manyhop.files.saved_tensors import load_safely
from manyhop.files.stored_graph import Others, tensor_of
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.loading import folders
from manyhop.memory.places import Place
from manyhop.memory.stores import store_device
from manyhop.system.memory import require_memory
from manyhop_pyg.data.convert import read_data
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.data.graph_store import GraphStore
from manyhop_pyg.data.topologies import remember


def check_can_be_stores(graph: StoredGraph) -> None:
    """Raise InputError if the graph has attributes that stores would return in another shape."""
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
    """Put all nodes and edges of ``graph`` into stores. All ranks call it."""

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
            # Loaders over stores use the dtype of the pointers for ids; loaders over Data use int64.
            row, colptr = tensors[id(stored.row)], tensors[id(stored.colptr)].long()
            edges.put_edge_index((row, colptr), edge_type=group, layout="csc", size=size)
        else:
            assert stored.edge_index is not None
            edges.put_edge_index(tuple(tensor_of(stored.edge_index)), edge_type=group, layout="coo", size=size)
    return features, edges


_CONTAINERS = [
    Data, HeteroData, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage, DataEdgeAttr, DataTensorAttr,
]  # fmt: skip
_EDGES = ("edge_index", "adj", "adj_t")


def save(data: Data | HeteroData, folder: str | PathLike[str], *, crc32: bool = False) -> None:
    """Write a graph to a new folder, for :func:`open`, without pickling.

    Edges and their attributes are stored in the order of destinations, so edge ids differ from those of ``data``.

    Args:
        data: graph with dense tensors and arrays; other attributes must be numbers, strings or lists of them.
        folder: folder that does not exist or is empty.
        crc32: store checksums of the files, for ``manyhop.files.open_graph(folder).verify()``.

    Raises:
        InputError: an attribute that needs pickling; a folder that is not empty.
        GraphError: invalid edges.
    """
    with GraphWriter(folder, homogeneous=isinstance(data, Data), crc32=crc32) as writer:
        write_data(data, writer)
        writer.finish()


def open(
    folder: str | PathLike[str],
    *,
    placement: Place = "auto",
    device: torch.device | str | None = None,
    cache: CacheSize | None = None,
) -> Data | HeteroData | tuple[FeatureStore, GraphStore]:
    """Open a graph that :func:`save` or ``manyhop convert`` wrote: ``Data``, ``HeteroData`` or a pair of stores.

    Args:
        folder: the folder.
        placement: memory of the tensors. ``"process"``: this process; ``"shared"``: once per node, for all its ranks;
            ``"mapped"``: their files, of which the system caches what is read often; ``"sharded"``: a part of the
            features on each node of the run; ``"auto"`` decides from sizes, free memory, ranks and nodes (see ``manyhop
            plan``). Or a placement of GPUs: ``"pinned"``, ``"device"``, ``"sharded"`` with ``device="cuda"``,
            ``"distributed"``. ``edge_index`` is always mapped: manyhop's samplers read the compressed topology.
        device: this rank's GPU, for placements of GPUs.
        cache: how many rows of features in files (``"mapped"``, maybe ``"auto"``) this process caches in memory, see
            :class:`FeatureStore`: a float from 0 to 1, the share of the rows of each tensor; an integer, bytes for all;
            or ``"auto"``.

    With ``"auto"``, ``"shared"``, ``"sharded"`` and placements of GPUs, all ranks of the run call this and return when
    all nodes have read their parts; with ``"sharded"`` and ``"auto"``, all nodes need to see the same folder. With
    ``"process"`` and ``"mapped"``, any rank may call it alone.

    **Sharded features.** With ``"sharded"``, and with ``"auto"`` if it decides to shard any, the result is
    ``(FeatureStore, GraphStore)``, for loaders with ``distributed=True``; on a single node, they need not share
    batches. ``"sharded"`` shards all tensors of two or more dimensions with a row for each node or edge; each node has
    the others (labels, masks, times, weights) and the topology once. Attributes of the graph or of a type as a whole
    are left out (``manyhop.files.open_graph(folder).others`` has them). With a placement of GPUs, the same tensors are
    in GPU memory, and each rank reads only the rows that it will hold.

    Returns:
        ``Data`` or ``HeteroData``; ``(FeatureStore, GraphStore)`` if features are sharded, or in placements of GPUs.

    Raises:
        InputError: no such folder; files that are damaged or do not fit together; an unknown placement; sharded
            features of edges that have the edges as their last dimension.
        CapacityError: not enough memory; the message contains advice.
        RankError: another rank failed or is late.
    """
    on_gpu = store_device(placement, device, None) is not None
    where: Place = "sharded" if on_gpu else placement
    graph, chosen = folders.open_placed(folder, where)
    sharded = folders.sharded_rows(graph, chosen)
    if not sharded and where != "sharded":
        return _build(graph, folders.load(graph, chosen, where, cache))
    check_can_be_stores(graph)
    tensors = folders.load(graph, chosen, where, cache)
    features = FeatureStore(placement=placement if on_gpu else "sharded", device=device)
    return build_stores(graph, tensors, sharded, features, GraphStore(placement="auto" if on_gpu else "process"))


@dataclass(frozen=True)
class SavedData:
    """A file of ``torch.save`` as ``manyhop convert`` reads it: the entry point ``saved`` of ``manyhop.formats``."""

    data: Data | HeteroData

    @classmethod
    def load(cls, path: Path) -> SavedData:
        """Read ``Data`` or ``HeteroData``, or the file of an ``InMemoryDataset`` with one graph.

        Only tensors, plain values and PyG's containers are unpickled.

        Raises:
            InputError: the file contains other objects.
        """
        advice = "Load it yourself, if you trust it, and call manyhop_pyg.save(data, folder)."
        data = load_safely(path, _CONTAINERS, advice)
        if isinstance(data, tuple) and len(data) in (2, 3) and isinstance(data[0], dict) and not data[1]:
            kinds = data[2] if len(data) == 3 else Data
            data = kinds.from_dict(data[0]) if kinds in (Data, HeteroData) else None
        if not isinstance(data, Data | HeteroData):
            raise InputError(f"{path}: expected one Data or HeteroData, got {type(data).__name__}. {advice}")
        return cls(data)

    @property
    def homogeneous(self) -> bool:
        """Whether it is a ``Data``."""
        return isinstance(self.data, Data)

    def write(self, writer: GraphWriter) -> None:
        """Write all nodes and edges."""
        write_data(self.data, writer)


def write_data(data: Data | HeteroData, writer: GraphWriter) -> None:
    """Write all of ``data``."""
    raw = read_data(data)
    stores = {HOMOGENEOUS_NODE: data.stores[0]} if isinstance(data, Data) else dict(data.node_items())
    whole: dict[str, object] = {}
    for node_type, store in stores.items():
        of_nodes: dict[str, Tensor | Rows] = {}
        others: dict[str, object] = {}
        for name, value in _attributes(store):
            if isinstance(value, Tensor) and _is_node_level(data, store, name):
                of_nodes[name] = value
            elif isinstance(data, HeteroData):
                others[name] = _marked(name, value, node_type)
            elif not (isinstance(value, Tensor) and data.is_edge_attr(name)):
                whole[name] = _marked(name, value, node_type)
        writer.add_nodes(node_type, raw.num_nodes[node_type], of_nodes, others)
    edge_stores = {HOMOGENEOUS_EDGE: data.stores[0]} if isinstance(data, Data) else dict(data.edge_items())
    for edge_type, store in edge_stores.items():
        columns: dict[str, Tensor | Rows] = {}
        others = {}
        transposed = set()
        for name, value in _attributes(store):
            if not (isinstance(value, Tensor) and store.is_edge_attr(name)):
                if isinstance(data, HeteroData):
                    others[name] = _marked(name, value, edge_type[0], edge_type[2])
            elif isinstance(data, HeteroData) or not data.is_node_attr(name):
                along = data.__cat_dim__(name, value, store) % value.dim()
                if along:
                    transposed.add(name)
                columns[name] = value.movedim(along, 0)
        edges = raw.edges[edge_type]
        col = edges["col"] if "col" in edges else torch.repeat_interleave(torch.diff(edges["colptr"]))
        kinds, pieces = edge_pieces(edges["row"].cpu(), col.cpu(), columns)
        sorter = writer.sorter(kinds)
        for piece in pieces:
            sorter.add(*piece)
        counts = raw.num_nodes[edge_type[0]], raw.num_nodes[edge_type[2]]
        writer.add_sorted(edge_type, sorter, *counts, transposed=transposed, others=others)
    if isinstance(data, HeteroData):
        whole = dict(_attributes(data.stores[0]))
    writer.add_others(whole)


def _attributes(store: BaseStorage) -> Iterator[tuple[str, object]]:
    """Yield all attributes except topology and counts, with arrays as tensors."""
    for name, value in store.items():
        if name in _EDGES or name == "num_nodes":
            if name in ("adj", "adj_t") and hasattr(value, "has_value") and value.has_value():
                raise InputError(
                    f"Expected '{name}' without values: a graph on disk has edge_index and tensors of edges. Set "
                    "edge_index and edge_weight instead."
                )
            continue
        if isinstance(value, Tensor | np.ndarray):
            value = as_tensor(f"'{name}'", value).cpu()
            if value.dim() == 0:
                raise InputError(f"Expected '{name}' to have rows, got a single number. Delete or convert it.")
        yield name, value


def _marked(name: str, value: object, *types: str) -> object:
    """Mark what holds nodes by PyG's convention: integers with "index" in their name; those of edges are pairs."""
    if "index" not in name or not isinstance(value, Tensor) or value.dtype not in (torch.int32, torch.int64):
        return value
    if len(set(types)) == 1:
        return NodeIds(value, types[:1])
    return NodeIds(value, types) if len(value) == len(types) else value


def _is_node_level(data: Data | HeteroData, store: BaseStorage, name: str) -> bool:
    return bool(data.is_node_attr(name) if isinstance(data, Data) else store.is_node_attr(name))


def _build(graph: StoredGraph, tensors: dict[int, Tensor]) -> Data | HeteroData:
    data = Data() if graph.is_homogeneous else HeteroData()
    for node_type, nodes in graph.nodes.items():
        store = data.stores[0] if graph.is_homogeneous else data[node_type]
        if "x" not in nodes.tensors:  # which PyG would count
            store.num_nodes = nodes.count
        for name, rows in nodes.tensors.items():
            _set(graph, store, name, tensors[id(rows)])
        _set_others(graph, store, nodes.others, tensors)
    for edge_type, edges in graph.edges.items():
        store = data.stores[0] if graph.is_homogeneous else data[edge_type]
        store.edge_index = _edge_index(graph, edges, tensors)
        for name, rows in edges.tensors.items():
            value = tensors[id(rows)]
            _set(graph, store, name, value.movedim(0, -1) if name in edges.transposed else value)
        _set_others(graph, store, edges.others, tensors)
    _set_others(graph, data.stores[0], graph.others, tensors)
    return data


def _set_others(graph: StoredGraph, store: BaseStorage, others: Others, tensors: dict[int, Tensor]) -> None:
    for name, rows in others.tensors.items():
        _set(graph, store, name, tensors[id(rows)])
    for name, value in others.values.items():
        _set(graph, store, name, value)


def _set(graph: StoredGraph, store: BaseStorage, name: str, value: object) -> None:
    """Set an attribute that nothing else of the graph has set, or is to set."""
    if name in store or name in _EDGES or name == "num_nodes":
        raise InputError(
            f"{graph.path}: expected names that Data has room for, got {name!r}, which is that of other data of the "
            "same nodes, edges or graph, or of its topology. Rename one of them in manyhop.json."
        )
    store[name] = value


def _edge_index(graph: StoredGraph, edges: StoredEdges, tensors: dict[int, Tensor]) -> Tensor:
    if edges.row is None or edges.colptr is None:
        assert edges.edge_index is not None
        return tensor_of(edges.edge_index)
    row, colptr = tensors[id(edges.row)], tensors[id(edges.colptr)]
    if edges.edge_index is not None:
        edge_index = tensor_of(edges.edge_index)
    else:
        what = f"{graph.path}: edge_index, which the folder does not have,"
        require_memory(what, 40 * edges.count, "Write the folder with manyhop convert, which stores it.")
        edge_index = torch.stack([row.long(), torch.repeat_interleave(torch.diff(colptr))])
    remember(edge_index, row, colptr)
    return edge_index


def load_dataset(name: str, arguments: Mapping[str, Any]) -> SavedData:
    """Create a data set of ``torch_geometric.datasets``: the entry point ``dataset`` of ``manyhop.formats``.

    This runs PyG's code, which may download files, and unpickle files that it has processed before. ``arguments`` are
    the arguments of the class ``name``, such as ``root`` and ``name`` of ``"Planetoid"``.

    Raises:
        InputError: no such class, wrong arguments, or not one graph.
    """
    found = getattr(torch_geometric.datasets, name, None)
    if not (inspect.isclass(found) and issubclass(found, Dataset)):
        known = torch_geometric.datasets.__all__
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f" Did you mean {', '.join(close)}?" if close else ""
        raise InputError(f"Expected a class of torch_geometric.datasets after 'pyg:', got '{name}'.{hint}")
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"{name}{inspect.signature(found)}: {error}. Pass what it takes by --dataset-arg NAME=VALUE."
        ) from None
    dataset: Any = found(**arguments)
    if len(dataset) != 1:
        raise InputError(
            f"{name}: expected one graph, got {len(dataset)}. Call manyhop_pyg.save(data, folder) for one."
        )
    data = dataset[0]
    if not isinstance(data, Data | HeteroData):
        raise InputError(f"{name}: expected a Data or HeteroData, got {type(data).__name__}.")
    return SavedData(data)
