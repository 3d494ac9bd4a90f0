"""``benchmarks cooperative``: rows of ranks that sample together, and of batches that depend on each other."""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.report import opening, print_and_save, table, table_row
from benchmarks.ranks.simulated import Ints, communities, owners_of, random_order, seeds_of
from manyhop.errors import InputError
from manyhop.files import StoredGraph, open_graph
from manyhop.graph import Graph, NodeType
from manyhop.sampling import BatchKey, LaborSpec, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.engines import Engine, engine_for
from manyhop_tools.convert.partition import metis_order

_DEPENDENCIES = (1, 16, 256)
_COLUMNS = (
    *("graph", "sampler", "order of the nodes", "seeds", "read, independent", "read, cooperative"),
    *("received, independent", "features received, cooperative", "hidden rows received, cooperative"),
    "edges, cooperative / independent",
)


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks cooperative`` specify; print, save."""
    lines = [
        *opening("Rows of ranks that sample together", ["cooperative", *argv]),
        "",
        f"{options.ranks} ranks, simulated in one process, with features in equal slices; {options.batch_size} seeds "
        f"per rank, fanouts {options.fanouts}, each hop of all nodes so far, as in GraphBolt; up to {options.batches} "
        "steps. No cache. Figures are rows per rank and step.",
        "",
        "- independent: each rank samples around its own seeds, and receives the features of nodes that it does not "
        "hold.",
        "- cooperative (arXiv 2310.12403): the ranks sample one batch around the seeds of all; the owner of a node "
        "samples its neighbours and reads its features once. It receives the features, and at all further layers the "
        "hidden rows, of neighbours that it does not hold; gradients of hidden rows go the same way back.",
        "",
        *table(_COLUMNS),
    ]
    dependent = []
    with tempfile.TemporaryDirectory() as scratch:
        for folder in [communities(Path(scratch) / "communities", options.nodes), *options.folders]:
            stored, name = open_graph(folder), Path(folder).name
            graph = stored.build()
            for title, sampler in _samplers(graph, options.fanouts):
                for order, seeds, owners in _placements(stored, options.ranks):
                    figures = _compare(sampler, owners, seeds == "own", options)
                    lines.append(table_row((name, title, order, seeds, *figures)))
            owners = owners_of(stored, {}, options.ranks)
            for dependency in _DEPENDENCIES:
                rows, new = _new_rows(_layer_neighbours(graph, options.fanouts, dependency), owners, options)
                dependent.append((name, dependency, f"{rows:,.0f}", f"{new:,.0f}", f"{new / rows:.0%}"))
    lines += [
        "",
        "Batches that depend on each other (`sample_layer_neighbor(batch_dependency=k)`), independent ranks: the rows "
        "of a batch, and those that the batch before on the same rank did not have:",
        "",
        *table(("graph", "batch_dependency", "rows", "not in the batch before", "share"), dependent),
    ]
    print_and_save("\n".join(lines) + "\n", options.output, "cooperative.md")
    return 0


def _samplers(graph: Graph, fanouts: list[int]) -> Iterator[tuple[str, Engine]]:
    by_type = dict.fromkeys(graph.edge_types, tuple(fanouts))
    yield "neighbour", engine_for(graph, NeighborSpec(fanouts=by_type, expand="all"))
    yield "layer-neighbour", _layer_neighbours(graph, fanouts, 1)


def _layer_neighbours(graph: Graph, fanouts: list[int], dependency: int) -> Engine:
    by_type = dict.fromkeys(graph.edge_types, tuple(fanouts))
    return engine_for(graph, LaborSpec(fanouts=by_type, method="exact", batch_dependency=dependency))


def _placements(graph: StoredGraph, ranks: int) -> Iterator[tuple[str, str, dict[NodeType, Ints]]]:
    """Yield order of the nodes, kind of seeds, and owners."""
    random = owners_of(graph, random_order(graph), ranks)
    metis = owners_of(graph, metis_order(graph, ranks, lambda line: None), ranks)
    yield "random", "any", random
    yield "METIS", "any", metis
    yield "METIS", "own", metis


def _steps(
    owners: Mapping[NodeType, Ints], own: bool, options: argparse.Namespace
) -> list[list[tuple[int, NodeType, Tensor]]]:
    """The batches of each step, one per rank; at least two steps, as batches are compared with those before."""
    by_rank: dict[int, list[tuple[int, NodeType, Tensor]]] = defaultdict(list)
    for one in seeds_of(owners, own, options.batch_size, options.batches):
        by_rank[one[0]].append(one)
    steps = [list(step) for step in zip(*by_rank.values(), strict=False)]
    if len(steps) < 2:
        raise InputError(
            f"Expected at least two steps of {options.ranks} ranks, got {len(steps)}. Pass a larger --batches, or a "
            "smaller --batch-size or --ranks."
        )
    return steps


def _compare(sampler: Engine, owners: Mapping[NodeType, Ints], own: bool, options: argparse.Namespace) -> list[str]:
    """Rows per rank and step, as the columns of the table."""
    steps = _steps(owners, own, options)
    read, received, edges = np.zeros(2), np.zeros(3), np.zeros(2)
    for number, step in enumerate(steps):
        for rank, name, seeds in step:
            key = BatchKey(0, 0, number * len(step) + rank)
            sample = sampler.sample(NodeRequest(key=key, seeds={name: seeds}))
            read[0] += sum(map(len, sample.node.values()))
            received[0] += sum(int((owners[t][nodes.numpy()] != rank).sum()) for t, nodes in sample.node.items())
            edges[0] += sum(map(len, sample.row.values()))
        together = torch.cat([seeds for _, _, seeds in step])
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, number), seeds={step[0][1]: together}))
        read[1] += sum(len(np.unique(nodes.numpy())) for nodes in sample.node.values())
        *hidden, features = _received(sample, owners)
        received[1:] += features, sum(hidden)
        edges[1] += sum(map(len, sample.row.values()))
    per_rank = len(steps) * options.ranks
    rows = [f"{n / per_rank:,.0f}" for n in (*read, *received)]
    return [*rows, f"{edges[1] / edges[0]:.2f}"]


def _received(sample: SampledSubgraph, owners: Mapping[NodeType, Ints]) -> list[int]:
    """For each hop, how many rows all ranks receive: neighbours, once for each rank that samples for their nodes and
    does not hold them."""
    assert sample.num_sampled_edges is not None
    pairs: list[dict[NodeType, list[Ints]]] = []
    for edge_type, sizes in sample.num_sampled_edges.items():
        src, _, dst = edge_type
        ends = sample.node[src][sample.row[edge_type]].numpy(), sample.node[dst][sample.col[edge_type]].numpy()
        begins = np.cumsum([0, *sizes])
        for hop, (begin, end) in enumerate(pairwise(begins)):
            rows, owner = ends[0][begin:end], owners[dst][ends[1][begin:end]]
            far = owners[src][rows] != owner
            while len(pairs) <= hop:
                pairs.append(defaultdict(list))
            pairs[hop][src].append(owner[far] * len(owners[src]) + rows[far])
    return [sum(_distinct(some) for some in by_type.values()) for by_type in pairs]


def _distinct(parts: Sequence[Ints]) -> int:
    return len(np.unique(np.concatenate(parts)))


def _new_rows(sampler: Engine, owners: Mapping[NodeType, Ints], options: argparse.Namespace) -> tuple[float, float]:
    """Rows of a batch, and those that the batch before on its rank did not have."""
    rows = new = batches = 0
    known: dict[int, dict[NodeType, Ints]] = {}
    for number, step in enumerate(_steps(owners, False, options)):
        for rank, name, seeds in step:
            key = BatchKey(0, 0, number * len(step) + rank)
            sample = sampler.sample(NodeRequest(key=key, seeds={name: seeds}))
            found = {t: nodes.numpy() for t, nodes in sample.node.items()}
            if rank in known:
                rows += sum(map(len, found.values()))
                new += sum(int(np.isin(nodes, known[rank][t], invert=True).sum()) for t, nodes in found.items())
                batches += 1
            known[rank] = found
    return rows / batches, new / batches
