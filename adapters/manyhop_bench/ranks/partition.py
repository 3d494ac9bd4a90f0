"""``manyhop bench partition``: rows of other ranks, by the order of the nodes. Ranks are simulated."""

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

from manyhop.features import Shards
from manyhop.files import StoredGraph, open_graph, save_graph
from manyhop.files.convert.partition import Order, metis_order
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, NodeType
from manyhop.pipeline import BatchPlan, Deal, ItemParts
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop_bench.common.machine import describe

_ROW_BYTES = 512
_GROUPS, _DEGREE, _INSIDE = 200, 12, 0.8  # of the graph that is made: communities, edges per node, share inside them

Ints = npt.NDArray[np.int64]


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``manyhop bench partition`` say; print, save."""
    lines = ["# Rows of other ranks in a batch, by the order of the nodes", ""]
    lines += [f"- {label}: {value}" for label, value in describe(["partition", *argv])]
    lines += [
        "",
        f"Features in equal slices over the ranks, rows of {_ROW_BYTES} bytes. Batches of {options.batch_size} seeds, "
        f"fanouts {options.fanouts}; up to {options.batches} batches per rank, the first of a shuffled epoch of a "
        "loader with distributed=True, whose seeds are all nodes of the first type; ranks are simulated in one "
        "process. Every node of a batch counts once, and no cache is used. 'own' seeds: with seed_parts, the number "
        "of ranks; 'any': without.",
        "",
        "| graph | ranks | order of the nodes | seeds | rows per batch | of other ranks | MB received per batch |",
        "|---|---|---|---|---|---|---|",
    ]
    said: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for folder in [_communities(Path(scratch) / "communities", options.nodes), *options.folders]:
            graph, name = open_graph(folder), Path(folder).name
            sampler = _sampler(graph, options.fanouts)
            for ranks in options.ranks:
                began = time.perf_counter()
                found = metis_order(graph, ranks, said.append)
                said[-1] = f"- {name}, {time.perf_counter() - began:.1f} s: {said[-1]}"
                for title, order in (("as it is", {}), ("random", _random(graph)), ("METIS", found)):
                    for seeds in ("any", "own"):
                        rows, others = _count(graph, sampler, _owners(graph, order, ranks), seeds == "own", options)
                        figures = f"{rows:,.0f} | {others / rows:.1%} | {others * _ROW_BYTES / 1e6:.2f}"
                        lines.append(f"| {name} | {ranks} | {title} | {seeds} | {figures} |")
    text = "\n".join([*lines, "", *said]) + "\n"
    print(text, end="")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "partition.md").write_text(text)
    return 0


def _communities(folder: Path, num_nodes: int) -> Path:
    """Make a graph with communities of equal size, at random over the nodes, and degrees of a power law."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.arange(num_nodes) % _GROUPS)
    members, begin = np.argsort(group, kind="stable"), np.searchsorted(np.sort(group), np.arange(_GROUPS + 1))
    weight = 1 / (1 + rng.permutation(num_nodes)) ** 0.6
    dst = rng.choice(num_nodes, _DEGREE * num_nodes, p=weight / weight.sum())
    low, high = begin[group[dst]], begin[group[dst] + 1]
    inside = members[low + (rng.random(len(dst)) * (high - low)).astype(np.int64)]
    src = np.where(rng.random(len(dst)) < _INSIDE, inside, rng.integers(0, num_nodes, len(dst)))
    edges = {HOMOGENEOUS_EDGE: (torch.from_numpy(src), torch.from_numpy(dst))}
    return save_graph(folder, {HOMOGENEOUS_NODE: num_nodes}, edges, homogeneous=True).path


def _sampler(graph: StoredGraph, fanouts: list[int]) -> CPUSampler:
    built = graph.build()
    return CPUSampler(built, NeighborSpec(fanouts=dict.fromkeys(built.edge_types, tuple(fanouts))))


def _random(graph: StoredGraph) -> Order:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randperm(nodes.count, generator=generator) for name, nodes in graph.nodes.items()}


def _owners(graph: StoredGraph, order: Order, ranks: int) -> dict[NodeType, Ints]:
    """Node type -> ``[count]``: the rank that holds each node, by its number at the source."""
    owners = {}
    for name, nodes in graph.nodes.items():
        owner = np.repeat(np.arange(ranks), np.diff(Shards(nodes.count, ranks).bounds))
        owners[name] = np.empty_like(owner)
        owners[name][order.get(name, torch.arange(nodes.count)).numpy()] = owner
    return owners


def _count(
    graph: StoredGraph, sampler: CPUSampler, owners: Mapping[NodeType, Ints], own: bool, options: argparse.Namespace
) -> tuple[float, float]:
    """Rows of a batch, and those of other ranks, on average."""
    rows = others = batches = 0
    for batch, (rank, name, seeds) in enumerate(_seeds(owners, own, options)):
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, batch), seeds={name: seeds}))
        for node_type, nodes in sample.node.items():
            rows += len(nodes)
            others += int((owners[node_type][nodes.numpy()] != rank).sum())
        batches += 1
    return rows / batches, others / batches


def _seeds(
    owners: Mapping[NodeType, Ints], own: bool, options: argparse.Namespace
) -> Iterator[tuple[int, NodeType, Tensor]]:
    """Rank, type and seeds of each batch, as a loader with ``distributed=True`` gives them: nodes of the first type."""
    name, owner = next(iter(owners.items()))
    num_ranks = int(owner.max()) + 1
    parts = ItemParts(owner, num_ranks, options.batch_size) if own else None
    plan = BatchPlan(len(owner), options.batch_size, shuffle=True, seed=1, parts=parts)
    for rank in range(num_ranks):
        deal = Deal(num_batches=len(plan), world_size=num_ranks, rank=rank, parts=parts)
        for turn in islice(deal, options.batches):
            yield rank, name, torch.from_numpy(plan.indices(0, turn.batch))
