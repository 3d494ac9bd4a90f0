"""PyG's data objects -> the topology that samplers work on: ``Data``, ``HeteroData``, (FeatureStore, GraphStore)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import SparseTensor

from manyhop.arguments import as_tensor, check_no_mask
from manyhop.errors import GraphError, InputError
from manyhop.graph import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    EdgeInput,
    EdgeType,
    Graph,
    NodeType,
    build_graph,
    time_key,
    without_views,
)
from manyhop.memory.mapped_files import identity
from manyhop.memory.sharing import once_per_node
from manyhop.memory.stores import WHOLE_ONCE, checksum
from manyhop.ranks import cuda
from manyhop_pyg.data.graph_store import GraphStore, kind_of
from manyhop_pyg.data.topologies import TensorTree, once, read_stores, recall
from manyhop_pyg.typing import PyGData


@dataclass(frozen=True)
class RawGraph:
    """Edges, times and weights as the user's objects hold them, before they are compressed.

    Homogeneous graphs use the one node type ``"_N"`` and the one edge type ``("_N", "_E", "_N")``.
    """

    hetero: bool
    num_nodes: dict[NodeType, int]
    edges: dict[EdgeType, dict[str, Tensor]]
    """Edge type -> ``row`` and either ``col`` or ``colptr``."""
    index_dtype: torch.dtype
    """Dtype of the user's edge indices: that of ``n_id`` and ``edge_index`` of a batch."""
    get: Callable[[str], tuple[dict[NodeType, Tensor], dict[EdgeType, Tensor]]]
    """Attribute name -> its tensors by node type and by edge type."""


@dataclass(frozen=True)
class Topology:
    """A graph ready to be sampled, and how to translate between the user's terms and its own."""

    graph: Graph
    hetero: bool
    backward: bool
    """Whether the graph's edges are the user's reversed."""
    index_dtype: torch.dtype
    node_time: dict[NodeType, Tensor]
    """The user's times of nodes."""
    edge_time: dict[EdgeType, Tensor]
    """The user's times of edges."""
    floating_time: bool
    user_edge_type: dict[EdgeType, EdgeType]
    """Edge type of the graph -> the user's edge type (the same unless ``backward``)."""

    @property
    def is_temporal(self) -> bool:
        """Whether neighbours are restricted by time."""
        return bool(self.node_time or self.edge_time)

    @cached_property
    def bounds(self) -> dict[NodeType | EdgeType, int]:
        """The user's node or edge type -> number of nodes or edges, the bound of sampled ids."""
        bounds: dict[NodeType | EdgeType, int] = dict(self.graph.num_nodes.items())
        for edge_type, csc in self.graph.csc.items():
            bounds[self.user_edge_type[edge_type] if self.hetero else HOMOGENEOUS_EDGE] = csc.num_edges
        return bounds

    def node_type(self, name: NodeType | None) -> NodeType:
        """Return the graph's node type of the user's (``None`` in homogeneous graphs)."""
        if not self.hetero:
            return HOMOGENEOUS_NODE
        if name not in self.graph.num_nodes:
            raise InputError(f"Unknown node type {name!r}. The graph has: {list(self.graph.num_nodes)}.")
        assert name is not None
        return name

    def seed_time(self, time: Tensor, *, earliest: bool = False) -> Tensor:
        """Return times of seeds ``[n]``, of any real dtype, as ``int64`` time keys: upper limits, or lower ones."""
        if not self.floating_time and time.is_floating_point():
            if bool(time.isnan().any()):
                raise GraphError("Expected seed times that can be ordered, got NaN. Fill in or drop the missing times.")
            # Among integers, those up to x are those up to floor(x). The limits keep infinities in the range of int64.
            whole = time.double().ceil() if earliest else time.double().floor()
            return whole.clamp(-(2.0**62), 2.0**62).long()
        return time_key(time, floating=self.floating_time)


