"""Samples as blocks of plain tensors: DGL's layout without DGL's objects, on any device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.sampling import SampledSubgraph
from manyhop.sampling._cpu_output import Empty, empty

T = TypeVar("T")


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
        )


def only(by_type: dict[T, Tensor], among: int | None = None) -> Tensor | dict[T, Tensor]:
    """The tensor of the one type there is; else all, by type. ``among``: how many types the graph has, if more."""
    return next(iter(by_type.values())) if (among or len(by_type)) == 1 else by_type


def cut(
    sample: SampledSubgraph,
    *,
    dtype: torch.dtype = torch.int64,
    empty: Empty = empty,
) -> BlockTensors:
    """A sample in which every hop asks for all nodes, cut into the blocks of its hops. Blocks are views, not copies.

    Args:
        sample: of a spec with ``expand="all"``.
        dtype: of all ids: int64, or int32 as in a graph whose ``idtype`` it is.
        empty: makes the tensors of the columns.
    """
    assert sample.num_sampled_nodes is not None
    assert sample.num_sampled_edges is not None
    nodes = {t: list(accumulate(counts)) for t, counts in sample.num_sampled_nodes.items()}
    edges = {t: [0, *accumulate(counts)] for t, counts in sample.num_sampled_edges.items()}
    num_hops = len(next(iter(nodes.values()))) - 1
    num_dst = [{t: counts[h] for t, counts in nodes.items()} for h in range(num_hops + 1)]
    columns = _columns(sample, num_dst, edges, empty)
    node, row = _cast(sample.node, dtype), _cast(sample.row, dtype)
    ids = _cast({t: _ids(sample, t) for t in edges}, dtype)
    if dtype != torch.int64:
        columns = [_cast(hop, dtype) for hop in columns]
    blocks = []
    for h in reversed(range(num_hops)):
        ranges = [(t, slice(ends[h], ends[h + 1])) for t, ends in edges.items()]
        blocks.append(
            BlockEdges(
                num_src=num_dst[h + 1],
                num_dst=num_dst[h],
                columns=columns[h],
                sources={t: row[t][part] for t, part in ranges},
                ids={t: ids[t][part] for t, part in ranges},
                weights=None if sample.edge_weight is None else {t: sample.edge_weight[t][p] for t, p in ranges},
            )
        )
    return BlockTensors(node=node, num_seeds=num_dst[0], blocks=blocks)


def _ids(sample: SampledSubgraph, edge_type: EdgeType) -> Tensor:
    ids = sample.edge_id[edge_type]
    assert ids is not None
    return ids


def _cast(tensors: Mapping[T, Tensor], dtype: torch.dtype) -> dict[T, Tensor]:
    return {t: tensor.to(dtype) for t, tensor in tensors.items()}


def _is_on_cpu(tensors: Mapping[T, Tensor]) -> bool:
    return next(iter(tensors.values())).device.type == "cpu"


def _columns(
    sample: SampledSubgraph, num_dst: list[dict[NodeType, int]], edges: dict[EdgeType, list[int]], empty: Empty
) -> list[dict[EdgeType, Tensor]]:
    """Hop by hop: where each node's edges begin in its hop, ``[num_dst + 1] int64`` per edge type."""
    if not _is_on_cpu(sample.node):
        device = next(iter(sample.node.values())).device
        return [
            {
                t: torch.searchsorted(
                    sample.col[t][ends[h] : ends[h + 1]], torch.arange(num_dst[h][t[2]] + 1, device=device)
                )
                for t, ends in edges.items()
            }
            for h in range(len(num_dst) - 1)
        ]
    from manyhop.sampling._cpu_columns import fill_indptr

    sizes = [num_dst[h][t[2]] + 1 for h in range(len(num_dst) - 1) for t in edges]
    parts = iter(torch.split_with_sizes(empty((sum(sizes),), torch.int64), sizes))
    found: list[dict[EdgeType, Tensor]] = []
    table = []
    for h in range(len(num_dst) - 1):
        found.append({})
        for t, ends in edges.items():
            indptr = found[h][t] = next(parts)
            begin = sample.col[t].data_ptr() + 8 * ends[h]
            table.append((begin, ends[h + 1] - ends[h], num_dst[h][t[2]], indptr.data_ptr()))
    fill_indptr(np.array(table, np.int64).reshape(-1, 4))
    return found
