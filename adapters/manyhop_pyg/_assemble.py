"""Join a sample with the user's data: the batch as ``Data`` or ``HeteroData``.

Attributes are read from the user's object when the batch is made, so a replaced, added or deleted one is noticed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import SparseTensor, TensorFrame

from manyhop.errors import FeatureError
from manyhop.features import BufferPool, RowRequest, gather
from manyhop.graph import EdgeType, NodeType
from manyhop_pyg._output import joined

Permutation = Tensor | Mapping[EdgeType, Tensor | None] | None


class Rows:
    """The rows that a batch needs of all tensors: collected first, then gathered in one call."""

    def __init__(self) -> None:
        self._requests: list[RowRequest] = []
        self._slots: list[tuple[dict[str, Any], str]] = []

    def add(self, into: dict[str, Any], key: str, value: Any, index: Tensor, dim: int) -> None:
        """``into[key]`` will be ``value`` indexed by ``index`` along ``dim``."""
        if isinstance(value, TensorFrame):
            into[key] = value[index.to(value.device)]
            return
        if not isinstance(value, Tensor | np.ndarray):
            raise FeatureError(
                f"Expected the attribute '{key}' to be a tensor, an array or a TensorFrame, as it has one entry per "
                f"node or edge, got a {type(value).__name__}. Convert it, or keep it outside of the data."
            )
        if dim < 0:
            dim += value.ndim
        self._requests.append(RowRequest(value, index, dim, key))
        self._slots.append((into, key))

    def fetch(self, pool: BufferPool, threads: int) -> int:
        """Gather everything and put it where it belongs. Returns the number of bytes."""
        nbytes = 0
        for (into, key), value in zip(self._slots, gather(self._requests, pool=pool, threads=threads), strict=True):
            into[key] = value
            nbytes += value.numel() * value.element_size()
        return nbytes


def edge_ids(edge: Tensor | None, perm: Tensor | None) -> Tensor | None:
    """The user's ids ``[num_edges] int64`` of sampled edges; ``perm`` is that of the sampler."""
    if edge is None:
        return None
    edge = edge.to(torch.int64)
    return edge if perm is None else perm[edge]


def begin_data(data: Data, out: SamplerOutput, perm: Permutation, rows: Rows) -> Data:
    """A batch without its node and edge attributes, which ``rows`` will fetch."""
    assert perm is None or isinstance(perm, Tensor)
    batch = copy.copy(data)
    store, into = data._store, batch._store._mapping
    e_id = edge_ids(out.edge, perm)
    n = out.node.numel()
    for key, value in list(store._mapping.items()):
        if key == "num_nodes":
            into[key] = n
        elif key == "edge_index" or isinstance(value, SparseTensor):
            _put_edges(into, key, value, out.row, out.col, e_id, n, n)
        elif store.is_node_attr(key):
            rows.add(into, key, value, out.node, data.__cat_dim__(key, value, store))
        elif store.is_edge_attr(key):
            _add_edge_attribute(into, key, value, e_id, data.__cat_dim__(key, value, store), rows)
    into.setdefault("n_id", out.node)
    if e_id is not None:
        into.setdefault("e_id", e_id)
    return batch


def label_data(batch: Data, out: SamplerOutput) -> None:
    """Set what else a sample says. Comes after ``rows``, since the user's data may have attributes of these names."""
    into = batch._store._mapping
    put(into, "batch", out.batch)
    put(into, "num_sampled_nodes", out.num_sampled_nodes)
    put(into, "num_sampled_edges", out.num_sampled_edges)
    if out.orig_row is not None and out.orig_col is not None:
        batch._orig_edge_index = torch.stack([out.orig_row, out.orig_col])


