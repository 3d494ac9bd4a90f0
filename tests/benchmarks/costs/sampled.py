"""Sizes of batches that are sampled for the purpose, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from benchmarks.costs.sizes import SHARES, BatchSizes
from manyhop.errors import InputError
from manyhop.graph import Graph, NodeType
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest, SampledSubgraph


def sample_batches(
    graph: Graph, fanouts: Sequence[int], batch_size: int, num_batches: int, *, seed_type: NodeType | None = None
) -> Iterator[SampledSubgraph]:
    """Sample batches around random seeds: the same ones at each call.

    Args:
        graph: the topology, in host memory or mapped.
        fanouts: neighbours per node and edge type, hop by hop.
        batch_size: seeds of a batch, distinct, from all nodes of a type.
        num_batches: how many.
        seed_type: node type of the seeds; ``None``: the first that edges lead to.

    Raises:
        InputError: more seeds than nodes, or an unknown node type.
    """
    chosen = next(dst for _, _, dst in graph.edge_types) if seed_type is None else seed_type
    if chosen not in graph.num_nodes:
        raise InputError(f"Expected a node type of {list(graph.num_nodes)}, got {chosen!r}.")
    num_nodes = graph.num_nodes[chosen]
    if not 1 <= batch_size <= num_nodes:
        raise InputError(f"Expected 1 to {num_nodes} seeds per batch, got {batch_size}. Lower the batch size.")
    sampler = CPUSampler(graph, NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, tuple(fanouts))))
    draw = np.random.default_rng(0)
    for batch in range(num_batches):
        seeds = torch.from_numpy(draw.choice(num_nodes, batch_size, replace=False, shuffle=False))
        yield sampler.sample(NodeRequest(key=BatchKey(0, 0, batch), seeds={chosen: seeds}))


def sampled_sizes(
    graph: Graph, fanouts: Sequence[int], batch_size: int, *, num_batches: int = 16, seed_type: NodeType | None = None
) -> BatchSizes:
    """Return the mean sizes of batches of a graph; see :func:`sample_batches`.

    The first half of the batches chooses the rows of caches, as loaders do; the second half counts how many of its
    rows are among them.
    """
    warm_up = max(1, num_batches // 2)
    counts = {name: np.zeros(size, np.int32) for name, size in graph.num_nodes.items()}
    nodes, edges = np.zeros(len(fanouts) + 1), np.zeros(len(fanouts))
    later: list[Mapping[NodeType, np.ndarray[tuple[int], np.dtype[np.int64]]]] = []
    for batch, sample in enumerate(sample_batches(graph, fanouts, batch_size, num_batches, seed_type=seed_type)):
        assert sample.num_sampled_nodes is not None
        assert sample.num_sampled_edges is not None
        nodes += np.sum(list(sample.num_sampled_nodes.values()), axis=0)
        edges += np.sum(list(sample.num_sampled_edges.values()), axis=0)
        ids = {name: node.numpy() for name, node in sample.node.items()}
        if batch < warm_up:
            for name, some in ids.items():
                counts[name][some] += 1
        else:
            later.append(ids)
    return BatchSizes(
        fanouts=tuple(fanouts),
        nodes=tuple((nodes / num_batches).tolist()),
        edges=tuple((edges / num_batches).tolist()),
        hits=_hits(counts, later),
        source=f"means of {num_batches} sampled batches, with seeds from all nodes of a type",
    )


def _hits(
    counts: Mapping[NodeType, np.ndarray[tuple[int], np.dtype[np.int32]]],
    later: Sequence[Mapping[NodeType, np.ndarray[tuple[int], np.dtype[np.int64]]]],
) -> tuple[float, ...]:
    """Return the share of the later requests that the rows requested most often before serve, for each share."""
    served, requested = np.zeros(len(SHARES)), 0
    for name, count in counts.items():
        place = np.empty(count.size, np.int64)
        place[np.argsort(-count, kind="stable")] = np.arange(count.size)
        limits = [round(share * count.size) for share in SHARES]
        for batch in later:
            requested += batch[name].size
            served += np.searchsorted(np.sort(place[batch[name]]), limits)
    return tuple((served / max(requested, 1)).tolist())
