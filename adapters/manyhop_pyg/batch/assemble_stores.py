"""Join samples with node and edge features of any PyG ``FeatureStore``."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, HeteroData, TensorAttr
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.errors import FeatureError
from manyhop.features import RowRequest
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop_pyg.batch.assemble import edge_ids, set_ids
from manyhop_pyg.batch.columns import PlacedStore
from manyhop_pyg.data.feature_store import StoreColumn
from manyhop_pyg.data.topologies import is_of_edges, whole
from manyhop_pyg.samplers.requests import joined
from manyhop_pyg.typing import Attributes, Permutation

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_pyg.batch.assemble import Joining

ColumnRequest: TypeAlias = tuple[StoreColumn, object, Tensor, NodeType | EdgeType, Attributes]
"""A column of a store, the source that a GPU reads, row ids, node or edge type, and the batch's mapping."""


def join_store(joining: Joining, outs: Sequence[SamplerOutput], perm: Permutation) -> tuple[list[Data], int]:
    """Return batches of a homogeneous store, whose edges are still to be put, and the bytes of their features.

    On a GPU, the rows of all batches come from one call.
    """
    assert perm is None or isinstance(perm, Tensor)
    (feature_store, _), gpu, custom_cls = joining.data, joining.gpu, joining.custom_cls
    num_nodes, _ = joining.store_size
    batches: list[Data] = []
    e_ids = [edge_ids(out.edge, perm) for out in outs]
    for out in outs:
        if custom_cls is None:
            batch, into = blank_data()
            into["edge_index"], into["num_nodes"] = None, out.node.numel()
        else:
            batch = custom_cls()
            batch.edge_index, batch.num_nodes = joined(out.row, out.col), out.node.numel()
        batches.append(batch)
    placed = joining.placed
    if isinstance(placed, PlacedStore):
        requests: list[ColumnRequest] = []
        columns = placed.without_types(joining.store_size)
        for batch, out, e_id in zip(batches, outs, e_ids, strict=True):
            into = batch._store._mapping
            for column, source, on_edges in columns:
                if not on_edges:
                    requests.append((column, source, out.node, HOMOGENEOUS_NODE, into))
                elif e_id is not None:
                    requests.append((column, source, e_id, HOMOGENEOUS_EDGE, into))
        nbytes = _gather(joining, requests)
    else:
        nbytes = 0
        for batch, out, e_id in zip(batches, outs, e_ids, strict=True):
            wanted: list[TensorAttr] = []
            for attr in feature_store.get_all_tensor_attrs():
                attr = whole(attr, homogeneous=True)
                size = feature_store.get_tensor_size(attr) if num_nodes is not None else None
                of_edges = is_of_edges(joining.store_size, attr.attr_name, size[0] if size else None)
                attr.index = e_id if of_edges else out.node
                if attr.index is not None:
                    wanted.append(attr)
            rows = _fetch(feature_store, wanted, gpu)
            for attr, value in zip(wanted, rows, strict=True):
                batch[attr.attr_name] = value
            nbytes += _bytes_of(rows)
    for batch, out, e_id in zip(batches, outs, e_ids, strict=True):
        into = batch._store._mapping
        into.setdefault("n_id", out.node)
        if e_id is not None:
            into.setdefault("e_id", e_id)
    return batches, nbytes