def read_data(data: PyGData) -> RawGraph:
    """Read the edges of anything that PyG accepts as ``data``."""
    try:
        kind = DataType.from_data(data)
    except ValueError:
        raise InputError(
            f"Expected data to be Data, HeteroData or a tuple (FeatureStore, GraphStore), got {type(data).__name__}. "
            "Pass the graph; of a data set, it is dataset[0]."
        ) from None
    if kind is DataType.remote:
        return RawGraph(*read_stores(*data))
    return _read_data(data) if kind is DataType.homogeneous else _read_hetero_data(data)


def build_topology(
    raw: RawGraph, *, time_attr: str | None, weight_attr: str | None, is_sorted: bool, backward: bool
) -> Topology:
    """Compress a graph for sampling along its edges (from destinations to sources), or ``backward`` against them."""
    node_time, edge_time = _times(raw, _name("time_attr", time_attr))
    weight = _weights(raw, _name("weight_attr", weight_attr))

    inputs: dict[str, TensorTree] = {
        "edges": raw.edges,
        "node times": node_time,
        "edge times": edge_time,
        "weights": weight,
    }
    contents = _contents(inputs)
    options = raw.hetero, tuple(raw.num_nodes.items()), raw.index_dtype, is_sorted, backward, contents

    def build() -> Topology:
        floating = any(t.is_floating_point() for t in [*node_time.values(), *edge_time.values()])
        edges: dict[EdgeType, EdgeInput] = {}
        names: dict[EdgeType, EdgeType] = {}
        for t, given in raw.edges.items():
            ours = (t[2], t[1], t[0]) if backward else t
            names[ours] = t
            time = edge_time.get(t)
            edges[ours] = EdgeInput(
                **(_reversed(given) if backward else given),
                weight=weight.get(t),
                time=None if time is None else time_key(time.cpu(), floating=floating),
                is_sorted=is_sorted,
                reversed=backward,
            )
        node_times = {k: time_key(v.cpu(), floating=floating) for k, v in node_time.items()}
        graph = build_graph(raw.num_nodes, edges, node_time=node_times, defer=cuda.in_reach())
        sources = [*node_time.values(), *edge_time.values(), *weight.values()]
        sources += [tensor for tensors in raw.edges.values() for tensor in tensors.values()]
        graph = without_views(graph, sources)
        return Topology(graph, raw.hetero, backward, raw.index_dtype, node_time, edge_time, floating, names)

    def build_on_one_rank() -> Topology:
        names = _identities(inputs)
        if names is None:
            return build()
        # All inputs are in shared memory, so one rank of the machine builds the tables there.
        return once_per_node(f"topology {options} {names}", build, what="the topology")

    return once(inputs, options, build_on_one_rank)


def claim_place(data: object, topology: Topology) -> None:
    """Let loaders on GPUs read a topology from the placement of manyhop's graph store, if it is in one."""
    store = data[1] if isinstance(data, tuple) else None
    if isinstance(store, GraphStore) and store.topology_place is not None:
        store.topology_place.claim(topology.graph, topology)


def _contents(inputs: TensorTree) -> tuple[int, ...]:
    """Return checksums of all tensors, which numpy or another process may have changed."""
    if isinstance(inputs, Tensor):
        return (checksum(inputs, whole=WHOLE_ONCE),)
    return tuple(sum for value in inputs.values() for sum in _contents(value))


def _identities(inputs: TensorTree) -> Any:
    """Return the structure with names of the tensors' contents; ``None`` if a tensor is in private memory."""
    if isinstance(inputs, Tensor):
        return identity(inputs)
    named = {key: _identities(value) for key, value in inputs.items()}
    return None if None in named.values() else named


