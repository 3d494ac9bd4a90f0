"""Samples of the engine cut into blocks of tensors: where the edges of each node begin, for all blocks at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import NodeType
from manyhop.loading.pipeline import Padded
from manyhop.sampling import SampledSubgraph
from manyhop.sampling.cpu.output import Empty, empty
from manyhop_dgl.samplers.tensors import BlockTensors, Hops

T = TypeVar("T")
Pad = Callable[[Sequence[SampledSubgraph]], list[Padded]]
"""Pads samples to fixed sizes."""


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
    num_nodes = [nodes_by_hop(sample) for sample in samples]
    columns, sizes = _columns(samples, num_nodes, dtype, empty)
    parts = columns.unsafe_split_with_sizes(sizes)  # as in Hops.cut
    return [_cut(*one, dtype) for one in zip(samples, num_nodes, parts, strict=True)]


def _with_masks(tensors: BlockTensors, padded: Padded) -> BlockTensors:
    hops = replace(tensors.hops, masks=padded.edge_mask)
    return replace(tensors, hops=hops, masks=padded.node_mask, padding=padded)


def nodes_by_hop(sample: SampledSubgraph) -> list[dict[NodeType, int]]:
    """Return ``[num_hops + 1]``: the seeds, then the nodes up to each hop."""
    added = sample.num_sampled_nodes
    assert added is not None
    if len(added) == 1:  # in a third of the time, which matters for small batches
        ((node_type, counts),) = added.items()
        return [{node_type: n} for n in accumulate(counts)]
    return [dict(zip(added, ends, strict=True)) for ends in zip(*map(accumulate, added.values()), strict=True)]


def _cut(
    sample: SampledSubgraph, num_nodes: list[dict[NodeType, int]], columns: Tensor, dtype: torch.dtype
) -> BlockTensors:
    node, row = sample.node, sample.row
    ids: Any = sample.edge_id  # of all types: no reverses of edges were added
    if dtype != torch.int64:
        node, row, ids = _cast(node, dtype), _cast(row, dtype), _cast(ids, dtype)
    assert sample.num_sampled_edges is not None
    hops = Hops(
        num_nodes=num_nodes,
        num_edges=sample.num_sampled_edges,
        columns=columns,
        sources=row,
        ids=ids,
        weights=sample.edge_weight,
    )
    return BlockTensors(node=node, num_seeds=num_nodes[0], hops=hops)


def _cast(tensors: Mapping[T, Tensor], dtype: torch.dtype) -> dict[T, Tensor]:
    return {t: tensor.to(dtype) for t, tensor in tensors.items()}


def columns_of(samples: Sequence[SampledSubgraph], num_nodes: Sequence[list[dict[NodeType, int]]]) -> Sequence[Tensor]:
    """Find where each node's edges begin in a hop, for several samples on one device by one kernel.

    Args:
        samples: of a spec with ``expand="all"``.
        num_nodes: of each, by :func:`nodes_by_hop`.

    Returns:
        Per sample, edge type and hop: ``[num_dst + 1] int64``.
    """
    memory, _ = _columns(samples, num_nodes, torch.int64, empty)
    edges = [sample.num_sampled_edges or {} for sample in samples]
    sizes = [ends[t[2]] + 1 for of, nodes in zip(edges, num_nodes, strict=True) for t in of for ends in nodes[:-1]]
    return memory.unsafe_split_with_sizes(sizes)


def _columns(
    samples: Sequence[SampledSubgraph], num_nodes: Sequence[list[dict[NodeType, int]]], dtype: torch.dtype, empty: Empty
) -> tuple[Tensor, list[int]]:
    """Return the results of :func:`columns_of` one behind the other, and how many entries each sample has of them."""
    device = next(iter(samples[0].node.values())).device
    sizes: list[int] = []
    flat: list[int] = []
    offset = 0
    for sample, nodes in zip(samples, num_nodes, strict=True):
        assert sample.num_sampled_edges is not None
        before = offset
        for t, counts in sample.num_sampled_edges.items():
            begin, kind = sample.col[t].data_ptr(), t[2]
            for count, ends in zip(counts, nodes, strict=False):
                num_dst = ends[kind]
                flat += (begin, count, num_dst, 8 * offset)
                begin += 8 * count
                offset += num_dst + 1
        sizes.append(offset - before)
    on_cpu = device.type == "cpu"
    memory = empty((offset,), torch.int64) if on_cpu else torch.empty(offset, dtype=torch.int64, device=device)
    table = np.array(flat, np.int64).reshape(-1, 4)
    table[:, 3] += memory.data_ptr()
    _fill(table, device)
    return memory if memory.dtype == dtype else memory.to(dtype), sizes


def _fill(table: npt.NDArray[np.int64], device: torch.device) -> None:
    if device.type == "cpu":
        from manyhop.sampling.cpu.kernels.columns import fill_indptr

        fill_indptr(table)
    else:
        from manyhop.sampling.gpu.lookup import fill

        fill(table, device)
