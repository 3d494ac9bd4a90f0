"""Add the reverse of every sampled edge; shared by all backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from manyhop.graph import EdgeType
from manyhop.sampling.contract import SampledSubgraph


def to_bidirectional(sample: SampledSubgraph, reverse: Mapping[EdgeType, EdgeType]) -> SampledSubgraph:
    """Join the edges of each type ``t`` with the reversed edges of ``reverse[t]``.

    The joined edges are sorted by (col, row), each pair once. If both directions or parallel edges give the same
    pair, the edge that was sampled first keeps its id. Types that ``reverse`` does not name are unchanged.

    Returns:
        The sample with ``num_sampled_nodes`` and ``num_sampled_edges`` ``None``, and ``edge_id`` ``None`` for types
        whose reverses came from another type.
    """
    row, col, edge_id = dict(sample.row), dict(sample.col), dict(sample.edge_id)
    for t, r in reverse.items():
        both_row = torch.cat([sample.row[t], sample.col[r]])
        both_col = torch.cat([sample.col[t], sample.row[r]])
        key, order = torch.sort(both_col * max(sample.node[t[0]].numel(), 1) + both_row, stable=True)
        first = torch.ones_like(key, dtype=torch.bool)
        first[1:] = key[1:] != key[:-1]
        order = order[first]
        row[t], col[t] = torch.stack([both_row[order], both_col[order]])
        ids = sample.edge_id[t]
        edge_id[t] = torch.cat([ids, ids])[order] if r == t and ids is not None else None
    return replace(sample, row=row, col=col, edge_id=edge_id, num_sampled_nodes=None, num_sampled_edges=None)
