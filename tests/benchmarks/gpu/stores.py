"""Loaders of PyG and of DGL over the same rows in the places of GPUs: their times, and what further loaders take.

DGL's hops sample neighbours of all nodes so far, PyG's of the new ones: to compare like with like, DGL's batches have
fewer seeds, so that they have as many rows. Consumers read rows and the edges of each layer: DGL's those of the blocks,
PyG's the first ones of all, as layers do that are trimmed.
Imports PyG and DGL, so the worker imports it late.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import manyhop
import manyhop_dgl
import manyhop_pyg
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_seeds
from benchmarks.gpu.job import Job, Row, Sink, fanout_name, reason_of
from benchmarks.gpu.timing import PeakMemory, Ranks, tidy
from manyhop.features import DistributedRows, WholeMemory

_BATCHES = 64  # of an epoch and GPU, at most
_LOADERS = 3
_EPOCHS = 20  # of each round: they take milliseconds, and differ by a tenth and more
_WARM_UPS = 5
_SIZES = 2  # of DGL's batches that are tried: their rows are not in proportion to their seeds

Place = Literal["device", "sharded", "distributed"]


@dataclass
class _Count:
    """What an epoch of one rank has had."""

    batches: int = 0
    edges: int = 0
    rows: int = 0


@dataclass(frozen=True)
class _Way:
    """Loaders of one framework."""

    make: Callable[[tuple[int, ...], Tensor], Iterable[Any]]
    """Of fanouts and seeds ``[num_batches, batch_size]`` of all ranks."""
    count: Callable[[Any, _Count], None]
    """Adds a batch."""


def stores(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure both frameworks in turns over the same rows; then make further loaders."""
    places: tuple[Place, ...] = ("device",) if ranks.size == 1 else ("sharded", "distributed")
    for place in places:
        try:
            _measure(job, ranks, graph, memory, sink, place)
        except Exception as error:  # a line in the table
            sink.missing("stores", reason_of(error), place)
        tidy(ranks)


def _measure(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink, place: Place) -> None:
    ways = _ways(job, ranks, graph, place)
    fanout = job.fanouts[0]
    num_batches = min(_BATCHES, job.epoch_batches) * ranks.size
    seeds = dict.fromkeys(ways, draw_seeds(graph.num_nodes, num_batches, job.batch_size, ranks.device))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    per_row: dict[str, list[float]] = {name: [] for name in ways}
    counts, extra = {name: _Count() for name in ways}, {name: dict[str, float]() for name in ways}

    def epoch(name: str, loader: Iterable[Any]) -> None:
        counts[name] = _Count()
        for batch in loader:
            ways[name].count(batch, counts[name])

    kept: list[Iterable[Any]] = []
    loaders: dict[str, Iterable[Any]] = {}
    for name, way in ways.items():  # the first one compiles
        before = _used(ranks, memory)
        loaders[name] = way.make(fanout, seeds[name])
        epoch(name, loaders[name])
        extra[name]["one_bytes"] = _used(ranks, memory) - before
    batch_size = job.batch_size
    for _ in range(_SIZES):
        pyg, dgl = (ranks.mean(counts[name].rows / counts[name].batches) for name in ("PyG", "DGL"))
        batch_size = max(1, round(batch_size * pyg / dgl))
        seeds["DGL"] = draw_seeds(graph.num_nodes, num_batches, batch_size, ranks.device)
        loaders["DGL"] = ways["DGL"].make(fanout, seeds["DGL"])
        epoch("DGL", loaders["DGL"])
    for _ in range(_WARM_UPS):  # until torch holds the memory that they need
        for name, loader in loaders.items():
            epoch(name, loader)
    for k in range(_EPOCHS * job.rounds):
        for name in list(ways)[:: -1 if k % 2 else 1]:  # each follows itself as often as the other
            took = ranks.seconds(lambda name=name: epoch(name, loaders[name]))  # type: ignore[misc]
            seconds[name].append(took / counts[name].batches)
            per_row[name].append(took / ranks.mean(counts[name].rows))
    extra["PyG"].update(_spread(np.divide(per_row["PyG"], per_row["DGL"])))
    for name, times in per_row.items():  # the noise: ratios of a loader to itself
        itself = np.divide(times[1:], times[:-1])
        extra[name].update({"own_low": np.quantile(itself, 0.25), "own_high": np.quantile(itself, 0.75)})
    for name, way in ways.items():
        before = _used(ranks, memory)
        for _ in range(_LOADERS - 1):
            kept.append(way.make(fanout, seeds[name]))
            epoch(name, kept[-1])
        extra[name]["more_bytes"] = _used(ranks, memory) - before
    for name, count in counts.items():
        sink.add(
            Row(
                part="stores",
                workload=fanout_name(fanout),
                setting=f"{place}, {name}",
                name="manyhop",
                gpus=job.gpus,
                seconds=seconds[name],
                edges=ranks.mean(count.edges / count.batches),
                extra={"rows": ranks.mean(count.rows / count.batches), **extra[name]},
            )
        )