def join_hetero_store(
    joining: Joining, outs: Sequence[HeteroSamplerOutput], perm: Permutation
) -> tuple[list[HeteroData], int]:
    """Return batches of stores with types, whose edges are still to be put, and the bytes of their features."""
    assert perm is None or isinstance(perm, Mapping)
    (feature_store, graph_store), gpu, custom_cls = joining.data, joining.gpu, joining.custom_cls
    pairs = joining.placed.pairs if isinstance(joining.placed, PlacedStore) else None
    batches: list[HeteroData] = []
    requests: list[ColumnRequest] = []
    nbytes = 0
    for out in outs:
        batch = HeteroData() if custom_cls is None else custom_cls()
        batches.append(batch)
        for node_type, node in out.node.items():
            batch[node_type].num_nodes = node.numel()
        for edge_attr in graph_store.get_all_edge_attrs():
            edge_type = edge_attr.edge_type
            if edge_type in out.row and edge_type in out.col:
                batch[edge_type]._mapping["edge_index"] = None
        if pairs is not None:
            requests += [
                (column, source, index, column.group, batch[column.group]._mapping)
                for column, source in pairs
                if column.group is not None and (index := _ids_of(column.group, out, perm)) is not None
            ]
            continue
        wanted = [copy.copy(attr) for attr in feature_store.get_all_tensor_attrs()]
        for attr in wanted:
            attr.index = _ids_of(attr.group_name, out, perm)
        wanted = [attr for attr in wanted if attr.index is not None]
        rows = _fetch(feature_store, wanted, gpu)
        for attr, value in zip(wanted, rows, strict=True):
            batch[attr.group_name][attr.attr_name] = value
        nbytes += _bytes_of(rows)
    if pairs is not None:
        nbytes = _gather(joining, requests)
    for batch, out in zip(batches, outs, strict=True):
        set_ids(batch, out, perm)
    return batches, nbytes


def _ids_of(
    group: NodeType | EdgeType, out: HeteroSamplerOutput, perm: Mapping[EdgeType, Tensor | None] | None
) -> Tensor | None:
    """Return the ids of nodes or edges of a type; ``None``: none, or unknown."""
    if isinstance(group, tuple):
        return edge_ids((out.edge or {}).get(group), None if perm is None else perm.get(group))
    return out.node.get(group)  # type: ignore[no-any-return]  # PyG is untyped


_DATA = Data()


def blank_data() -> tuple[Data, Attributes]:
    """Return ``Data()``, in a tenth of its time, and its attributes."""
    batch, store = object.__new__(Data), object.__new__(type(_DATA._store))
    into: Attributes = {}
    batch.__dict__.update(_DATA.__dict__)
    store.__dict__.update(_DATA._store.__dict__, _mapping=into, _parent=weakref.ref(batch))
    batch.__dict__["_store"] = store
    return batch, into


def _gather(joining: Joining, requests: list[ColumnRequest]) -> int:
    """Write rows of manyhop's store into batches on a GPU. Return the number of bytes."""
    assert joining.gpu is not None
    bounds = joining.bounds
    rows = joining.gpu.gather(
        [RowRequest(source, index, 0, column.title, bounds.get(kind)) for column, source, index, kind, _ in requests]
    )
    for (column, _, _, _, into), value in zip(requests, rows, strict=True):
        into[column.name] = value
    return _bytes_of(rows)


def _bytes_of(rows: list[object]) -> int:
    """Return the bytes of rows that have ``nbytes``."""
    return sum([getattr(value, "nbytes", 0) for value in rows])


def _fetch(feature_store: FeatureStore, wanted: list[TensorAttr], gpu: GPURuntime | None) -> list[object]:
    """Request all rows from the store by ids on the CPU, and move them to the GPU, if any.

    Raises:
        FeatureError: the store does not return one row per id.
    """
    if gpu is not None:
        wanted = [copy.copy(attr) for attr in wanted]
        for attr in wanted:
            attr.index = attr.index.cpu()
    rows: list[object] = feature_store.multi_get_tensor(wanted)
    for attr, value in zip(wanted, rows, strict=True):
        if isinstance(value, Tensor | np.ndarray) and value.shape[:1] != attr.index.shape:
            raise FeatureError(
                f"Expected the {type(feature_store).__name__} to give a row of {attr.attr_name!r} of "
                f"{attr.group_name!r} for each of {attr.index.numel()} ids, got shape {list(value.shape)}. Return the "
                "rows of attr.index, in its order."
            )
    return rows if gpu is None else [v.to(gpu.device) if isinstance(v, Tensor) else v for v in rows]
