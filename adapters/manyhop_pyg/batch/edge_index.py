"""Edges of batches, as PyG's ``EdgeIndex`` where those of the data are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from manyhop_pyg.batch.columns import DataPlan
from manyhop_pyg.samplers.neighbor import NeighborSampler, has_own_sample
from manyhop_pyg.samplers.output import joined
from manyhop_pyg.typing import Batch, Sample
from manyhop_train.aggregation import Hops, mark_sorted

if TYPE_CHECKING:
    from manyhop_pyg.batch.joining import Joining


def put_edges(joining: Joining, batches: Sequence[Batch], outs: Sequence[Sample]) -> None:
    """Set ``edge_index`` of batches, wherever they have none yet, with what is known of its order."""
    plan, transformed = joining.placed, joining.transforms_samples
    if not isinstance(plan, DataPlan):
        plan = None
    for batch, out in zip(batches, outs, strict=True):
        if isinstance(out, SamplerOutput):
            into = batch._store._mapping
            if into.get("edge_index", batch) is None:
                into["edge_index"] = joined(out.row, out.col)
        else:
            for kind, store in batch._edge_store_dict.items():
                if store._mapping.get("edge_index", batch) is None:
                    row, col = out.row.get(kind), out.col.get(kind)
                    store._mapping["edge_index"] = _no_edges(out) if row is None or col is None else joined(row, col)
        if plan is not None and plan.edge_index_devices:
            _follow_data(plan, batch)
        if plan is not None and plan.edge_index_types:
            wrap_edges(plan, batch, out, joining.sampler, transformed=transformed)
    mark_edges(batches, outs, joining.sampler, transformed=transformed)


def _no_edges(out: Sample) -> Tensor:
    """Return ``[2, 0]`` on the device of the sample."""
    some = next(iter(out.node.values()), None)
    return torch.empty(2, 0, dtype=torch.int64, device=None if some is None else some.device)


def _follow_data(plan: DataPlan, batch: Batch) -> None:
    """Move edges to where those of the data are."""
    for kind, device in plan.edge_index_devices.items():
        into = (batch._store if isinstance(batch, Data) else batch._edge_store_dict[kind])._mapping
        if into["edge_index"].device != device:
            into["edge_index"] = into["edge_index"].to(device)


def wrap_edges(plan: DataPlan, batch: Batch, out: Sample, sampler: BaseSampler, *, transformed: bool) -> None:
    """Give the edges of a batch their sizes and, as far as the sampler is known to keep it, their order.

    Args:
        plan: of the data.
        batch: joined with its features.
        out: the sample.
        sampler: made the sample.
        transformed: whether the user has changed the sample.
    """
    order = None if transformed else order_of(sampler)
    undirected = order is not None and sampler.subgraph_type == SubgraphType.bidirectional and not sampler.is_hetero
    for edge_type in plan.edge_index_types:
        if isinstance(out, SamplerOutput):
            into, ends = batch._store._mapping, (out.node, out.node)
        else:
            into, ends = (
                batch._edge_store_dict[edge_type]._mapping,
                (out.node.get(edge_type[0]), out.node.get(edge_type[2])),
            )
        num_src, num_dst = (0 if node is None else node.numel() for node in ends)
        into["edge_index"] = EdgeIndex(
            into["edge_index"], sparse_size=(num_src, num_dst), sort_order=order, is_undirected=undirected
        )


def mark_edges(batches: Sequence[Batch], outs: Sequence[Sample], sampler: BaseSampler, *, transformed: bool) -> None:
    """Note on edges of batches that they are sorted by destination, as far as the sampler is known to do so.

    Args:
        batches: of :func:`wrap_edges`.
        outs: their samples.
        sampler: made the samples.
        transformed: whether the user has changed the samples.
    """
    if transformed or order_of(sampler) != "col":
        return
    for batch, out in zip(batches, outs, strict=True):
        stores = batch.__dict__.get("_edge_store_dict")  # a look costs less than a call
        nodes, edges = out.num_sampled_nodes, out.num_sampled_edges
        for kind, store in ((None, batch._store),) if stores is None else stores.items():
            edge_index = store._mapping.get("edge_index")
            if isinstance(edge_index, Tensor) and edge_index.layout is torch.strided:
                hops = None
                if nodes is not None and edges is not None:  # else edges are not sampled hop by hop
                    if kind is None:
                        hops = Hops(nodes, nodes, edges)
                    elif kind in edges:
                        hops = Hops(nodes[kind[0]], nodes[kind[2]], edges[kind])
                mark_sorted(edge_index, hops)


def order_of(sampler: BaseSampler) -> str | None:
    """Return the sort order of sampled edges; ``None``: unknown."""
    if not isinstance(sampler, NeighborSampler) or has_own_sample(sampler):
        return None
    return "row" if sampler.topology.backward else "col"
