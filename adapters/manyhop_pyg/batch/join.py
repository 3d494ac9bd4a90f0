"""Join samples with the features of a loader's data, wherever both are; the edges of a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch_geometric import EdgeIndex
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from manyhop.errors import InputError
from manyhop.features import gather
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.loading import current_batch
from manyhop.loading.gpu.samples import upload
from manyhop.loading.pipeline import RankBatch
from manyhop_pyg.batch.assemble import (
    Gathered,
    Joining,
    Rows,
    begin_planned,
    begin_stored,
    ids_of,
    joined,
    label_data,
    label_types,
    read_stored,
)
from manyhop_pyg.batch.columns import DataPlan, attributes_of
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import Attributes, Batch, Permutation, Sample

_MARK = "_manyhop_sorted"


def uploaded(out: Sample, perm: Permutation, device: torch.device) -> tuple[Sample, Permutation]:
    """Return a sample on the device with the user's ids of edges, and the permutation that is left to apply."""
    hetero = isinstance(out, HeteroSamplerOutput)
    some = next(iter(out.node.values()), None) if hetero else out.node
    if some is None or some.device == device:
        return out, perm
    values = {name: getattr(out, name) for name in ("node", "row", "col", "edge", "batch", "orig_row", "orig_col")}
    values["metadata"], ids = out.metadata, ids_of(out, perm)
    if out.edge is not None:
        values["edge"] = {t: ids[t] for t in out.edge} if hetero else ids[HOMOGENEOUS_EDGE]
    leaves, structure = pytree.tree_flatten(values)
    sent = upload([leaf if isinstance(leaf, Tensor) else None for leaf in leaves], device)
    both = zip(leaves, sent, strict=True)
    values = pytree.tree_unflatten([leaf if there is None else there for leaf, there in both], structure)
    kind = HeteroSamplerOutput if hetero else SamplerOutput
    return kind(**values, num_sampled_nodes=out.num_sampled_nodes, num_sampled_edges=out.num_sampled_edges), None


def join(joining: Joining, outs: Sequence[Sample], times: list[float]) -> tuple[list[Batch], list[Sample], int]:
    """Join samples with features: return batches without edges and labels, their samples, and the bytes of the rows.

    A GPU gathers the rows of all batches at once. ``times`` gets the beginning and the end of the gather.
    """
    gpu, padding, perm = joining.gpu, joining.padding, joining.sampler.edge_permutation
    for out in outs:
        if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):  # a union would be made anew for each batch
            raise TypeError(f"'{joining.loader}' found invalid type: '{type(out)}'")
    if gpu is not None:
        taken = [uploaded(out, perm, gpu.device) for out in outs]
        outs, perm = [out for out, _ in taken], taken[0][1]
    if padding is not None:
        outs = padding.pad(outs)
    plan = joining.placed if isinstance(joining.placed, DataPlan) else None
    if padding is not None and plan is not None and plan.embeddings:
        raise InputError(
            f"Expected no embedding among the data with pad='auto', got {plan.embeddings[0]!r}: padding nodes have no "
            "rows. Remove it from the data, and call it with batch.n_id."
        )
    rows = Rows(None if gpu is None else gpu.device)
    if plan is not None:
        batches = [begin_planned(plan, out, perm, rows, joining.bounds) for out in outs]
    elif joining.placed is not None:
        batches = [begin_stored(joining, out, perm, rows) for out in outs]
    times.append(time.perf_counter())
    start = None if gpu is None else gpu.start_gather()
    if joining.placed is None:
        read = [read_stored(joining, out, perm) for out in outs]
        batches, nbytes = [batch for batch, _ in read], sum([of_batch for _, of_batch in read])
    elif gpu is None:
        # As many threads as torch's operators have here: all cores in the caller, one in a thread of the loader.
        threads = joining.copy_threads or torch.get_num_threads()
        nbytes = rows.put(gather(rows.requests, pool=joining.buffers, threads=threads))
    else:
        nbytes = rows.put(gpu.gather(rows.requests, threads=joining.copy_threads))
    if gpu is not None:
        gpu.end_gather(start, len(outs))
    if padding is not None:
        permuted = joining.sampler.edge_permutation is not None
        padding.clear(batches, outs, plan or joining.data, joining.store_size, permuted=permuted)
    times.append(time.perf_counter())
    return batches, list(outs), nbytes


def join_one(joining: Joining, out: Sample) -> Gathered:
    """Return the batch of a sample, transformed, with its rows."""
    start = time.perf_counter()
    times: list[float] = []
    if joining.transform is not None:
        out = joining.transform(out)
    (batch,), (out,), nbytes = join(joining, [out], times)
    rank_batch = current_batch()
    if rank_batch is not None:
        stats = joining.stats
        if joining.gpu is None:
            stats.record(rank_batch.batch, "assemble", start, times[0])
            stats.record(rank_batch.batch, "gather", times[0], times[1])
        else:  # which measures gathering itself
            stats.record(rank_batch.batch, "assemble", start, times[1])
        rank_batch.contents["gathered_bytes"] = nbytes
    return Gathered(batch, out, joining, rank_batch)


