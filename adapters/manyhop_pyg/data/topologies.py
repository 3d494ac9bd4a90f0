"""Read topologies: of stores of any kind, in compressed form, and once for all samplers over the same data."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from manyhop.arguments import as_tensor
from manyhop.errors import GraphError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.system.arrays import known, known_if_any
from manyhop_pyg.typing import StoreSize

T = TypeVar("T")
TensorTree: TypeAlias = "Tensor | Mapping[str, TensorTree] | Mapping[EdgeType, TensorTree]"
"""Tensors in nested mappings."""
Path: TypeAlias = tuple[Hashable, ...]

_known: dict[Hashable, tuple[weakref.ref[Any], list[StorageWeakRef]]] = {}
_lock = threading.Lock()


def once(inputs: TensorTree, options: Hashable, build: Callable[[], T]) -> T:
    """Return ``build()``, or its earlier result for the same tensors if that is still in use.

    Tensors are the same if they are the same view of the same memory, without changes in place by torch since. They are
    not kept alive. ``options`` are the other inputs; the result must support weak references.
    """
    tensors = dict(_tensors(inputs, ()))
    if any(tensor.is_inference() for tensor in tensors.values()):  # whose changes are not counted
        return build()
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors.values()]  # type: ignore[no-untyped-call]
    views = [(name, storage.cdata, *_view(t)) for (name, t), storage in zip(tensors.items(), storages, strict=True)]
    key = (options, *views)
    with _lock:
        found = _known.get(key)
        value = None if found is None else found[0]()
    if value is not None:
        same: T = value
        return same
    value = build()
    with _lock:
        for old in [k for k, (ref, _) in _known.items() if ref() is None]:
            del _known[old]
        # A storage that is referred to, even weakly, keeps its number to itself.
        _known[key] = weakref.ref(value), storages
    return value


def _tensors(value: TensorTree, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    for key, part in value.items():
        yield from _tensors(part, (*path, key))


def _view(tensor: Tensor) -> tuple[Hashable, ...]:
    """Return address, shape, strides, dtype and version of a tensor."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._version


def remember(edge_index: Tensor, row: Tensor, colptr: Tensor) -> None:
    """Note that ``edge_index [2, num_edges]`` is in order of destination, with these compressed columns."""
    known(edge_index).compressed = edge_index._version, row, colptr


def recall(edge_index: Tensor) -> dict[str, Tensor] | None:
    """Return the remembered ``row`` and ``colptr`` of an unchanged edge list."""
    record = known_if_any(edge_index)
    found = None if record is None else record.compressed
    if found is None or found[0] != edge_index._version:
        return None
    return {"row": found[1], "colptr": found[2]}


Attributes = tuple[dict[NodeType, Tensor], dict[EdgeType, Tensor]]

_PREFERRED = (EdgeLayout.CSC, EdgeLayout.COO, EdgeLayout.CSR)


def is_hetero(graph_store: GraphStore) -> bool:
    """Return whether a store holds edges by type."""
    return any(attr.edge_type is not None for attr in graph_store.get_all_edge_attrs())


def read_stores(
    feature_store: FeatureStore, graph_store: GraphStore
) -> tuple[bool, dict[NodeType, int], dict[EdgeType, dict[str, Tensor]], torch.dtype, Callable[[str], Attributes]]:
    """Return whether stores are heterogeneous, nodes and edges by type, index dtype, and a getter of attributes.

    The id of an edge is its position in the stored layout: CSC if there is one, otherwise COO, otherwise CSR.
    """
    by_type: dict[Any, dict[EdgeLayout, EdgeAttr]] = {}
    for attr in graph_store.get_all_edge_attrs():
        by_type.setdefault(attr.edge_type, {})[attr.layout] = attr
    hetero = is_hetero(graph_store)
    if not by_type:
        raise GraphError("Expected a graph store that holds edges, got one without any. Call put_edge_index().")
    edges: dict[EdgeType, dict[str, Tensor]] = {}
    found: dict[NodeType, list[int]] = {}  # numbers of nodes by layout
    dtypes = set()
    for edge_type, attrs in by_type.items():
        if hetero and edge_type is None:
            raise GraphError("The graph store holds edges with and without an edge type. Name the type of all edges.")
        ours = edge_type if hetero else HOMOGENEOUS_EDGE
        attr = next(attrs[layout] for layout in _PREFERRED if layout in attrs)
        first, second = (as_tensor("edges of the store", x, GraphError) for x in graph_store.get_edge_index(attr))
        dtypes.add(second.dtype)
        if attr.layout == EdgeLayout.CSC:
            edges[ours] = {"row": first, "colptr": second}
            found.setdefault(ours[2], []).append(second.numel() - 1)
        elif attr.layout == EdgeLayout.COO:
            edges[ours] = {"row": first, "col": second}
        else:
            edges[ours] = {"row": torch.repeat_interleave(torch.diff(first).long()).to(second.dtype), "col": second}
            found.setdefault(ours[0], []).append(first.numel() - 1)
        parts = getattr(graph_store, "parts", None)
        if parts is not None:  # this rank has some of the edges
            edges[ours]["part"] = parts[edge_type]
        for end, n in zip((ours[0], ours[2]), attr.size or (None, None), strict=True):
            if n is not None:
                found.setdefault(end, []).append(int(n))
    num_nodes = _count_nodes(feature_store, edges, found, hetero)
    for edge_type, given in edges.items():  # a homogeneous colptr may be shorter than the number of nodes
        if "colptr" in given:
            missing = num_nodes[edge_type[2]] + 1 - given["colptr"].numel()
            if missing > 0:
                given["colptr"] = torch.cat([given["colptr"], given["colptr"][-1:].expand(missing)])
    dtype = torch.int32 if dtypes == {torch.int32} else torch.int64
    return hetero, num_nodes, edges, dtype, lambda name: _attributes(feature_store, name, num_nodes, edges, hetero)


