"""Many ranks, simulated: exchanges of sampled batches, and steps, beside a cost model that takes all ranks to be equal.

The model: each resource (host, GPU, NVLink, network) has an amount of work per batch and step, and a constant of the
machine gives the time of a unit; all work overlaps, so the largest sum decides. The simulation has requests of sampled
batches, ranks that wait for the slowest one where they communicate, and times that vary.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.common import homogeneous, opening, print_and_save, table, table_row
from benchmarks.partition import communities, owners_of, seeds_of
from manyhop import files
from manyhop.errors import InputError
from manyhop.files import StoredGraph
from manyhop.graph import Graph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop_tools.convert.renumber import metis_order

Ints = npt.NDArray[np.int64]

FEATURES, HIDDEN, CLASSES = 128, 256, 172  # of rows in float32, and of PyG's GraphSAGE, eager, with Adam
JITTER = 0.1  # of the host's times: rounds in records/gpu.json are within 10 % of their median
SLOW = 1.45  # records/all-gpu.md: the same Python takes up to 1.45 times as long on the same kind of machine
HOT = 0.05  # of the rows
GROUPS = 2000  # communities of the graph that METIS cuts
WARM_UP = 64  # batches by which loaders choose hot rows
MERGED = 16  # batches that a loader samples in one launch
AHEAD = 2  # batches that a loader's thread makes ahead: prefetch_factor
QUEUED = 8  # steps that the host may be ahead of its GPU


class H200:
    """Seconds and rates. Measured: records/gpu.json, records/all-gpu.md; the network is assumed."""

    copy = 2.128e12  # bytes per second in the GPU's memory, read and written
    reads = 36.73e9  # random reads of 8 bytes per second in a large table
    peer = 331.8e9  # bytes per second that each GPU reads from the others of its node, all at once
    network, message_s = 40e9, 2e-6  # of each rank; per message to another rank
    products = 40.7e12  # floating-point operations per second of a float32 matrix product
    launch_s, hop_s, edge_reads = 10.96e-6, 13.03e-6, 4.494  # of sampling: a launch, a hop of it, reads of an edge
    layer_s, step_layer_s = 0.1936e-3, 0.8855e-3  # small kernels of a layer; the host's seconds of it
    batch_s, ddp_s, exchange_s = 66.12e-6, 0.1655e-3, 0.1821e-3  # the host's: of a loader, of DDP, of an exchange
    shared_host = 1.3596  # how much longer the host's work takes where several ranks share it
    gather, forward, backward, pointwise = 0.93, 5.5, 8.5, 4.5  # of a copy; copies of a row per edge and per output


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Ranks, over which rows of features are distributed in equal ranges."""

    ranks: int
    per_node: int
    hit_rate: float = 0.0
    """Share of requested rows that every GPU has as hot rows."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    size: int
    nodes: Sequence[float]
    """The seeds, then the nodes that each hop adds."""
    edges: Sequence[float]

    @property
    def num_nodes(self) -> float:
        return sum(self.nodes)


@dataclass(frozen=True, kw_only=True)
class Times:
    host: float
    gpu: float
    exchange: float
    sample: float
    all_reduce: float

    @property
    def step(self) -> float:
        return max(self.host, self.gpu, self.exchange)


def predict(batches: Batches, cluster: Cluster) -> Times:
    """Return what a batch and a step of a GraphSAGE take."""
    m, ranks, local = H200, cluster.ranks, min(cluster.per_node, cluster.ranks)
    shared = m.shared_host if local > 1 else 1.0
    rows = batches.num_nodes * 4 * FEATURES
    missed = rows * (1 - cluster.hit_rate)
    links = missed * (local - 1) / ranks / m.peer
    network = missed * (ranks - local) / ranks / m.network + (ranks - local) * m.message_s
    gather = max(rows / (m.gather * m.copy), batches.num_nodes / m.reads) + missed / m.copy
    hops = len(batches.edges)
    only = gather + (m.launch_s + hops * m.hop_s) / MERGED + sum(batches.edges) * m.edge_reads / m.reads
    gpu, weights = graph_sage(batches)
    rate = m.peer if ranks <= cluster.per_node else m.network
    all_reduce = 0.0
    if ranks > 1:
        all_reduce = 2 * 4 * weights * (ranks - 1) / ranks / rate + 2 * math.ceil(math.log2(ranks)) * m.message_s
    host = m.batch_s + m.exchange_s + hops * m.step_layer_s + (m.ddp_s if ranks > 1 else 0.0)
    return Times(
        host=host * shared,
        gpu=only + gpu + all_reduce,
        exchange=max(links, network),
        sample=only - gather + max(gather, links),
        all_reduce=all_reduce,
    )


def graph_sage(batches: Batches) -> tuple[float, float]:
    """Return the GPU's seconds of a step of PyG's GraphSAGE, trimmed to what each layer needs, and its weights.

    A layer multiplies the rows of its nodes and their means by two weights, forward, and twice that backward (of the
    first layer once). Gathers, ``index_add`` and pointwise kernels move copies of rows.
    """
    m, layers = H200, len(batches.edges)
    seconds, weights = layers * m.layer_s, 0.0
    for layer in range(layers):
        first = layer == 0
        c_in, c_out = FEATURES if first else HIDDEN, CLASSES if layer == layers - 1 else HIDDEN
        edges, nodes = sum(batches.edges[: layers - layer]), sum(batches.nodes[: layers + 1 - layer])
        moved = c_in * edges * (m.forward if first else m.forward + m.backward) + nodes * c_out * m.pointwise
        seconds += (2 if first else 3) * 4 * nodes * c_in * c_out / m.products + 4 * moved / m.copy
        weights += 2 * c_in * c_out
    return seconds, weights


def sample_batches(graph: Graph, fanouts: Sequence[int], batch_size: int, count: int) -> Iterator[SampledSubgraph]:
    """Sample around distinct random seeds of the type that the first edges lead to: the same ones at each call."""
    sampler = CPUSampler(graph, NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, tuple(fanouts))))
    seed_type, draw = graph.edge_types[0][2], np.random.default_rng(0)
    for batch in range(count):
        seeds = torch.from_numpy(draw.choice(graph.num_nodes[seed_type], batch_size, replace=False, shuffle=False))
        yield sampler.sample(NodeRequest(key=BatchKey(0, 0, batch), seeds={seed_type: seeds}))


def mean_sizes(graph: Graph, fanouts: Sequence[int], batch_size: int, count: int = 16) -> Batches:
    """Return the mean sizes of sampled batches."""
    nodes, edges = np.zeros(len(fanouts) + 1), np.zeros(len(fanouts))
    for sample in sample_batches(graph, fanouts, batch_size, count):
        assert sample.num_sampled_nodes is not None
        assert sample.num_sampled_edges is not None
        nodes += np.sum(list(sample.num_sampled_nodes.values()), axis=0)
        edges += np.sum(list(sample.num_sampled_edges.values()), axis=0)
    return Batches(size=batch_size, nodes=(nodes / count).tolist(), edges=(edges / count).tolist())


def requests_by_part(
    batches: Iterable[Ints], num_rows: int, parts: int, hot: npt.NDArray[np.bool_] | None = None
) -> Ints:
    """Return how many rows each batch requests of each of some equal ranges of rows: ``[num_batches, parts]``.

    Args:
        batches: ids of each batch.
        num_rows: rows of the table; part ``p`` begins at row ``num_rows * p // parts``, as ranks hold them.
        parts: ranges.
        hot: ``[num_rows]``: rows that every rank has, which are not requested.
    """
    begins = np.arange(1, parts) * num_rows // parts
    asked = (ids if hot is None else ids[~hot[ids]] for ids in batches)
    found = [np.bincount(np.searchsorted(begins, ids, side="right"), minlength=parts) for ids in asked]
    return np.array(found, np.int64).reshape(len(found), parts)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Seconds of a step and of an exchange, and bytes of the busiest rank over the mean of all, beside the model."""

    step_s: float
    exchange_s: float
    received_skew: float
    sent_skew: float
    predicted: Times