def _read_data(data: Data) -> RawGraph:
    num_nodes = data.num_nodes
    if num_nodes is None:
        raise GraphError("The number of nodes is not known: set data.num_nodes, or set a feature `x` of the nodes.")
    edges, dtype = _read_edges(data.stores[0], HOMOGENEOUS_EDGE, optional=True)

    def get(name: str) -> tuple[dict[NodeType, Tensor], dict[EdgeType, Tensor]]:
        if name not in data:
            return {}, {}
        if data.is_node_attr(name):
            return {HOMOGENEOUS_NODE: _tensor(data[name], name)}, {}
        if data.is_edge_attr(name):
            return {}, {HOMOGENEOUS_EDGE: _tensor(data[name], name)}
        raise GraphError(
            f"Expected the attribute '{name}' to have one entry per node ({num_nodes}) or per edge "
            f"({data.num_edges}), got {kind_of(data[name])}."
        )

    return RawGraph(False, {HOMOGENEOUS_NODE: int(num_nodes)}, {HOMOGENEOUS_EDGE: edges}, dtype, get)


def _read_hetero_data(data: HeteroData) -> RawGraph:
    num_nodes: dict[NodeType, int] = {}
    for node_type in data.node_types:
        n = data[node_type].num_nodes
        if n is None:
            raise GraphError(
                f"The number of nodes of type '{node_type}' is not known: set data['{node_type}'].num_nodes, or give "
                "the nodes a feature `x`."
            )
        num_nodes[node_type] = int(n)
    edges: dict[EdgeType, dict[str, Tensor]] = {}
    dtypes = set()
    for edge_type, store in data.edge_items():
        edges[edge_type], dtype = _read_edges(store, edge_type, optional=False)
        dtypes.add(dtype)

    def get(name: str) -> tuple[dict[NodeType, Tensor], dict[EdgeType, Tensor]]:
        nodes = {t: _tensor(s[name], name) for t, s in data.node_items() if name in s}
        return nodes, {t: _tensor(s[name], name) for t, s in data.edge_items() if name in s}

    return RawGraph(True, num_nodes, edges, dtypes.pop() if len(dtypes) == 1 else torch.int64, get)


def _read_edges(store: BaseStorage, edge_type: EdgeType, *, optional: bool) -> tuple[dict[str, Tensor], torch.dtype]:
    """Return the edges of one storage and their dtype. Edge ids are positions in these edges."""
    adj, adj_t = store.get("adj"), store.get("adj_t")
    if isinstance(adj, SparseTensor):
        row, col, _ = adj.coo()
        return {"row": row.cpu(), "col": col.cpu()}, torch.int64
    if isinstance(adj_t, SparseTensor):
        colptr, row, _ = adj_t.csr()
        return {"row": row.cpu(), "colptr": colptr.cpu()}, torch.int64
    if adj_t is not None:
        raise GraphError(
            f"Expected adj_t to be a torch_sparse.SparseTensor, got {kind_of(adj_t)}. Keep edge_index instead "
            "(ToSparseTensor on the batch, as `transform`, creates the same adj_t)."
        )
    edge_index = store.get("edge_index")
    if edge_index is None:
        if not optional:
            raise GraphError(f"Edge type {edge_type} has no edge_index. Set it; without edges, to a [2, 0] tensor.")
        return {"row": torch.empty(0, dtype=torch.int64), "col": torch.empty(0, dtype=torch.int64)}, torch.int64
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GraphError(f"Expected edge_index to be a tensor of shape [2, num_edges], got {kind_of(edge_index)}.")
    compressed = recall(edge_index)
    if compressed is not None:
        return compressed, torch.int64
    row, col = as_tensor("edge_index", edge_index, GraphError)
    return {"row": row, "col": col}, torch.int32 if edge_index.dtype == torch.int32 else torch.int64


