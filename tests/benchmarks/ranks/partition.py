"""``benchmarks partition``: rows of other ranks, by the order of the nodes. Ranks are simulated."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.report import opening, print_and_save, table
from benchmarks.ranks.simulated import ROW_BYTES, Ints, communities, owners_of, random_order, seeds_of
from manyhop.files import StoredGraph, open_graph
from manyhop.graph import NodeType
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop_tools.convert.partition import metis_order

_COLUMNS = "graph", "ranks", "order of the nodes", "seeds", "rows per batch", "of other ranks", "MB received per batch"


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks partition`` specify; print, save."""
    lines = [
        *opening("Rows of other ranks in a batch, by the order of the nodes", ["partition", *argv]),
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
    return 0


def _sampler(graph: StoredGraph, fanouts: list[int]) -> CPUSampler:
    built = graph.build()
    return CPUSampler(built, NeighborSpec(fanouts=dict.fromkeys(built.edge_types, tuple(fanouts))))


def _count(
    sampler: CPUSampler, owners: Mapping[NodeType, Ints], own: bool, options: argparse.Namespace
) -> tuple[float, float]:
    """Rows of a batch, and those of other ranks, on average."""
    rows = others = batches = 0
    for batch, (rank, name, seeds) in enumerate(seeds_of(owners, own, options.batch_size, options.batches)):
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, batch), seeds={name: seeds}))
        for node_type, nodes in sample.node.items():
            rows += len(nodes)
            others += int((owners[node_type][nodes.numpy()] != rank).sum())
        batches += 1
    return rows / batches, others / batches
