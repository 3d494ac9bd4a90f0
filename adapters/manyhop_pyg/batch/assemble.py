"""Join a sample with the user's data or stores, as ``Data`` or ``HeteroData``.

Attributes are read from the user's object for each batch, so replaced, added and deleted attributes take effect. The
handling of each attribute is planned once and reused while the attributes are unchanged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import SparseTensor, TensorFrame

from manyhop.errors import FeatureError, InputError
from manyhop.features import BufferPool, RowRequest
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.pipeline import RankBatch, Stats
from manyhop_embedding import Embedding, RowsAhead
from manyhop_pyg.batch.columns import (
    Column,
    DataPlan,
    PlacedStore,
    StorePlan,
    attributes_of,
)
from manyhop_pyg.data.topologies import kind_of_rows, whole
from manyhop_pyg.typing import Attributes, Batch, Bounds, Permutation, PyGData, Sample, StoreSize, Transform

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_pyg.batch.padding import Padding


class Joining(NamedTuple):
    """Inputs of a join: a snapshot of a loader, whose data may be replaced between batches."""

    loader: str
    """The name of the loader's class, for errors."""
    data: PyGData
    custom_cls: type[Batch] | None
    sampler: BaseSampler
    transform: Transform | None
    """The user's function of samples."""
    gpu: GPURuntime | None
    padding: Padding | None
    placed: DataPlan | PlacedStore | None
    """Source of rows; ``None``: only the store can read them."""
    bounds: Bounds
    store_size: StoreSize
    copy_threads: int | None
    buffers: BufferPool
    stats: Stats
    label: Callable[[Batch, Sample], list[Attributes]]
    """Sets the attributes of seeds; returns the mapping that holds ``input_id``, for each seed type."""
    distributed: bool


class Gathered(NamedTuple):
    """A batch with its rows. Edges, and what else is known of it, are set by ``finish_batches``."""

    batch: Batch
    out: Sample
    """The sample, on the device of the batch."""
    joining: Joining
    rank_batch: RankBatch | None
    """Number of the batch; ``None``: it belongs to no epoch."""

    def values(self) -> list[Collection[object]]:
        """Return values of the sample that become attributes of the batch."""
        out = self.out
        found: list[Collection[object]] = [out.metadata]
        for part in (out.row, out.col, out.batch, out.orig_row, out.orig_col):
            found.append(part.values() if isinstance(part, dict) else (part,))
        return found if self.joining.padding is None else [*found, *self.joining.padding.all_masks(out)]


