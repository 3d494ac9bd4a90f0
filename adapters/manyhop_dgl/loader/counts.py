"""What is in a batch, for the statistics of a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dgl
from torch import Tensor

from manyhop.loading.pipeline import Padded
from manyhop_dgl.edges.tensors import EdgeTensors
from manyhop_dgl.nested import all_in_nested
from manyhop_dgl.samplers.tensors import BlockTensors


def counts_of(batches: Sequence[object], indices: object = None) -> dict[str, int]:
    """Return seeds, nodes and edges of batches, without padding, as ``Stats.count`` takes them.

    Args:
        batches: samples, or what a sampler returned.
        indices: seeds of the latter.
    """
    seeds = nodes = edges = 0
    others: list[dict[str, int]] = []
    for batch in batches:
        if isinstance(batch, BlockTensors) and batch.padding is None:
            hops = batch.hops
            seeds += sum(hops.num_nodes[0].values())
            nodes += sum(hops.num_nodes[-1].values())
            for of_hops in hops.num_edges.values():
                edges += sum(of_hops)
        else:
            others.append(_counts_of(batch, indices))
    total = {"seeds": seeds, "nodes": nodes, "edges": edges}
    for counts in others:
        for name, number in counts.items():
            total[name] = total.get(name, 0) + number
    return total


def _counts_of(batch: object, indices: object) -> dict[str, int]:
    if isinstance(batch, BlockTensors):
        assert batch.padding is not None
        return _without_padding(batch, batch.padding)
    if isinstance(batch, EdgeTensors):
        if batch.sample.padding is not None:
            return _without_padding(batch, batch.sample.padding)
        return counts_of([batch.sample]) | {"seeds": _total(batch.ids)}
    blocks = batch[-1] if isinstance(batch, tuple) and batch and isinstance(batch[-1], list) else batch
    graphs = all_in_nested(dgl.DGLGraph, blocks)
    given = batch[0] if isinstance(batch, tuple) and batch and not all_in_nested(dgl.DGLGraph, batch[0]) else None
    return {
        "seeds": _total(indices),
        "nodes": sum(g.num_src_nodes() for g in graphs[:1]) if given is None else _total(given),
        "edges": sum(g.num_edges() for g in graphs),
    }


def _without_padding(batch: BlockTensors | EdgeTensors, padded: Padded) -> dict[str, int]:
    seeds = sum(hops[0] for hops in padded.counts.nodes.values())
    if isinstance(batch, EdgeTensors):
        seeds = sum((batch.num_edges or {}).values())
    nodes, edges = (sum(map(sum, by_type.values())) for by_type in (padded.counts.nodes, padded.counts.edges))
    return {"seeds": seeds, "nodes": nodes, "edges": edges, "padded": 1, "fit": int(padded.grown == 0)}


def _total(values: object) -> int:
    """Entries of a tensor, or of all tensors in a dictionary; 0 for what is neither."""
    if isinstance(values, Mapping):
        return sum(map(_total, values.values()))
    return values.shape[0] if isinstance(values, Tensor) else 0
