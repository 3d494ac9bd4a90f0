"""Ranks that are simulated in one process: graphs, owners of their nodes, and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.features import Shards
from manyhop.files import StoredGraph, save_graph
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, NodeType
from manyhop.loading.pipeline import BatchPlan, Deal, ItemParts
from manyhop_tools.convert.partition import Order

ROW_BYTES = 512
_DEGREE, _INSIDE = 12, 0.8  # of the graph that is made: edges per node, share inside communities

Ints = npt.NDArray[np.int64]


def communities(folder: Path, num_nodes: int, groups: int = 200) -> Path:
    """Make a graph with communities of equal size, at random over the nodes, and degrees of a power law."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.arange(num_nodes) % groups)
    members, begin = np.argsort(group, kind="stable"), np.searchsorted(np.sort(group), np.arange(groups + 1))
    weight = 1 / (1 + rng.permutation(num_nodes)) ** 0.6
    dst = rng.choice(num_nodes, _DEGREE * num_nodes, p=weight / weight.sum())
    low, high = begin[group[dst]], begin[group[dst] + 1]
    inside = members[low + (rng.random(len(dst)) * (high - low)).astype(np.int64)]
    src = np.where(rng.random(len(dst)) < _INSIDE, inside, rng.integers(0, num_nodes, len(dst)))
    edges = {HOMOGENEOUS_EDGE: (torch.from_numpy(src), torch.from_numpy(dst))}
    return save_graph(folder, {HOMOGENEOUS_NODE: num_nodes}, edges, homogeneous=True).path


def random_order(graph: StoredGraph) -> Order:
    """Return a random order of the nodes of each type."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randperm(nodes.count, generator=generator) for name, nodes in graph.nodes.items()}


def owners_of(graph: StoredGraph, order: Order, ranks: int) -> dict[NodeType, Ints]:
    """Return node type -> ``[count]``: the rank that holds each node, by its number at the source."""
    owners = {}
    for name, nodes in graph.nodes.items():
        owner = np.repeat(np.arange(ranks), np.diff(Shards(nodes.count, ranks).bounds))
        owners[name] = np.empty_like(owner)
        owners[name][order.get(name, torch.arange(nodes.count)).numpy()] = owner
    return owners


def seeds_of(
    owners: Mapping[NodeType, Ints], own: bool, batch_size: int, batches: int
) -> Iterator[tuple[int, NodeType, Tensor]]:
    """Yield rank, type and seeds of each batch, as a loader with ``distributed=True`` gives them: nodes of the first
    type.

    Args:
        owners: of :func:`owners_of`.
        own: with ``seed_parts``, the number of ranks.
        batch_size: seeds per batch.
        batches: per rank, at most.
    """
    name, owner = next(iter(owners.items()))
    num_ranks = int(owner.max()) + 1
    parts = ItemParts(owner, num_ranks, batch_size) if own else None
    plan = BatchPlan(len(owner), batch_size, shuffle=True, seed=1, parts=parts)
    for rank in range(num_ranks):
        deal = Deal(num_batches=len(plan), world_size=num_ranks, rank=rank, parts=parts)
        for turn in islice(deal, batches):
            yield rank, name, torch.from_numpy(plan.indices(0, turn.batch))
