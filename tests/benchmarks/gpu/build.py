"""From an edge list to the first batch: edges of the host, grouped by the GPU and by the CPU, and of the GPU.

Imports PyG, so the worker imports it late.
"""

from __future__ import annotations

import contextlib
import gc
import time
from contextlib import AbstractContextManager
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor
from torch_geometric.data import Data

import manyhop_pyg
from benchmarks.gpu.graphs import GPUGraph
from benchmarks.gpu.job import Job, Row, Sink, fanout_name
from benchmarks.gpu.timing import PeakMemory, Ranks


def build(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure loaders without features. The first one of all, which compiles kernels, does not count."""
    edges = _shuffled(graph, ranks)
    graph.move_to_host()
    on_cpu = patch("manyhop.graph.deferred.has_room", lambda *sizes: False)
    ways: list[tuple[str, torch.device, AbstractContextManager[object]]] = [
        ("on the host, grouped by the GPU", edges.device, contextlib.nullcontext()),
        (f"on the host, grouped by the CPU, {torch.get_num_threads()} threads", edges.device, on_cpu),
        ("on the GPU, grouped by it", ranks.device, contextlib.nullcontext()),
    ]
    _first_batch(job, ranks, edges, graph.num_nodes)
    for setting, device, way in ways:
        given = edges.to(device)
        with way:
            peak = memory.peak(lambda given=given: _first_batch(job, ranks, given, graph.num_nodes))  # type: ignore[misc]
            times = [_first_batch(job, ranks, given, graph.num_nodes) for _ in range(job.rounds)]
        sink.add(
            Row(
                part="build",
                workload=f"{edges.size(1):,} edges, {fanout_name(job.fanouts[0])}",
                setting=setting,
                name="manyhop",
                gpus=job.gpus,
                seconds=[made + first for made, first in times],
                edges=edges.size(1),
                extra={"construct_s": median(made for made, _ in times), "peak_bytes": peak},
            )
        )


def _shuffled(graph: GPUGraph, ranks: Ranks) -> Tensor:
    """``[2, num_edges] int64`` in host memory, in random order."""
    draw = torch.Generator(ranks.device).manual_seed(4)
    order = torch.randperm(graph.num_edges, device=ranks.device, generator=draw)
    edges = torch.empty(2, graph.num_edges, dtype=torch.int64)
    for side, ids in zip(edges, graph.edge_index(), strict=True):
        side.copy_(ids[order])
    return edges


def _first_batch(job: Job, ranks: Ranks, edges: Tensor, num_nodes: int) -> tuple[float, float]:
    """Seconds until there is a loader, and from then on until there is a batch."""
    gc.collect()
    data = Data(edge_index=edges, num_nodes=num_nodes)
    ranks.finish()
    began = time.perf_counter()
    loader = manyhop_pyg.NeighborLoader(
        data, list(job.fanouts[0]), batch_size=job.batch_size, shuffle=True, seed=1, device=ranks.device
    )
    made = time.perf_counter()
    next(iter(loader))
    ranks.finish()
    return made - began, time.perf_counter() - made
