"""Samples of the engine in PyG's terms, and what samplers sample with on the CPU."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from manyhop.features import BufferPool
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, Graph
from manyhop.ranks import cuda
from manyhop.sampling import SampledSubgraph
from manyhop.sampling.engines import Engine, HostEngine, Spec, engine_for
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.typing import Sample

V = TypeVar("V")


def to_sampler_output(sample: SampledSubgraph, topology: Topology) -> SamplerOutput | HeteroSamplerOutput:
    """Rename types, turn the edges of backward sampling, and keep the user's dtype of indices.

    ``edge`` holds the user's edge ids, so no permutation is left to apply.
    """
    dtype = topology.index_dtype
    if not topology.hetero:
        t = HOMOGENEOUS_EDGE
        row, col = _ends(sample, t, dtype, topology.backward)
        return SamplerOutput(
            node=_of(sample.node[HOMOGENEOUS_NODE], dtype),
            row=row,
            col=col,
            edge=sample.edge_id[t],
            batch=None if sample.tree is None else _of(sample.tree[HOMOGENEOUS_NODE], dtype),
            num_sampled_nodes=None if sample.num_sampled_nodes is None else sample.num_sampled_nodes[HOMOGENEOUS_NODE],
            num_sampled_edges=None if sample.num_sampled_edges is None else sample.num_sampled_edges[t],
        )
    user = topology.user_edge_type
    rows: dict[EdgeType, Tensor] = {}
    cols: dict[EdgeType, Tensor] = {}
    for t, name in user.items():
        rows[name], cols[name] = _ends(sample, t, dtype, topology.backward)
    return HeteroSamplerOutput(
        node={k: _of(v, dtype) for k, v in sample.node.items()},
        row=rows,
        col=cols,
        edge={name: sample.edge_id[t] for t, name in user.items()},
        batch=None if sample.tree is None else {k: _of(v, dtype) for k, v in sample.tree.items()},
        num_sampled_nodes=sample.num_sampled_nodes,
        num_sampled_edges=None if sample.num_sampled_edges is None else _renamed(sample.num_sampled_edges, user),
    )


def _of(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values if values.dtype == dtype else values.to(dtype)  # a call costs more than a look


def _ends(sample: SampledSubgraph, t: EdgeType, dtype: torch.dtype, backward: bool) -> tuple[Tensor, Tensor]:
    row, col = sample.row[t], sample.col[t]
    if dtype != torch.int64:
        row, col = sample.edge_index(t).to(dtype)
    return (col, row) if backward else (row, col)


def _renamed(values: dict[EdgeType, V], names: dict[EdgeType, EdgeType]) -> dict[EdgeType, V]:
    return {names[t]: v for t, v in values.items()}


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


def contents_of(out: Sample) -> dict[str, int]:
    """Return how many seeds, nodes and edges a sample has."""
    return {"seeds": out.metadata[0].numel(), "nodes": _total(out.node), "edges": _total(out.row)}


def _total(values: Tensor | dict[str, Tensor]) -> int:
    """Return the number of entries of a tensor, or of all tensors in a dictionary."""
    return sum([v.numel() for v in values.values()]) if isinstance(values, dict) else values.numel()


def host_engine(graph: Graph, spec: Spec) -> Engine:
    """Return an engine of the CPU whose samples are in recycled memory."""
    engine = engine_for(graph, spec, empty=BufferPool().empty)
    if not (cuda.in_reach() or graph.is_part):  # else a loader that knows where it samples sees to it
        engine.prepare()
    return engine


def prepare(sampler: object) -> None:
    """Make the engine of a sampler of ours, before its first batch needs it."""
    engine = getattr(sampler, "engine", None)
    if isinstance(engine, HostEngine):
        engine.prepare()