def _spread(ratios: npt.NDArray[np.float64]) -> dict[str, float]:
    """The median of ratios and their quartiles, and between which the median of more of them lies, by 95 %."""
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    off, ordered = 0.98 * len(ratios) ** 0.5, np.sort(ratios)  # how many of them are below the median is binomial
    first, last = (round(len(ratios) / 2 + sign * off) for sign in (-1, 1))
    ends = {"ratio_from": float(ordered[max(0, first - 1)]), "ratio_to": float(ordered[min(len(ratios) - 1, last)])}
    return {"ratio_low": low, "ratio": middle, "ratio_high": high, **ends}


def _used(ranks: Ranks, memory: PeakMemory) -> float:
    ranks.meet()
    gc.collect()
    tidy(ranks)
    return memory.now()


def _ways(job: Job, ranks: Ranks, graph: GPUGraph, place: Place) -> dict[str, _Way]:
    together = ranks.size > 1
    features, x = _features(job, ranks, graph.num_nodes, place)
    row, col = graph.edge_index()
    edges = manyhop_pyg.GraphStore()
    size = (graph.num_nodes, graph.num_nodes)
    edges.put_edge_index((row, col), edge_type=None, layout="coo", size=size)
    g = manyhop_dgl.Graph((row, col), graph.num_nodes)
    g.ndata["x"] = x
    common: dict[str, Any] = {"shuffle": True, "device": ranks.device}
    if place == "distributed":  # exchanges take a thread
        common["num_workers"] = 1

    def make_pyg(fanout: tuple[int, ...], seeds: Tensor) -> Iterable[Any]:
        options = {"batch_size": seeds.shape[1], "distributed": together, **common}
        return manyhop_pyg.NeighborLoader((features, edges), list(fanout), seeds.flatten().cpu(), **options)

    def make_dgl(fanout: tuple[int, ...], seeds: Tensor) -> Iterable[Any]:
        sampler = manyhop_dgl.NeighborSampler(list(fanout)[::-1], prefetch_node_feats=["x"])
        options = {"batch_size": seeds.shape[1], "use_ddp": together, "output": "tensors", **common}
        return manyhop_dgl.DataLoader(g, seeds.flatten().cpu(), sampler, **options)

    def count_pyg(batch: Any, count: _Count) -> None:
        count.batches += 1
        edge_index = batch.edge_index
        layers = [edge_index.narrow(1, 0, end) for end in accumulate(batch.num_sampled_edges)]
        count.edges += layers[-1].shape[1]
        count.rows += batch.x.shape[0]

    def count_dgl(batch: Any, count: _Count) -> None:
        count.batches += 1
        layers = [(block.indptr, block.indices) for block in batch.blocks]
        count.edges += sum(sources.shape[0] for _, sources in layers)
        count.rows += batch.node_features["x"].shape[0]

    return {"PyG": _Way(make_pyg, count_pyg), "DGL": _Way(make_dgl, count_dgl)}


def _features(
    job: Job, ranks: Ranks, num_nodes: int, place: Place
) -> tuple[manyhop_pyg.FeatureStore, Tensor | DistributedRows]:
    """A store with features ``[num_nodes, num_features]`` in their place, and these for another store."""
    name: dict[str, Any] = {"group_name": None, "attr_name": "x", "index": None}
    if place == "device":
        there: dict[str, Any] = {"placement": "device", "device": ranks.device} if ranks.on_gpu else {}
        store = manyhop_pyg.FeatureStore(**there)
        store.put_tensor(draw_features(num_nodes, job.num_features, torch.float32, ranks.device), **name)
        return store, store.get_tensor(**name)
    manyhop.init()
    store = manyhop_pyg.FeatureStore()
    kind: Literal["continuous", "distributed"] = "continuous" if place == "sharded" else "distributed"
    found = WholeMemory((num_nodes, job.num_features), torch.float32, kind=kind)
    mine = found.local_rows
    found.put(draw_features(len(mine), job.num_features, torch.float32, ranks.device, first=mine.start), mine.start)
    store.put_tensor(found, **name)
    return store, store.distributed_rows[0] if place == "distributed" else store.get_tensor(**name)
