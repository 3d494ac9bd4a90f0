"""Join a sample with features from any PyG ``FeatureStore``, those of edges included."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop_pyg._assemble import edge_ids, set_ids
from manyhop_pyg._output import joined
from manyhop_pyg._remote import is_edge_attribute, whole

if TYPE_CHECKING:
    from manyhop_pyg._on_gpu import OnGPU


def join_store(
    feature_store: FeatureStore,
    out: SamplerOutput,
    perm: Any,
    sizes: tuple[int | None, int | None],
    custom_cls: Any,
    gpu: OnGPU | None,
) -> tuple[Data, int]:
    """A batch of a homogeneous store, and the bytes of its features. ``sizes``: nodes and edges of the whole graph."""
    batch = Data() if custom_cls is None else custom_cls()
    batch.edge_index = joined(out.row, out.col)
    e_id = edge_ids(out.edge, perm)
    wanted: list[TensorAttr] = []
    kinds: list[Any] = []
    num_nodes, num_edges = sizes
    for attr in feature_store.get_all_tensor_attrs():
        attr = whole(attr, homogeneous=True)
        index: Tensor | None = out.node
        kind: Any = HOMOGENEOUS_NODE
        if num_nodes is not None and num_edges is not None:
            size = feature_store.get_tensor_size(attr)
            if is_edge_attribute(attr.attr_name, size[0] if size else None, num_nodes, num_edges):
                index, kind = e_id, HOMOGENEOUS_EDGE
        if index is not None:
            attr.index = index
            wanted.append(attr)
            kinds.append(kind)
    batch.num_nodes = out.node.numel()
    nbytes = _fetch(feature_store, wanted, kinds, lambda attr: batch, gpu)
    into = batch._store._mapping
    into.setdefault("n_id", out.node)
    if e_id is not None:
        into.setdefault("e_id", e_id)
    return batch, nbytes


def join_hetero_store(
    feature_store: FeatureStore,
    graph_store: GraphStore,
    out: HeteroSamplerOutput,
    perm: Mapping[EdgeType, Tensor | None] | None,
    custom_cls: Any,
    gpu: OnGPU | None,
) -> tuple[HeteroData, int]:
    """The same for stores with types."""
    batch = HeteroData() if custom_cls is None else custom_cls()
    for node_type, node in out.node.items():
        batch[node_type].num_nodes = node.numel()
    wanted: list[TensorAttr] = []
    for attr in feature_store.get_all_tensor_attrs():
        attr = copy.copy(attr)
        if isinstance(attr.group_name, tuple):
            attr.index = edge_ids(
                (out.edge or {}).get(attr.group_name), None if perm is None else perm.get(attr.group_name)
            )
        else:
            attr.index = out.node.get(attr.group_name)
        if attr.index is not None:
            wanted.append(attr)
    for edge_attr in graph_store.get_all_edge_attrs():
        edge_type = edge_attr.edge_type
        if edge_type in out.row and edge_type in out.col:
            batch[edge_type].edge_index = joined(out.row[edge_type], out.col[edge_type])
    nbytes = _fetch(feature_store, wanted, [a.group_name for a in wanted], lambda attr: batch[attr.group_name], gpu)
    set_ids(batch, out, perm)
    return batch, nbytes


def _fetch(
    feature_store: FeatureStore, wanted: list[TensorAttr], kinds: list[Any], store_of: Any, gpu: OnGPU | None
) -> int:
    """Ask the store for everything at once; ``kinds`` are the types of the nodes or edges that are asked for."""
    nbytes = 0
    rows = feature_store.multi_get_tensor(wanted) if gpu is None else gpu.rows_of(feature_store, wanted, kinds)
    for attr, value in zip(wanted, rows, strict=True):
        store_of(attr)[attr.attr_name] = value
        nbytes += getattr(value, "nbytes", 0)
    return nbytes
