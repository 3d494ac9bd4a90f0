"""Rows of a batch that other ranks hold, with nodes in their own order, in random order, and numbered by METIS's parts.

Ranks are simulated in one process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.common import opening, print_and_save, table
from manyhop.features import Shards
from manyhop.files import StoredGraph, open_graph, save_graph
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, NodeType
from manyhop.loading.pipeline import BatchPlan, ItemParts, RankSchedule
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop_tools.convert.renumber import Order, metis_order

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
        deal = RankSchedule(num_batches=len(plan), world_size=num_ranks, rank=rank, parts=parts)
        for turn in islice(deal, batches):
            yield rank, name, torch.from_numpy(plan.indices(0, turn.batch))


_COLUMNS = "graph", "ranks", "order of the nodes", "seeds", "rows per batch", "of other ranks", "MB received per batch"


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folders", nargs="*", help="graphs on disk, beside one with communities")
    add("--nodes", type=int, default=200_000, help="of the graph that is made")
    add("--ranks", type=int, nargs="+", default=[2, 4, 8])
    add("--batches", type=int, default=8, help="per rank, at most")
    add("--batch-size", type=int, default=1024)
    add("--fanouts", type=int, nargs="+", default=[10, 10])


def main(options: argparse.Namespace, argv: list[str]) -> None:
    lines = [
        *opening("Rows of other ranks in a batch, by the order of the nodes", argv),
        "",
        f"Features in equal slices over the ranks, rows of {ROW_BYTES} bytes. Batches of {options.batch_size} seeds, "
        f"fanouts {options.fanouts}; up to {options.batches} batches per rank, the first of a shuffled epoch of a "
        "loader with distributed=True, whose seeds are all nodes of the first type; ranks are simulated in one "
        "process. Every node of a batch counts once, and no cache is used. 'own' seeds: with seed_parts, the number "
        "of ranks; 'any': without.",
        "",
        *table(_COLUMNS),
    ]
    messages: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for folder in [communities(Path(scratch) / "communities", options.nodes), *options.folders]:
            graph, name = open_graph(folder), Path(folder).name
            sampler = _sampler(graph, options.fanouts)
            for ranks in options.ranks:
                began = time.perf_counter()
                found = metis_order(graph, ranks, messages.append)
                messages[-1] = f"- {name}, {time.perf_counter() - began:.1f} s: {messages[-1]}"
                for title, order in (("as it is", {}), ("random", random_order(graph)), ("METIS", found)):
                    for seeds in ("any", "own"):
                        rows, others = _count(sampler, owners_of(graph, order, ranks), seeds == "own", options)
                        figures = f"{rows:,.0f} | {others / rows:.1%} | {others * ROW_BYTES / 1e6:.2f}"
                        lines.append(f"| {name} | {ranks} | {title} | {seeds} | {figures} |")
    print_and_save("\n".join([*lines, "", *messages]) + "\n", options.output, "partition.md")


def _sampler(graph: StoredGraph, fanouts: list[int]) -> CPUSampler:
    built = graph.build()
    return CPUSampler(built, NeighborSpec(fanouts=dict.fromkeys(built.edge_types, tuple(fanouts))))


def _count(
    sampler: CPUSampler, owners: Mapping[NodeType, Ints], own: bool, options: argparse.Namespace
) -> tuple[float, float]:
    rows = others = batches = 0
    for batch, (rank, name, seeds) in enumerate(seeds_of(owners, own, options.batch_size, options.batches)):
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, batch), seeds={name: seeds}))
        for node_type, nodes in sample.node.items():
            rows += len(nodes)
            others += int((owners[node_type][nodes.numpy()] != rank).sum())
        batches += 1
    return rows / batches, others / batches
