"""Loaders of PyG and of DGL over the same rows, in turns: time per row.

DGL's hops sample neighbours of all nodes so far, PyG's of the new ones only. DGL's batches therefore get fewer seeds,
so that they have about as many rows. Consumers read the rows and the edges of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

import manyhop
import manyhop_dgl
import manyhop_pyg
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_seeds
from benchmarks.gpu.hardware import Ranks, tidy
from benchmarks.gpu.job import Job, Sink, fanout_name, ratios, reason_of

_BATCHES = 64  # of an epoch and GPU, at most
_EPOCHS = 8  # of each loader per round
_WARM_UPS = 3
_SIZES = 2  # of DGL's batches that are tried: their rows are not in proportion to their seeds

MakeLoader = Callable[[Tensor], Iterable[Any]]
"""``make(seeds)``: a loader over the seeds ``[num_batches, batch_size]`` of all ranks."""


def stores(job: Job, ranks: Ranks, graph: GPUGraph, sink: Sink) -> None:
    """Measure both frameworks in turns for each place of the rows."""
    if ranks.size > 1:
        manyhop.init(timeout=300)
    x = draw_features(graph.num_nodes, job.num_features, torch.float32, ranks.device).cpu()
    edge_index = graph.edge_index().cpu()
    for place in ("sharded", "distributed") if ranks.size > 1 else ("replica",):
        try:
            _measure(job, ranks, graph.num_nodes, sink, place, _makers(job, ranks, edge_index, x, place))
        except Exception as error:  # a line in the table
            sink.missing("stores", reason_of(error), place)
        tidy(ranks)


def _makers(job: Job, ranks: Ranks, edge_index: Tensor, x: Tensor, place: str) -> tuple[MakeLoader, MakeLoader]:
    """Return PyG's and DGL's loaders over one graph and one tensor of features in host memory, which GPUs hold once."""
    fanout = list(job.fanouts[0])
    common: dict[str, Any] = {"shuffle": True, "device": ranks.device}
    if place != "replica":
        common["placement"] = place
    if place == "distributed":  # exchanges take a thread
        common["num_workers"] = 1
    data = Data(x=x, edge_index=edge_index)
    g = manyhop_dgl.Graph((edge_index[0], edge_index[1]), x.shape[0])
    g.ndata["x"] = x
    sampler = manyhop_dgl.NeighborSampler(fanout[::-1], prefetch_node_feats=["x"])

    def pyg(seeds: Tensor) -> Iterable[Any]:
        size, ids = seeds.shape[1], seeds.flatten().cpu()
        return manyhop_pyg.NeighborLoader(data, fanout, ids, batch_size=size, distributed=ranks.size > 1, **common)

    def dgl(seeds: Tensor) -> Iterable[Any]:
        size, ids = seeds.shape[1], seeds.flatten().cpu()
        options = {"batch_size": size, "use_ddp": ranks.size > 1, "output": "tensors", **common}
        return manyhop_dgl.DataLoader(g, ids, sampler, **options)

    return pyg, dgl


def _measure(
    job: Job, ranks: Ranks, num_nodes: int, sink: Sink, place: str, makers: tuple[MakeLoader, MakeLoader]
) -> None:
    num_batches = min(_BATCHES, job.epoch_batches) * ranks.size
    seeds = draw_seeds(num_nodes, num_batches, job.batch_size, ranks.device)
    loaders = [make(seeds) for make in makers]
    readers = (_read_pyg, _read_dgl)
    rows, count, batch_size = [0.0, 0.0], [0, 0], job.batch_size

    def epoch(k: int) -> None:
        read = [readers[k](batch) for batch in loaders[k]]
        rows[k], count[k] = float(sum(read)), len(read)

    for _ in range(_SIZES):
        epoch(0), epoch(1)
        pyg, dgl = (ranks.mean(rows[k] / count[k]) for k in (0, 1))
        batch_size = max(1, round(batch_size * pyg / dgl))
        loaders[1] = makers[1](draw_seeds(num_nodes, num_batches, batch_size, ranks.device))
    for _ in range(_WARM_UPS):  # until torch holds the memory that they need
        epoch(0), epoch(1)
    seconds: list[list[float]] = [[], []]
    per_row: list[list[float]] = [[], []]
    for turn in range(_EPOCHS * job.rounds):
        for k in (0, 1) if turn % 2 else (1, 0):  # each follows itself as often as the other
            took = ranks.seconds(lambda k=k: epoch(k))  # type: ignore[misc]
            seconds[k].append(took / count[k])
            per_row[k].append(took / ranks.mean(rows[k]))
    ratio = ratios(np.divide(*per_row))
    for k, name in enumerate(("PyG", "DGL")):
        extra = {"rows": ranks.mean(rows[k] / count[k]), "per_row_s": float(np.median(per_row[k])), **ratio}
        setting = f"{place}, {name}"
        sink.add(job.row("stores", fanout_name(job.fanouts[0]), seconds[k], setting=setting, extra=extra))


def _read_pyg(batch: Any) -> int:
    """Read the rows and the edges of each layer, as layers do that are trimmed; return the number of rows."""
    for end in accumulate(batch.num_sampled_edges):
        batch.edge_index.narrow(1, 0, end)
    return int(batch.x.shape[0])


def _read_dgl(batch: Any) -> int:
    """Read the rows and the edges of each block; return the number of rows."""
    for block in batch.blocks:
        block.indptr, block.indices  # noqa: B018  # computed when they are read
    return int(batch.node_features["x"].shape[0])