def begin_hetero_data(data: HeteroData, out: HeteroSamplerOutput, perm: Permutation, rows: Rows) -> HeteroData:
    """The same for typed data: all node and edge types of ``data`` are present, also if empty."""
    assert perm is None or isinstance(perm, Mapping)
    batch = copy.copy(data)
    empty = torch.empty(0, dtype=torch.int64)
    for node_type, store in data._node_store_dict.items():
        node = out.node.get(node_type, empty)
        into = batch._node_store_dict[node_type]._mapping
        for key, value in list(store._mapping.items()):
            if key == "num_nodes":
                into[key] = node.numel()
            elif store.is_node_attr(key):
                rows.add(into, key, value, node, data.__cat_dim__(key, value, store))
    for edge_type, store in data._edge_store_dict.items():
        row, col = out.row.get(edge_type, empty), out.col.get(edge_type, empty)
        edge = out.edge.get(edge_type, empty) if out.edge is not None else None
        e_id = edge_ids(edge, None if perm is None else perm.get(edge_type))
        n_src, n_dst = (out.node.get(edge_type[end], empty).numel() for end in (0, 2))
        into = batch._edge_store_dict[edge_type]._mapping
        for key, value in list(store._mapping.items()):
            if key == "edge_index" or isinstance(value, SparseTensor):
                _put_edges(into, key, value, row, col, e_id, n_src, n_dst)
            elif store.is_edge_attr(key):
                _add_edge_attribute(into, key, value, e_id, data.__cat_dim__(key, value, store), rows)
    set_ids(batch, out, perm)
    return batch


def set_ids(batch: HeteroData, out: HeteroSamplerOutput, perm: Mapping[EdgeType, Tensor | None] | None) -> None:
    """Set ``n_id`` and ``e_id``, where the user has no attributes of these names."""
    for node_type, node in out.node.items():
        _mapping(batch, node_type).setdefault("n_id", node)
    for edge_type, edge in (out.edge or {}).items():
        e_id = edge_ids(edge, None if perm is None else perm.get(edge_type))
        if e_id is not None:
            _mapping(batch, edge_type).setdefault("e_id", e_id)


def label_types(batch: HeteroData, out: HeteroSamplerOutput) -> None:
    """Set what else a sample says about each node type and each edge type."""
    for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
        for kind, value in (getattr(out, name) or {}).items():
            put(_mapping(batch, kind), name, value)
    if out.orig_row is not None and out.orig_col is not None:
        for edge_type, row in out.orig_row.items():
            batch[edge_type]._orig_edge_index = torch.stack([row, out.orig_col[edge_type]])


def _mapping(batch: HeteroData, kind: NodeType | EdgeType) -> dict[str, Any]:
    """The attributes of a type; the type is added where it is new."""
    stores = batch._node_store_dict if isinstance(kind, str) else batch._edge_store_dict
    store = stores.get(kind)
    mapping: dict[str, Any] = (batch[kind] if store is None else store)._mapping
    return mapping


def put(into: dict[str, Any], key: str, value: Any) -> None:
    """Set an attribute as PyG's storages do: ``None`` deletes it."""
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _put_edges(
    into: dict[str, Any], key: str, value: Any, row: Tensor, col: Tensor, e_id: Tensor | None, n_src: int, n_dst: int
) -> None:
    """The sampled edges as the user's data holds its own: ``edge_index``, ``adj_t`` or ``adj``, on their device."""
    if key == "edge_index":
        into[key] = joined(row, col).to(value.device)
    elif key in ("adj", "adj_t"):
        row, col = row.to(value.device()), col.to(value.device())
        weight = value.storage.value()
        if weight is not None:
            weight = None if e_id is None else weight.index_select(0, e_id.to(weight.device))
        ends = (row, col, n_src, n_dst) if key == "adj" else (col, row, n_dst, n_src)
        into[key] = SparseTensor(
            row=ends[0], col=ends[1], value=weight, sparse_sizes=ends[2:], is_sorted=False, trust_data=True
        )


def _add_edge_attribute(into: dict[str, Any], key: str, value: Any, e_id: Tensor | None, dim: int, rows: Rows) -> None:
    if e_id is None:  # the sampler does not know which edges these are
        del into[key]
    else:
        rows.add(into, key, value, e_id, dim)