def _count_nodes(
    feature_store: FeatureStore,
    edges: dict[EdgeType, dict[str, Tensor]],
    found: dict[NodeType, list[int]],
    hetero: bool,
) -> dict[NodeType, int]:
    """Return the number of nodes per type, from edge layouts, otherwise features, otherwise ids."""
    groups: dict[NodeType, list[int]] = {}
    for attr in feature_store.get_all_tensor_attrs():
        if isinstance(attr.group_name, str) or not hetero:
            size = feature_store.get_tensor_size(whole(attr, homogeneous=not hetero))
            groups.setdefault(attr.group_name if hetero else HOMOGENEOUS_NODE, []).append(int(size[0]) if size else 0)
    types = dict.fromkeys([*groups, *(end for t in edges for end in (t[0], t[2]))])
    num_nodes = {}
    for node_type in types:
        if node_type in found:
            num_nodes[node_type] = max(found[node_type])
        elif hetero and any(groups.get(node_type, ())):
            num_nodes[node_type] = groups[node_type][0]
        else:
            ids = [given["row"] for t, given in edges.items() if t[0] == node_type]
            ids += [given["col"] for t, given in edges.items() if t[2] == node_type and "col" in given]
            num_nodes[node_type] = max((int(i.max()) + 1 for i in ids if i.numel()), default=0)
    return num_nodes


def _attributes(
    feature_store: FeatureStore,
    name: str,
    num_nodes: dict[NodeType, int],
    edges: dict[EdgeType, dict[str, Tensor]],
    hetero: bool,
) -> Attributes:
    """Return all tensors of a name, by node type and by edge type."""
    nodes: dict[NodeType, Tensor] = {}
    of_edges: dict[EdgeType, Tensor] = {}
    size = None if hetero else (num_nodes[HOMOGENEOUS_NODE], edges[HOMOGENEOUS_EDGE]["row"].numel())
    for attr in feature_store.get_all_tensor_attrs():
        if attr.attr_name != name:
            continue
        attr = whole(attr, homogeneous=not hetero)
        value = as_tensor(f"the attribute '{name}'", feature_store.get_tensor(attr), GraphError).cpu()
        kind = kind_of_rows(attr.group_name, name, value.size(0), size)
        (of_edges if isinstance(kind, tuple) else nodes)[kind] = value
    return nodes, of_edges


def whole(attr: TensorAttr, *, homogeneous: bool) -> TensorAttr:
    """Return a copy of an attribute for all rows. ``Data`` as a store leaves its group unset."""
    attr = copy.copy(attr)
    attr.index = None
    if homogeneous and not attr.is_set("group_name"):
        attr.group_name = None
    return attr


def read_edge_index(graph_store: GraphStore, edge_type: EdgeType) -> Tensor:
    """Return all edges of a type, ``[2, num_edges]``, in the order of their ids."""
    attrs = {attr.layout: attr for attr in graph_store.get_all_edge_attrs() if attr.edge_type == edge_type}
    if not attrs:
        known = [attr.edge_type for attr in graph_store.get_all_edge_attrs()]
        raise GraphError(f"Unknown edge type {edge_type}. The graph store has: {known}.")
    attr = next(attrs[layout] for layout in _PREFERRED if layout in attrs)
    row, col = (as_tensor("edges of the store", x, GraphError).cpu() for x in graph_store.get_edge_index(attr))
    if attr.layout == EdgeLayout.CSC:
        col = torch.repeat_interleave(torch.diff(col).long()).to(row.dtype)
    elif attr.layout == EdgeLayout.CSR:
        row = torch.repeat_interleave(torch.diff(row).long()).to(col.dtype)
    return torch.stack([row, col])


def kind_of_rows(group: Any, name: str, length: int | None, size: StoreSize | None) -> Any:
    """Return the node or edge type of a tensor of ``length`` rows in a store.

    In homogeneous stores, of ``size`` ``(num_nodes, num_edges)``, it depends on the length and the name, as in
    ``Data``; otherwise (``None``) it is the tensor's group.
    """
    if size is None:
        return group
    num_nodes, num_edges = size
    of_edges = num_nodes is not None and length == num_edges and (length != num_nodes or "edge" in name)
    return HOMOGENEOUS_EDGE if of_edges else HOMOGENEOUS_NODE
