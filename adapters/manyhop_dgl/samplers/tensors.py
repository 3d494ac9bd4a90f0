"""Samples as blocks of plain tensors: DGL's layout without DGL's objects, on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.pipeline import Counts, Padded
from manyhop.sampling import SampledSubgraph
from manyhop.sampling.cpu.output import Empty, empty

T = TypeVar("T")
Pad = Callable[[Sequence[SampledSubgraph]], list[Padded]]
"""Pads samples to fixed sizes."""


@dataclass(frozen=True, kw_only=True)
class BlockEdges:
    """One block: the edges from its source nodes to its destination nodes, compressed by destination (CSC).

    The destination nodes are the first of the source nodes. In a graph with one edge type, ``indptr``, ``indices``,
    ``edge_ids`` and ``edge_weights`` are tensors, else they are keyed by edge type.
    """

    num_src: dict[NodeType, int]
    """Source nodes per node type: the first nodes of the batch."""

    num_dst: dict[NodeType, int]
    """Destination nodes per node type: the first nodes of the batch."""

    columns: dict[EdgeType, Tensor]
    """``[num_dst + 1]``: where each destination's edges begin."""

    sources: dict[EdgeType, Tensor]
    """``[num_edges]``: the source of each edge, an index into the nodes of the batch."""

    ids: dict[EdgeType, Tensor]
    """``[num_edges]``: the graph's id of each edge."""

    weights: dict[EdgeType, Tensor] | None = None
    """``[num_edges] float32``: what to multiply messages with, where the sampler gives weights."""

    masks: dict[EdgeType, Tensor] | None = None
    """``[num_edges] bool``: which edges are no padding; ``None`` without padding."""

    @property
    def indptr(self) -> Tensor | dict[EdgeType, Tensor]:
        """``columns``, of the one edge type or by edge type."""
        return only(self.columns)

    @property
    def indices(self) -> Tensor | dict[EdgeType, Tensor]:
        """``sources``, of the one edge type or by edge type."""
        return only(self.sources)

    @property
    def edge_ids(self) -> Tensor | dict[EdgeType, Tensor]:
        """``ids``, of the one edge type or by edge type."""
        return only(self.ids)

    @property
    def edge_weights(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``weights``, of the one edge type or by edge type."""
        return None if self.weights is None else only(self.weights, among=len(self.columns))

    @property
    def edge_mask(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``masks``, of the one edge type or by edge type."""
        return None if self.masks is None else only(self.masks)


@dataclass(frozen=True, kw_only=True)
class BlockTensors:
    """A batch: the blocks of all layers, the input layer first. Ids are of the graph's dtype, on the sampler's device.

    In a graph with one node type, ``input_nodes`` and ``output_nodes`` are tensors, else they are keyed by node type.
    """

    node: dict[NodeType, Tensor]
    """``[num_nodes]``: the nodes of the batch: the seeds in the given order, then the others, layer by layer. A block's
    sources are the first ``num_src`` of them, its destinations the first ``num_dst``."""

    num_seeds: dict[NodeType, int]
    """Seeds per node type."""

    blocks: list[BlockEdges]
    """One per layer, the input layer first."""

    node_features: dict[str, Tensor | dict[NodeType, Tensor]] = field(default_factory=dict)
    """Name -> ``[num_nodes, ...]``: rows of the input nodes, where asked for."""

    output_features: dict[str, Tensor | dict[NodeType, Tensor]] = field(default_factory=dict)
    """Name -> ``[num_seeds, ...]``: rows of the output nodes, such as labels, where asked for."""

    edge_features: list[dict[str, Tensor | dict[EdgeType, Tensor]]] = field(default_factory=list)
    """Per block: name -> ``[num_edges, ...]``: rows of its edges, where asked for."""

    masks: dict[NodeType, Tensor] | None = None
    """``[num_nodes] bool``: which nodes are no padding; ``None`` without padding."""

    padding: Padded | None = None
    """What is padding; ``None`` without, and in batches that are complete."""

    @property
    def node_mask(self) -> Tensor | dict[NodeType, Tensor] | None:
        """``masks``, of the one node type or by node type."""
        return None if self.masks is None else only(self.masks)

    @property
    def counts(self) -> Counts:
        """Nodes of each hop, the seeds first, and edges of each hop."""
        hops = self.blocks[::-1]
        nodes = {t: [n, *(block.num_src[t] for block in hops)] for t, n in self.num_seeds.items()}
        return Counts(
            nodes={t: (ends[0], *(b - a for a, b in pairwise(ends))) for t, ends in nodes.items()},
            edges={t: tuple(block.ids[t].numel() for block in hops) for t in hops[0].ids} if hops else {},
        )

    @property
    def input_nodes(self) -> Tensor | dict[NodeType, Tensor]:
        """``[num_nodes]``: the nodes whose features the first layer reads."""
        return only(self.node)

    @property
    def output_nodes(self) -> Tensor | dict[NodeType, Tensor]:
        """``[num_seeds]``: the seeds."""
        return only({t: node[: self.num_seeds[t]] for t, node in self.node.items()})

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> BlockTensors:
        """The same on another device."""
        there = torch.device(device)

        def moved(tensors: Mapping[T, Tensor]) -> dict[T, Tensor]:
            return {t: tensor.to(there, non_blocking=non_blocking) for t, tensor in tensors.items()}

        def moved_rows(rows: dict[str, Tensor | dict[T, Tensor]]) -> dict[str, Tensor | dict[T, Tensor]]:
            return {
                k: v.to(there, non_blocking=non_blocking) if isinstance(v, Tensor) else moved(v)
                for k, v in rows.items()
            }

        blocks = [
            replace(
                block,
                columns=moved(block.columns),
                sources=moved(block.sources),
                ids=moved(block.ids),
                weights=None if block.weights is None else moved(block.weights),
                masks=None if block.masks is None else moved(block.masks),
            )
            for block in self.blocks
        ]
        return replace(
            self,
            node=moved(self.node),
            blocks=blocks,
            node_features=moved_rows(self.node_features),
            output_features=moved_rows(self.output_features),
            edge_features=[moved_rows(rows) for rows in self.edge_features],
            masks=None if self.masks is None else moved(self.masks),
        )


def only(by_type: dict[T, Tensor], among: int | None = None) -> Tensor | dict[T, Tensor]:
    """The tensor of the one type there is; else all, by type. ``among``: how many types the graph has, if more."""
    return next(iter(by_type.values())) if (among or len(by_type)) == 1 else by_type


def cut(
    sample: SampledSubgraph, *, dtype: torch.dtype = torch.int64, empty: Empty = empty, pad: Pad | None = None
) -> BlockTensors:
    """A sample in which every hop asks for all nodes, cut into the blocks of its hops. Blocks are views, not copies.

    Args:
        sample: of a spec with ``expand="all"``.
        dtype: of all ids: int64, or int32 as in a graph whose ``idtype`` it is.
        empty: makes the tensors of the columns, on a CPU.
        pad: pads samples to fixed sizes first; ``None``: they stay as they are.
    """
    return cut_all([sample], dtype=dtype, empty=empty, pad=pad)[0]


def cut_all(
    samples: Sequence[SampledSubgraph],
    *,
    dtype: torch.dtype = torch.int64,
    empty: Empty = empty,
    pad: Pad | None = None,
) -> list[BlockTensors]:
    """The same for several samples on one device, by the same few operations."""
    if pad is not None:
        padded = pad(samples)
        blocks = cut_all([one.sample for one in padded], dtype=dtype, empty=empty)
        return [_with_masks(*both) for both in zip(blocks, padded, strict=True)]
    hops = [_Hops.of(sample) for sample in samples]
    columns = _columns(samples, hops, dtype, empty)
    return [_cut(*one, dtype) for one in zip(samples, hops, columns, strict=True)]


def _with_masks(tensors: BlockTensors, padded: Padded) -> BlockTensors:
    by_hop = {t: mask.split_with_sizes(list(padded.sizes.edges[t])) for t, mask in padded.edge_mask.items()}
    blocks = [
        replace(block, masks={t: parts[hop] for t, parts in by_hop.items()})
        for hop, block in zip(reversed(range(len(tensors.blocks))), tensors.blocks, strict=True)
    ]
    return replace(tensors, blocks=blocks, masks=padded.node_mask, padding=padded)


class _Hops(NamedTuple):
    """The sizes of a sample, hop by hop."""

    num_nodes: list[dict[NodeType, int]]
    """``[num_hops + 1]``: the seeds, then the nodes up to each hop."""

    num_edges: dict[EdgeType, list[int]]
    """``[num_hops]``: the edges of each hop."""

    @staticmethod
    def of(sample: SampledSubgraph) -> _Hops:
        assert sample.num_sampled_nodes is not None
        assert sample.num_sampled_edges is not None
        nodes = [accumulate(counts) for counts in sample.num_sampled_nodes.values()]
        by_hop = [dict(zip(sample.num_sampled_nodes, counts, strict=True)) for counts in zip(*nodes, strict=True)]
        return _Hops(by_hop, sample.num_sampled_edges)


Columns = list[dict[EdgeType, Tensor]]


def _cut(sample: SampledSubgraph, hops: _Hops, columns: Columns, dtype: torch.dtype) -> BlockTensors:
    num_nodes = hops.num_nodes
    sources = {t: _by_hop(row, hops.num_edges[t], dtype) for t, row in sample.row.items()}
    ids = {t: _by_hop(_ids(sample, t), counts, dtype) for t, counts in hops.num_edges.items()}
    weights = sample.edge_weight
    by_hop = None if weights is None else {t: _by_hop(w, hops.num_edges[t]) for t, w in weights.items()}
    blocks = [
        BlockEdges(
            num_src=num_nodes[h + 1],
            num_dst=num_nodes[h],
            columns=columns[h],
            sources={t: parts[h] for t, parts in sources.items()},
            ids={t: parts[h] for t, parts in ids.items()},
            weights=None if by_hop is None else {t: parts[h] for t, parts in by_hop.items()},
        )
        for h in reversed(range(len(columns)))
    ]
    return BlockTensors(node=_cast(sample.node, dtype), num_seeds=num_nodes[0], blocks=blocks)


def _by_hop(values: Tensor, counts: list[int], dtype: torch.dtype | None = None) -> Sequence[Tensor]:
    if dtype is not None and dtype != values.dtype:
        values = values.to(dtype)
    return torch.split_with_sizes(values, counts)


def _ids(sample: SampledSubgraph, edge_type: EdgeType) -> Tensor:
    ids = sample.edge_id[edge_type]
    assert ids is not None
    return ids


def _cast(tensors: Mapping[T, Tensor], dtype: torch.dtype) -> dict[T, Tensor]:
    return {t: tensor if tensor.dtype == dtype else tensor.to(dtype) for t, tensor in tensors.items()}


def _columns(
    samples: Sequence[SampledSubgraph], hops: Sequence[_Hops], dtype: torch.dtype, empty: Empty
) -> list[Columns]:
    """Per sample, hop by hop: where each node's edges begin in its hop, ``[num_dst + 1]`` per edge type."""
    device = next(iter(samples[0].node.values())).device
    sizes = [hop.num_nodes[h][t[2]] + 1 for hop in hops for h in range(len(hop.num_nodes) - 1) for t in hop.num_edges]
    on_cpu = device.type == "cpu"
    memory = empty((sum(sizes),), torch.int64) if on_cpu else torch.empty(sum(sizes), dtype=torch.int64, device=device)
    at = memory.data_ptr()
    table: list[tuple[int, int, int, int]] = []
    for sample, (num_nodes, num_edges) in zip(samples, hops, strict=True):
        begins = {t: col.data_ptr() for t, col in sample.col.items()}
        for h in range(len(num_nodes) - 1):
            for t, counts in num_edges.items():
                num_dst = num_nodes[h][t[2]]
                table.append((begins[t], counts[h], num_dst, at))
                begins[t] += 8 * counts[h]
                at += 8 * (num_dst + 1)
    _fill(np.array(table, np.int64).reshape(-1, 4), device)
    parts = iter(torch.split_with_sizes(memory if dtype == torch.int64 else memory.to(dtype), sizes))
    return [[{t: next(parts) for t in hop.num_edges} for _ in range(len(hop.num_nodes) - 1)] for hop in hops]


def _fill(table: npt.NDArray[np.int64], device: torch.device) -> None:
    if device.type == "cpu":
        from manyhop.sampling.cpu.kernels.columns import fill_indptr

        fill_indptr(table)
    else:
        from manyhop.sampling.gpu.indptr import fill

        fill(table, device)
