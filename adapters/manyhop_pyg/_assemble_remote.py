"""Join a sample with features from any PyG ``FeatureStore``, those of edges included."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType
from manyhop_pyg._assemble import edge_ids, set_ids
from manyhop_pyg._feature_store import FeatureStore as OwnStore
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
    batch = _blank() if custom_cls is None else custom_cls()
    batch.edge_index = joined(out.row, out.col)
    batch.num_nodes = out.node.numel()
    into = batch._store._mapping
    e_id = edge_ids(out.edge, perm)
    num_nodes, num_edges = sizes

    def of_edges(name: str, length: int | None) -> bool:
        return num_nodes is not None and num_edges is not None and is_edge_attribute(name, length, num_nodes, num_edges)

    if gpu is not None and type(feature_store) is OwnStore:
        asked = []
        for column in feature_store.columns():
            index: Tensor | None = out.node
            kind: Any = HOMOGENEOUS_NODE
            if of_edges(column.name, len(column.tensor)):
                index, kind = e_id, HOMOGENEOUS_EDGE
            if index is not None:
                asked.append((column, index, kind, into))
        nbytes = gpu.fetch(feature_store, asked)
    else:
        wanted: list[TensorAttr] = []
        for attr in feature_store.get_all_tensor_attrs():
            attr = whole(attr, homogeneous=True)
            size = feature_store.get_tensor_size(attr) if num_nodes is not None else None
            attr.index = e_id if of_edges(attr.attr_name, size[0] if size else None) else out.node
            if attr.index is not None:
                wanted.append(attr)
        nbytes = _fetch(feature_store, wanted, lambda attr: batch, gpu)
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

    def ids_of(group: Any) -> Tensor | None:
        if isinstance(group, tuple):
            return edge_ids((out.edge or {}).get(group), None if perm is None else perm.get(group))
        return out.node.get(group)  # type: ignore[no-any-return]  # PyG is untyped

    for edge_attr in graph_store.get_all_edge_attrs():
        edge_type = edge_attr.edge_type
        if edge_type in out.row and edge_type in out.col:
            batch[edge_type].edge_index = joined(out.row[edge_type], out.col[edge_type])
    if gpu is not None and type(feature_store) is OwnStore:
        asked = [
            (column, index, column.group, batch[column.group]._mapping)
            for column in feature_store.columns()
            if (index := ids_of(column.group)) is not None
        ]
        nbytes = gpu.fetch(feature_store, asked)
    else:
        wanted = [copy.copy(attr) for attr in feature_store.get_all_tensor_attrs()]
        for attr in wanted:
            attr.index = ids_of(attr.group_name)
        wanted = [attr for attr in wanted if attr.index is not None]
        nbytes = _fetch(feature_store, wanted, lambda attr: batch[attr.group_name], gpu)
    set_ids(batch, out, perm)
    return batch, nbytes


_DATA = Data()


def _blank() -> Data:
    """``Data()`` in a tenth of its time."""
    batch, store = object.__new__(Data), object.__new__(type(_DATA._store))
    batch.__dict__.update(_DATA.__dict__)
    store.__dict__.update(_DATA._store.__dict__)
    store.__dict__.update(_mapping={}, _parent=weakref.ref(batch))
    batch.__dict__["_store"] = store
    return batch


def _fetch(feature_store: FeatureStore, wanted: list[TensorAttr], store_of: Any, gpu: OnGPU | None) -> int:
    """Ask the store for everything at once."""
    nbytes = 0
    rows = feature_store.multi_get_tensor(wanted) if gpu is None else gpu.rows_of(feature_store, wanted)
    for attr, value in zip(wanted, rows, strict=True):
        store_of(attr)[attr.attr_name] = value
        nbytes += getattr(value, "nbytes", 0)
    return nbytes
