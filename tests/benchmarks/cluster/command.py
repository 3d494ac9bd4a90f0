"""``benchmarks cluster``: exchange sizes of sampled batches, and steps of many ranks, beside the cost model."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cluster.partitioned import requests_of_own_seeds
from benchmarks.common.graphs import homogeneous
from benchmarks.common.report import opening, print_and_save, table, table_row
from benchmarks.costs import (
    H200,
    BatchSizes,
    Cluster,
    Workload,
    requests_by_part,
    sample_batches,
    sampled_sizes,
    simulate,
)
from benchmarks.ranks.simulated import communities
from manyhop import files
from manyhop.errors import InputError, MissingExtraError
from manyhop.graph import Graph

_FEATURES = 128  # float32
_JITTER = 0.1  # of the host's times: those of rounds in docs/benchmarks/gpu.json are within 10 % of their median
_SLOW = 1.45  # docs/benchmarks-gpu.md: the same Python takes up to 1.45 times as long on the same kind of machine
_HOT = 0.05  # of the rows
_GROUPS = 2000  # communities of the graph that METIS cuts
_WARM_UP = 64  # batches by which loaders choose hot rows
_COLUMNS = (
    "ranks",
    "received, most / mean",
    "sent, most / mean",
    "exchange, us: model",
    "simulated",
    "step, ms: model",
    "simulated",
    f"host varies by {_JITTER:.0%}",
    f"one host takes {_SLOW} times as long",
)


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Simulate what the arguments of ``benchmarks cluster`` specify; print, save."""
    most = max(options.ranks)
    if any(most % ranks or (ranks > options.gpus and ranks % options.gpus) for ranks in options.ranks):
        raise InputError(
            f"Expected numbers of ranks that divide {most} and fill nodes of {options.gpus} GPUs, got {options.ranks}."
        )
    graph = _graph(options)
    (num_rows,) = graph.num_nodes.values()
    sizes = sampled_sizes(graph, options.fanout, options.batch_size)
    lines = [
        *opening("Ranks, simulated", ["cluster", *argv]),
        "",
        f"{num_rows:,} nodes; {options.batches} sampled batches of {options.batch_size:,} seeds, "
        f"{list(options.fanout)}: {sizes.num_nodes:,.0f} nodes each, {_FEATURES} float32 features per node. Rows are "
        f"in equal ranges over all ranks, {options.gpus} to a node. Constants of an {H200.name}.",
    ]
    for title, sort, cache in (
        ("Ids in random order", False, 0.0),
        (f"Ids in random order, {_HOT:.0%} of the rows are hot, on every GPU", False, _HOT),
        ("Ids in the order of in-degrees", True, 0.0),
        (f"Ids in the order of in-degrees, {_HOT:.0%} of the rows are hot", True, _HOT),
    ):
        hot = _hot_rows(_ids(graph, options, min(_WARM_UP, options.batches), sort=sort), num_rows) if cache else None
        requests = requests_by_part(_ids(graph, options, options.batches, sort=sort), num_rows, most, hot=hot)
        lines += ["", title, "", *table(_COLUMNS)]
        lines += [_row(ranks, requests, sizes, options, cache) for ranks in options.ranks]
    try:
        lines += _partitioned(options)
    except MissingExtraError as error:
        lines += ["", f"A graph that METIS cuts was not simulated: {error}"]
    print_and_save("\n".join(lines) + "\n", options.output, "cluster.md")
    return 0


def _graph(options: argparse.Namespace) -> Graph:
    """Return the graph of a folder, or a random one."""
    if options.graph is None:
        return homogeneous(options.nodes, options.edges, attributes=False).engine
    graph = files.open_graph(options.graph).build()
    if not graph.is_homogeneous:
        raise InputError(f"Expected a graph of one node type and one edge type, got {graph.edge_types}.")
    return graph


def _ids(
    graph: Graph, options: argparse.Namespace, count: int, *, sort: bool = False
) -> Iterator[npt.NDArray[np.int64]]:
    """Return the ids of nodes of each batch, or (``sort``) their places in the order of in-degrees.

    Sampling batches again takes less memory than keeping them.
    """
    (csc,) = graph.csc.values()
    place = np.empty(csc.num_dst, np.int64)
    place[np.argsort(-np.diff(csc.colptr.numpy()), kind="stable")] = np.arange(csc.num_dst)
    for sample in sample_batches(graph, options.fanout, options.batch_size, count):
        (node,) = sample.node.values()
        yield place[node.numpy()] if sort else node.numpy()


def _hot_rows(batches: Iterator[npt.NDArray[np.int64]], num_rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows the first batches request most often."""
    counts = np.zeros(num_rows, np.int64)
    for ids in batches:
        counts[ids] += 1
    hot = np.zeros(num_rows, np.bool_)
    hot[np.argsort(-counts, kind="stable")[: round(_HOT * num_rows)]] = True
    return hot


def _partitioned(options: argparse.Namespace) -> list[str]:
    """Return the table of ranks whose seeds are in their own parts of a graph that METIS has cut."""
    with tempfile.TemporaryDirectory() as scratch:
        kind = "" if options.graph else f", {_GROUPS:,} communities"
        graph = files.open_graph(options.graph or communities(Path(scratch) / "graph", options.nodes, _GROUPS))
        sizes = sampled_sizes(graph.build(), options.fanout, options.batch_size)
        lines = [
            "",
            f"{sum(nodes.count for nodes in graph.nodes.values()):,} nodes{kind}, numbered by the parts that METIS "
            "finds for each number of ranks; seeds are in the rank's own part (`seed_parts`). The model has seeds from "
            f"all nodes: {sizes.num_nodes:,.0f} nodes per batch.",
            "",
            *table(_COLUMNS),
        ]
        for ranks in options.ranks:
            requests, homes = requests_of_own_seeds(
                graph, ranks, options.fanout, options.batch_size, max(1, options.batches // ranks)
            )
            lines.append(_row(ranks, requests, sizes, options, 0.0, homes))
    return lines


def _row(
    ranks: int,
    requests: npt.NDArray[np.int64],
    sizes: BatchSizes,
    options: argparse.Namespace,
    cache: float,
    homes: npt.NDArray[np.int64] | None = None,
) -> str:
    workload = Workload(
        sizes=sizes, batch_size=options.batch_size, num_seeds=options.batch_size * ranks,
        row_bytes=4 * _FEATURES, features=_FEATURES,
    )  # fmt: skip
    gpus = min(ranks, options.gpus)
    cluster = Cluster(num_nodes=ranks // gpus, gpus_per_node=gpus, features="distributed", cache=cache)
    even, varying, slow = (
        simulate(requests, workload, cluster, H200, jitter=jitter, slow=slower, homes=homes, steps=options.steps)
        for jitter, slower in ((0.0, {}), (_JITTER, {}), (0.0, {0: _SLOW}))
    )
    times = even.predicted
    exchange = max(times.loading["nvlink"], times.loading["network"])
    figures = [even.received_skew, even.sent_skew]
    cells = [str(ranks), *(f"{skew:.2f}" for skew in figures), f"{1e6 * exchange:.0f}", f"{1e6 * even.exchange_s:.0f}"]
    cells += [_ms(times.step_s), *(_ms(found.step_s) for found in (even, varying, slow))]
    return table_row(cells)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
