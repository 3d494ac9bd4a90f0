"""One subgraph per seed node, behind each other."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyhop.sampling import SampledSubgraph
from manyhop_pyg.batch.output import to_sampler_output
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import PyGData, Sample


class EgoSampler(NeighborSampler):
    """Samples the neighbourhood of each seed for itself, with all edges inside: the subgraphs of ShaDow-GNN.

    The nodes of a sample are sorted by subgraph, the seed of each first, the edges by destination.

    Args:
        data: without types.
        depth: number of hops.
        num_neighbors: neighbours per node; -1: all.
        replace: sample with replacement.
    """

    def __init__(self, data: PyGData, depth: int, num_neighbors: int, *, replace: bool) -> None:
        super().__init__(data, [num_neighbors] * depth, subgraph_type="induced", replace=replace, disjoint=True)

    def node_output(self, sample: SampledSubgraph) -> Sample:
        """The engine's sample in PyG's terms."""
        out = to_sampler_output(sample, self.topology)  # nodes by hop
        batch, order = out.batch.sort(stable=True)
        position = torch.empty_like(order)
        position[order] = torch.arange(order.numel(), device=order.device)
        col, by_col = position[out.col].sort(stable=True)
        dtype = out.col.dtype
        return replace(
            out,
            node=out.node[order],
            row=position[out.row[by_col]].to(dtype),
            col=col.to(dtype),
            edge=out.edge[by_col],
            batch=batch,
        )