class Rows:
    """Rows that batches request from all tensors: collected first, then gathered in one call.

    Without ``device``, that of the batches, rows stay on the device of their tensor.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self._requests: list[RowRequest] = []
        self._slots: list[tuple[Attributes, str]] = []
        self._ahead: list[tuple[RowsAhead, RowRequest]] = []

    def add(self, into: Attributes, columns: list[Column], index: Tensor, bound: int | None) -> None:
        """Request rows ``index``, whose ids are below ``bound``, of ``columns`` for ``into``."""
        for key, value, dim, title in columns:
            if isinstance(value, TensorFrame):
                rows = value[index.to(value.device)]
                into[key] = rows if self.device is None else rows.to(self.device)
            else:
                self._requests.append(RowRequest(value, index, dim, title, bound))
                self._slots.append((into, key))

    def add_trainable(
        self, into: Attributes, embeddings: list[tuple[str, Embedding]], index: Tensor, bound: int | None
    ) -> None:
        """Request rows of ``embeddings`` as well, for :func:`finish_trainable`."""
        for key, embedding in embeddings:
            device = index.device if self.device is None else self.device
            ahead, request = embedding.begin(index, device)
            into[key] = ahead
            if request is not None:
                request.bound = bound
                self._ahead.append((ahead, request))

    @property
    def requests(self) -> list[RowRequest]:
        """All requested rows."""
        return [*self._requests, *[request for _, request in self._ahead]] if self._ahead else self._requests

    def put(self, rows: list[Tensor]) -> int:
        """Store the rows of :attr:`requests` in the batches. Return the number of bytes."""
        nbytes = 0
        for (into, key), value in zip(self._slots, rows[: len(self._slots)], strict=True):
            into[key] = value
            nbytes += value.numel() * value.element_size()
        for (ahead, _), value in zip(self._ahead, rows[len(self._slots) :], strict=True):
            ahead.rows = value
            nbytes += value.numel() * value.element_size()
        return nbytes


def edge_ids(edge: Tensor | None, perm: Tensor | None) -> Tensor | None:
    """Return the user's ids ``[num_edges] int64`` of sampled edges; ``perm``: the sampler's permutation."""
    if edge is None:
        return None
    if edge.dtype != torch.int64:
        edge = edge.to(torch.int64)
    return edge if perm is None else perm[edge]


def begin_planned(plan: DataPlan, out: Sample, perm: Permutation, rows: Rows, bounds: Bounds) -> Batch:
    """Return a batch of all types, including empty ones, without edges, whose attributes ``rows`` requests."""
    batch = plan.begin()
    if isinstance(out, SamplerOutput):
        assert perm is None or isinstance(perm, Tensor)
        n, into, store = out.node.numel(), batch._store._mapping, plan.edges[HOMOGENEOUS_EDGE]
        e_id = edge_ids(out.edge, perm)
        _add_nodes(into, store, out.node, rows, bounds.get(HOMOGENEOUS_NODE))
        _add_edges(into, store, out.row, out.col, e_id, (n, n), rows, bounds.get(HOMOGENEOUS_EDGE))
        into.setdefault("n_id", out.node)
        if e_id is not None:
            into.setdefault("e_id", e_id)
        return batch
    ids, some = ids_of(out, perm), next(iter(out.node.values()), None)
    empty = torch.empty(0, dtype=torch.int64, device=None if some is None else some.device)
    for node_type, store in plan.nodes.items():
        into = batch._node_store_dict[node_type]._mapping
        _add_nodes(into, store, out.node.get(node_type, empty), rows, bounds.get(node_type))
    for edge_type, store in plan.edges.items():
        into = batch._edge_store_dict[edge_type]._mapping
        row, col = out.row.get(edge_type, empty), out.col.get(edge_type, empty)
        e_id = None if out.edge is None else ids.get(edge_type, empty)
        size = out.node.get(edge_type[0], empty).numel(), out.node.get(edge_type[2], empty).numel()
        _add_edges(into, store, row, col, e_id, size, rows, bounds.get(edge_type))
    _set_ids(batch, ids)
    return batch


def _add_nodes(into: Attributes, store: StorePlan, node: Tensor, rows: Rows, bound: int | None) -> None:
    if store.num_nodes:
        into["num_nodes"] = node.numel()
    rows.add(into, store.of_nodes, node, bound)
    if store.embeddings:
        rows.add_trainable(into, store.embeddings, node, bound)


def _add_edges(
    into: Attributes,
    store: StorePlan,
    row: Tensor,
    col: Tensor,
    e_id: Tensor | None,
    size: tuple[int, int],
    rows: Rows,
    bound: int | None,
) -> None:
    """Request rows of edges, and set the sampled edges as ``adj_t`` or ``adj`` if the user's data has these."""
    for key, value in store.adjacencies:
        device = rows.device or value.device()
        row, col = row.to(device), col.to(device)
        weight = value.storage.value()
        if weight is not None:
            weight = None if e_id is None else weight.index_select(0, e_id.to(weight.device)).to(device)
        ends, sizes = ((row, col), size) if key == "adj" else ((col, row), size[::-1])
        into[key] = SparseTensor(
            row=ends[0], col=ends[1], value=weight, sparse_sizes=sizes, is_sorted=False, trust_data=True
        )
    if e_id is not None:
        rows.add(into, store.of_edges, e_id, bound)
        return
    for column in store.of_edges:  # the sampler has no ids of these edges
        del into[column.key]


def finish_trainable(batch: object) -> None:
    """Set the current rows of embeddings, in the training thread; raise InputError for a batch of another class."""
    if not isinstance(batch, Data | HeteroData):
        raise InputError(
            f"Expected batches of Data or HeteroData, whose nodes have an embedding, got a {type(batch).__name__}. "
            "Remove the embedding from the data, and call it with batch.n_id."
        )
    for store in batch.stores:
        for key, value in store._mapping.items():
            if type(value) is RowsAhead:
                store._mapping[key] = value.finish()


def label_data(batch: Data, out: SamplerOutput) -> None:
    """Set the other attributes of a sample, after the rows: the data may have attributes of the same names."""
    into = batch._store._mapping
    put(into, batch=out.batch, num_sampled_nodes=out.num_sampled_nodes, num_sampled_edges=out.num_sampled_edges)
    if out.orig_row is not None and out.orig_col is not None:
        batch._orig_edge_index = torch.stack([out.orig_row, out.orig_col])


def label_types(batch: HeteroData, out: HeteroSamplerOutput) -> None:
    """Set the other attributes of a sample for each node type and each edge type."""
    for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
        for kind, value in (getattr(out, name) or {}).items():
            put(attributes_of(batch, kind), **{name: value})
    if out.orig_row is not None and out.orig_col is not None:
        for edge_type, row in out.orig_row.items():
            batch[edge_type]._orig_edge_index = torch.stack([row, out.orig_col[edge_type]])


def put(into: Attributes, **values: object) -> None:
    """Set attributes as PyG's storages do: ``None`` deletes one."""
    for key, value in values.items():
        if value is None:
            into.pop(key, None)
        else:
            into[key] = value


def begin_stored(joining: Joining, out: Sample, perm: Permutation, rows: Rows) -> Batch:
    """Return a batch of a pair of stores without edges, which ``_put_edges`` sets, and rows, which ``rows`` fetches."""
    assert isinstance(joining.placed, PlacedStore)
    batch, ids = _begin(joining, out), ids_of(out, perm)
    for kind, columns in joining.placed.by_kind(joining.store_size if isinstance(out, SamplerOutput) else None).items():
        index = ids.get(kind)
        if index is not None:
            into = attributes_of(batch, kind)
            for column in columns:
                into[column.key] = None  # so that ids follow
            rows.add(into, columns, index, joining.bounds.get(kind))
    _set_ids(batch, ids)
    return batch