def finish_batches(
    joining: Joining, batches: Sequence[Batch], outs: Sequence[Sample], rank_batches: Sequence[RankBatch | None]
) -> None:
    """Set edges, labels and masks of batches that are joined with features."""
    _put_edges(joining, batches, outs)
    for batch, out, rank_batch in zip(batches, outs, rank_batches, strict=True):
        if isinstance(out, SamplerOutput):
            label_data(batch, out)
        else:
            label_types(batch, out)
        seeds = joining.label(batch, out)
        if joining.distributed:
            _mark_padding(joining, seeds, out, whole=rank_batch is not None and rank_batch.is_padding)
        if joining.padding is not None:
            joining.padding.label(batch, out, seeds)
            if rank_batch is not None:
                rank_batch.contents.update(padded=1, fit=int(out.padding.padded.grown == 0))


def _mark_padding(joining: Joining, seeds: Sequence[Attributes], out: Sample, *, whole: bool) -> None:
    """Set ``is_padding`` of the seeds of each type; ``whole``: the batch fills up a round of the ranks."""
    n = out.metadata[0].numel()
    marks = torch.zeros(n, dtype=torch.bool) if joining.gpu is None else joining.gpu.marks.take(n)
    if whole:
        marks[:] = True
    parts = [marks] if len(seeds) == 1 else marks.split_with_sizes(list(out.metadata[2].values()))
    for attributes, mark in zip(seeds, parts, strict=True):
        attributes["is_padding"] = mark


def _put_edges(joining: Joining, batches: Sequence[Batch], outs: Sequence[Sample]) -> None:
    """Set ``edge_index`` of batches that have none, and mark its order."""
    plan, transformed = joining.placed, joining.transform is not None
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
                    if row is None or col is None:
                        some = next(iter(out.node.values()), None)
                        device = None if some is None else some.device
                        store._mapping["edge_index"] = torch.empty(2, 0, dtype=torch.int64, device=device)
                    else:
                        store._mapping["edge_index"] = joined(row, col)
        for kind, device in plan.edge_index_devices.items() if plan is not None else ():
            moved: dict[str, Any] = attributes_of(batch, kind)
            moved["edge_index"] = moved["edge_index"].to(device)
        if plan is not None and plan.edge_index_types:
            wrap_edges(plan, batch, out, joining.sampler, transformed=transformed)
    mark_edges(batches, outs, joining.sampler, transformed=transformed)


def wrap_edges(plan: DataPlan, batch: Batch, out: Sample, sampler: BaseSampler, *, transformed: bool) -> None:
    """Set sizes and, for manyhop's samplers, the order of a batch's ``EdgeIndex``."""
    order = None if transformed else order_of(sampler)
    undirected = order is not None and sampler.subgraph_type == SubgraphType.bidirectional and not sampler.is_hetero
    for edge_type in plan.edge_index_types:
        into, node = attributes_of(batch, edge_type), out.node
        ends = (node.get(edge_type[0]), node.get(edge_type[2])) if isinstance(node, dict) else (node, node)
        num_src, num_dst = (0 if node is None else node.numel() for node in ends)
        into["edge_index"] = EdgeIndex(
            into["edge_index"], sparse_size=(num_src, num_dst), sort_order=order, is_undirected=undirected
        )


def mark_edges(batches: Sequence[Batch], outs: Sequence[Sample], sampler: BaseSampler, *, transformed: bool) -> None:
    """Note on edges of batches that they are sorted by destination, as far as the sampler is known to do so."""
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


def samples_itself(sampler: BaseSampler, *methods: str) -> bool:
    """Return whether a sampler is manyhop's, and the user has not replaced these methods."""
    own, kind = HGTSampler if isinstance(sampler, HGTSampler) else NeighborSampler, type(sampler)
    if not isinstance(sampler, own) or not sampler.__dict__.keys().isdisjoint(methods):
        return False
    return kind is own or all(getattr(kind, method) is getattr(own, method) for method in methods)


def order_of(sampler: BaseSampler) -> str | None:
    """Return the sort order of sampled edges; ``None``: unknown."""
    if not isinstance(sampler, NeighborSampler):
        return None
    if not samples_itself(sampler, "sample_from_nodes", "sample_from_edges"):
        return None
    return "row" if sampler.topology.backward else "col"


class Hops(NamedTuple):
    """Numbers of nodes and edges that each hop of a sample added, seeds first."""

    src: Sequence[int]
    """``[num_hops + 1]``: nodes of the sources' type, seeds first."""
    dst: Sequence[int]
    """``[num_hops + 1]``: nodes of the destinations' type, seeds first."""
    edges: Sequence[int]
    """``[num_hops]``: edges, whose destinations the hop before added."""


def mark_sorted(edge_index: Tensor, hops: Hops | None = None) -> None:
    """Mark a tensor's edges as sorted by destination, until the tensor changes.

    Inference tensors are not marked, since their changes are not counted.

    Args:
        edge_index: ``[2, num_edges]``.
        hops: numbers that each hop added; ``None``: unknown.
    """
    if not edge_index.is_inference():
        setattr(edge_index, _MARK, (id(edge_index), edge_index._version, hops))


def is_sorted(edge_index: Tensor) -> bool:
    """Return whether :func:`mark_sorted` has marked this tensor."""
    return _mark(edge_index) is not None


def hops_of(edge_index: Tensor) -> Hops | None:
    """Return the hops of :func:`mark_sorted` for this tensor."""
    mark = _mark(edge_index)
    return None if mark is None else mark[2]


def _mark(edge_index: Tensor) -> tuple[int, int, Hops | None] | None:
    mark: tuple[int, int, Hops | None] | None = getattr(edge_index, _MARK, None)
    return mark if mark is not None and mark[:2] == (id(edge_index), edge_index._version) else None