def _reversed(edges: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the edges from destination to source, with the same ids."""
    if "col" in edges:
        return edges | {"row": edges["col"], "col": edges["row"]}
    return {"row": torch.repeat_interleave(torch.diff(edges["colptr"]).long()), "col": edges["row"]}


def _times(raw: RawGraph, name: str | None) -> tuple[dict[NodeType, Tensor], dict[EdgeType, Tensor]]:
    if name is None:
        return {}, {}
    nodes, edges = raw.get(name)
    if nodes and edges:
        raise GraphError(
            f"The time attribute '{name}' exists for nodes {list(nodes)} and for edges {list(edges)}. "
            "Rename one of them: neighbours are restricted by either node times or edge times."
        )
    if not nodes and not edges:
        raise GraphError(f"Expected a time attribute '{name}' of nodes or of edges; the data has none of this name.")
    if nodes and not raw.hetero and "node" not in name:
        n = raw.num_nodes[HOMOGENEOUS_NODE]
        if n == _num_edges(raw) and nodes[HOMOGENEOUS_NODE].shape[:1] == (n,):
            raise InputError(
                f"Expected a time attribute of nodes or of edges, got '{name}' with {n} entries in a graph of as many "
                f"nodes as edges. Say in its name whose times they are: 'node_{name}' or 'edge_{name}'."
            )
    expected = [(_title(k, raw), t, raw.num_nodes[k]) for k, t in nodes.items()]
    expected += [(_title(k, raw), t, raw.edges[k]["row"].numel()) for k, t in edges.items()]
    for what, time, n in expected:
        if time.shape != (n,) or time.dtype == torch.bool or time.is_complex():
            raise GraphError(
                f"Expected times '{name}' of {what} as integers or floats of shape [{n}], got {kind_of(time)}."
            )
    return nodes, edges


def _weights(raw: RawGraph, name: str | None) -> dict[EdgeType, Tensor]:
    if name is None:
        return {}
    nodes, edges = raw.get(name)
    if not raw.hetero and nodes and not edges and raw.num_nodes[HOMOGENEOUS_NODE] == _num_edges(raw):
        edges = {HOMOGENEOUS_EDGE: nodes[HOMOGENEOUS_NODE]}  # as many nodes as edges: the name is ambiguous
    if not edges:
        got = f"only one of nodes ({list(nodes)})" if nodes and raw.hetero else "one of nodes" if nodes else "none"
        raise GraphError(f"Expected an edge weight attribute '{name}', got {got}. Pass the name of an edge attribute.")
    for edge_type, weight in edges.items():
        n = raw.edges[edge_type]["row"].numel()
        if weight.shape != (n,):
            raise GraphError(
                f"Expected weights '{name}' of {_title(edge_type, raw)} of shape [{n}], got {kind_of(weight)}."
            )
    return {t: w.cpu() for t, w in edges.items()}


def _name(argument: str, name: object) -> str | None:
    if not isinstance(name, str | None):
        raise InputError(f"Expected {argument} as the name of an attribute, got {name!r}. Use one name for all types.")
    return name


def _num_edges(raw: RawGraph) -> int:
    return sum(e["row"].numel() for e in raw.edges.values())


def _title(kind: NodeType | EdgeType, raw: RawGraph) -> str:
    if not raw.hetero:
        return "the nodes" if isinstance(kind, str) else "the edges"
    return f"type {kind!r}"


def _tensor(value: object, name: str) -> Tensor:
    return as_tensor(f"the attribute '{name}'", value, GraphError)


def edge_list(edge_index: object) -> Tensor:
    """Return an argument ``edge_index`` as a plain tensor ``[2, num_edges]`` of int64 or int32."""
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.size(0) != 2:
        got = list(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise InputError(f"Expected edge_index as a tensor [2, num_edges], got {got}. Convert it.")
    ids = as_tensor("edge_index", edge_index)
    if ids.numel() > 0:
        check_no_mask("edge_index", ids)
        if ids.is_floating_point() or ids.is_complex():
            raise GraphError(f"Expected edge_index as an integer tensor, got {ids.dtype}. Convert it.")
    return ids if ids.dtype == torch.int32 else ids.long()


def nodes_in(ids: Tensor) -> int:
    """Return the number of nodes that edges show: their highest id, plus 1."""
    return int(ids.max()) + 1 if ids.numel() > 0 else 0


def plain(tensor: Tensor) -> Tensor:
    """Return a plain tensor without a subclass."""
    if type(tensor) is Tensor:
        return tensor
    if isinstance(tensor, EdgeIndex | Index):  # torch before 2.8 cannot create a plain view
        inner: Tensor = tensor.as_tensor()
        return inner
    return tensor.as_subclass(Tensor)