def simulate(
    requests: Ints,
    batches: Batches,
    cluster: Cluster,
    *,
    jitter: float = 0.0,
    slow: Mapping[int, float] | None = None,
    homes: Ints | None = None,
    steps: int = 64,
) -> Simulated:
    """Simulate steps of all ranks, of which the first quarter does not count.

    A rank's thread samples up to two batches ahead. Exchanges follow each other in the order of batches, and begin when
    the last rank has sampled. The host launches a step once its rows are there, and is at most eight steps ahead of the
    GPU. A step ends when all ranks have summed gradients.

    Args:
        requests: of :func:`requests_by_part`, of a multiple of the ranks. Each rank takes one of the batches in each
            step, at random, none twice in a step while there are enough.
        batches: their mean.
        cluster: the ranks.
        jitter: standard deviation of the host's time of a step, and of sampling, over their mean (log-normal).
        slow: rank -> how many times as long its host takes.
        homes: ``[num_batches]``: the rank of each batch, where ranks have seeds of their own; ``None``: any.
        steps: how many.
    """
    world, random, predicted = cluster.ranks, np.random.default_rng(0), predict(batches, cluster)
    bytes_of = requests.reshape(len(requests), world, -1).sum(2) * 4 * FEATURES
    slowness = np.array([(slow or {}).get(rank, 1.0) for rank in range(world)])
    spread = np.sqrt(np.log1p(jitter**2))
    sampled, host = np.zeros(world), np.zeros(world)
    fetched, began, ends = 0.0, [np.zeros(world)] * AHEAD, [0.0] * QUEUED
    exchanges: list[tuple[float, float, float]] = []
    for _ in range(steps):
        noise = np.exp(random.normal(-(spread**2) / 2, spread, (2, world)))
        sampled = np.maximum(began[-AHEAD], sampled) + predicted.sample * noise[0]
        ready: float | npt.NDArray[np.float64] = sampled
        if world > 1:
            exchanges.append(_exchange(bytes_of[_choose(random, len(requests), world, homes)], cluster))
            ready = fetched = max(fetched, float(sampled.max())) + exchanges[-1][0]
        start = np.maximum(np.maximum(host, ready), ends[-QUEUED])
        began.append(start)
        host = start + predicted.host * noise[1] * slowness
        ends.append(float(np.maximum(ends[-1] + predicted.gpu, host + predicted.all_reduce).max()))
    counted = ends[QUEUED + steps // 4 - 1 :]
    exchange, received, sent = np.mean(exchanges, axis=0) if exchanges else (0.0, 1.0, 1.0)
    step_s = (counted[-1] - counted[0]) / (len(counted) - 1)
    return Simulated(step_s=step_s, exchange_s=exchange, received_skew=received, sent_skew=sent, predicted=predicted)


def _choose(random: np.random.Generator, num_batches: int, world: int, homes: Ints | None) -> Ints:
    if homes is not None:
        order, counts = np.argsort(homes, kind="stable"), np.bincount(homes, minlength=world)
        return order[np.cumsum(counts) - counts + random.integers(counts)]
    return np.concatenate([random.permutation(num_batches) for _ in range(-(-world // num_batches))])[:world]


def _exchange(matrix: Ints, cluster: Cluster) -> tuple[float, float, float]:
    """Return the seconds of an exchange, and how uneven the bytes received and sent are.

    Args:
        matrix: ``[ranks, ranks]`` bytes that the rank of a row requests from that of a column.
    """
    world = cluster.ranks
    node = np.arange(world) // cluster.per_node
    far = node[:, None] != node
    near = ~far & ~np.eye(world, dtype=bool)
    seconds = 0.0
    for links, rate in ((near, H200.peer), (far, H200.network)):
        moved = np.where(links, matrix, 0)
        seconds = max(seconds, float(np.maximum(moved.sum(1), moved.sum(0)).max()) / rate)
    other = np.where(near | far, matrix, 0)
    mean = max(float(other.sum()) / world, 1e-9)
    messages = (world - min(world, cluster.per_node)) * H200.message_s
    return seconds + messages, float(other.sum(1).max()) / mean, float(other.sum(0).max()) / mean


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", default=[1, 8, 64, 512])
    add("--gpus", type=int, default=8, help="ranks of a node")
    add("--graph", type=Path, help="a folder (a random graph)")
    add("--nodes", type=int, default=1_000_000)
    add("--edges", type=int, default=15_000_000)
    add("--fanout", type=int, nargs="+", default=[10, 10])
    add("--batch-size", type=int, default=1024)
    add("--batches", type=int, default=1024, help="to sample")
    add("--steps", type=int, default=128, help="to simulate")


COLUMNS = (
    *("ranks", "received, most / mean", "sent, most / mean", "exchange, us: model", "simulated", "step, ms: model"),
    *("simulated", f"host varies by {JITTER:.0%}", f"one host takes {SLOW} times as long"),
)


def main(options: argparse.Namespace, argv: list[str]) -> None:
    most = max(options.ranks)
    if any(most % ranks or (ranks > options.gpus and ranks % options.gpus) for ranks in options.ranks):
        raise InputError(
            f"Expected numbers of ranks that divide {most} and fill nodes of {options.gpus} GPUs, got {options.ranks}."
        )
    if options.graph is None:
        graph = homogeneous(options.nodes, options.edges, attributes=False).engine
    else:
        graph = files.open_graph(options.graph).build()
    (num_rows,) = graph.num_nodes.values()
    sizes = mean_sizes(graph, options.fanout, options.batch_size)
    lines = [
        *opening("Ranks, simulated", argv),
        "",
        f"{num_rows:,} nodes; {options.batches} sampled batches of {options.batch_size:,} seeds, {options.fanout}: "
        f"{sizes.num_nodes:,.0f} nodes each, {FEATURES} float32 features per node. Rows are in equal ranges over all "
        f"ranks, {options.gpus} to a node. Constants of an H200.",
    ]
    for order, sort in (("random order", False), ("the order of in-degrees", True)):
        for title, is_hot in (("", False), (f", {HOT:.0%} of the rows are hot, on every GPU", True)):
            hot, rate = None, 0.0
            if is_hot:
                hot = _hot_rows(_ids(graph, options, min(WARM_UP, options.batches), sort=sort), num_rows)
                rate = float(np.mean([hot[ids].mean() for ids in _ids(graph, options, 8, sort=sort)]))
            requests = requests_by_part(_ids(graph, options, options.batches, sort=sort), num_rows, most, hot)
            lines += ["", f"Ids in {order}{title}", "", *table(COLUMNS)]
            lines += [_row(ranks, requests, sizes, options, rate) for ranks in options.ranks]
    with tempfile.TemporaryDirectory() as scratch:
        stored = files.open_graph(options.graph or communities(Path(scratch) / "graph", options.nodes, GROUPS))
        sizes = mean_sizes(stored.build(), options.fanout, options.batch_size)
        lines += [
            "",
            f"{'A graph' if options.graph else f'{GROUPS:,} communities'}, numbered by the parts that METIS finds for "
            "each number of ranks; seeds are in the rank's own part (`seed_parts`). The model has seeds from all "
            f"nodes: {sizes.num_nodes:,.0f} nodes per batch.",
            "",
            *table(COLUMNS),
        ]
        for ranks in options.ranks:
            requests, homes = _requests_of_own_seeds(stored, ranks, options)
            lines.append(_row(ranks, requests, sizes, options, 0.0, homes))
    print_and_save("\n".join(lines) + "\n", options.output, "cluster.md")


def _ids(graph: Graph, options: argparse.Namespace, count: int, *, sort: bool) -> Iterator[Ints]:
    """Yield the ids of nodes of each batch, or (``sort``) their places in the order of in-degrees."""
    (csc,) = graph.csc.values()
    place = np.empty(csc.num_dst, np.int64)
    place[np.argsort(-np.diff(csc.colptr.numpy()), kind="stable")] = np.arange(csc.num_dst)
    for sample in sample_batches(graph, options.fanout, options.batch_size, count):
        (node,) = sample.node.values()
        yield place[node.numpy()] if sort else node.numpy()


def _hot_rows(batches: Iterator[Ints], num_rows: int) -> npt.NDArray[np.bool_]:
    counts = np.zeros(num_rows, np.int64)
    for ids in batches:
        counts[ids] += 1
    hot = np.zeros(num_rows, np.bool_)
    hot[np.argsort(-counts, kind="stable")[: round(HOT * num_rows)]] = True
    return hot


def _requests_of_own_seeds(graph: StoredGraph, ranks: int, options: argparse.Namespace) -> tuple[Ints, Ints]:
    """Return ``[num_batches, ranks]``: rows that a batch requests of each rank, and ``[num_batches]``: its rank."""
    order = metis_order(graph, ranks, lambda line: None) if ranks > 1 else {}
    owners, built = owners_of(graph, order, ranks), graph.build()
    sampler = CPUSampler(built, NeighborSpec(fanouts=dict.fromkeys(built.edge_types, tuple(options.fanout))))
    requests, homes = [], []
    for rank, name, seeds in seeds_of(owners, True, options.batch_size, max(1, options.batches // ranks)):
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, len(homes)), seeds={name: seeds}))
        counts = [np.bincount(owners[each][ids.numpy()], minlength=ranks) for each, ids in sample.node.items()]
        requests.append(np.sum(counts, axis=0))
        homes.append(rank)
    return np.array(requests), np.array(homes)


def _row(
    ranks: int, requests: Ints, sizes: Batches, options: argparse.Namespace, rate: float, homes: Ints | None = None
) -> str:
    cluster = Cluster(ranks=ranks, per_node=options.gpus, hit_rate=rate)
    even, varying, slow = (
        simulate(requests, sizes, cluster, jitter=jitter, slow=slower, homes=homes, steps=options.steps)
        for jitter, slower in ((0.0, {}), (JITTER, {}), (0.0, {0: SLOW}))
    )
    cells = [str(ranks), f"{even.received_skew:.2f}", f"{even.sent_skew:.2f}"]
    cells += [f"{1e6 * seconds:.0f}" for seconds in (even.predicted.exchange, even.exchange_s)]
    cells += [f"{1e3 * seconds:.2f}" for seconds in (even.predicted.step, *(s.step_s for s in (even, varying, slow)))]
    return table_row(cells)