def read_stored(joining: Joining, out: Sample, perm: Permutation) -> tuple[Batch, int]:
    """Return a batch of a pair of stores, without edges, with the rows that the store returns, and their bytes."""
    batch, ids = _begin(joining, out), ids_of(out, perm)
    nbytes = _read(joining, batch, ids)
    _set_ids(batch, ids)
    return batch, nbytes


def _set_ids(batch: Batch, ids: Mapping[NodeType | EdgeType, Tensor | None]) -> None:
    """Set ``n_id`` and ``e_id`` unless the data has attributes of these names."""
    for kind, index in ids.items():
        if index is not None:
            attributes_of(batch, kind).setdefault("n_id" if isinstance(kind, str) else "e_id", index)


def _begin(joining: Joining, out: Sample) -> Batch:
    """Return a batch without features."""
    if isinstance(out, SamplerOutput):
        if joining.custom_cls is None:
            batch, into = blank_data()
            into["edge_index"], into["num_nodes"] = None, out.node.numel()
        else:
            batch = joining.custom_cls()
            batch.edge_index, batch.num_nodes = joined(out.row, out.col), out.node.numel()
        return batch
    batch = HeteroData() if joining.custom_cls is None else joining.custom_cls()
    for node_type, node in out.node.items():
        batch[node_type].num_nodes = node.numel()
    for edge_attr in joining.data[1].get_all_edge_attrs():
        edge_type = edge_attr.edge_type
        if edge_type in out.row and edge_type in out.col:
            batch[edge_type]._mapping["edge_index"] = None
    return batch


def ids_of(out: Sample, perm: Permutation) -> dict[NodeType | EdgeType, Tensor | None]:
    """Return the ids of sampled nodes and edges by type; ``None``: unknown."""
    if isinstance(out, SamplerOutput):
        assert perm is None or isinstance(perm, Tensor)
        return {HOMOGENEOUS_NODE: out.node, HOMOGENEOUS_EDGE: edge_ids(out.edge, perm)}
    assert perm is None or isinstance(perm, Mapping)
    of_edges = {t: edge_ids(edge, None if perm is None else perm.get(t)) for t, edge in (out.edge or {}).items()}
    return {**out.node, **of_edges}


def _read(joining: Joining, batch: Batch, ids: Mapping[NodeType | EdgeType, Tensor | None]) -> int:
    """Set the rows that the user's store returns for ids on the CPU; return their bytes."""
    store, gpu, homogeneous = joining.data[0], joining.gpu, not isinstance(batch, HeteroData)
    wanted: list[TensorAttr] = []
    for attr in store.get_all_tensor_attrs():
        attr, kind = whole(attr, homogeneous=homogeneous), attr.group_name
        if homogeneous:
            size = store.get_tensor_size(attr) if joining.store_size[0] is not None else None
            kind = kind_of_rows(kind, attr.attr_name, size[0] if size else None, joining.store_size)
        index = ids.get(kind)
        if index is not None:
            attr.index = index if gpu is None else index.cpu()
            wanted.append(attr)
    rows: list[object] = store.multi_get_tensor(wanted)
    for attr, value in zip(wanted, rows, strict=True):
        if isinstance(value, Tensor | np.ndarray) and value.shape[:1] != attr.index.shape:
            raise FeatureError(
                f"Expected the {type(store).__name__} to give a row of {attr.attr_name!r} of {attr.group_name!r} for "
                f"each of {attr.index.numel()} ids, got shape {list(value.shape)}. Return the rows of attr.index, in "
                "its order."
            )
    if gpu is not None:
        rows = [value.to(gpu.device) if isinstance(value, Tensor) else value for value in rows]
    for attr, value in zip(wanted, rows, strict=True):
        (batch if homogeneous else batch[attr.group_name])[attr.attr_name] = value
    return sum([getattr(value, "nbytes", 0) for value in rows])


_DATA = Data()


def blank_data() -> tuple[Data, Attributes]:
    """Return ``Data()``, in a tenth of its time, and its attributes."""
    batch, store = object.__new__(Data), object.__new__(type(_DATA._store))
    into: Attributes = {}
    batch.__dict__.update(_DATA.__dict__)
    store.__dict__.update(_DATA._store.__dict__, _mapping=into, _parent=weakref.ref(batch))
    batch.__dict__["_store"] = store
    return batch, into


def joined(row: Tensor, col: Tensor) -> Tensor:
    """Return ``[2, num_edges]`` of two ``[num_edges]``, without a copy if they are adjacent in memory."""
    n = row.numel()
    if (
        row.stride() == col.stride() == (1,)
        and row.numel() == col.numel()
        and row.dtype == col.dtype
        and col.storage_offset() == row.storage_offset() + n
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    ):
        return row.as_strided((2, n), (n, 1))
    return torch.stack([row, col])
