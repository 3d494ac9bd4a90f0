"""Training with each loader, for ``manyhop bench gpu``: epochs of GraphSAGE, in turns with the step alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import numpy as np

from manyhop.bench._gpu_graphs import GPUGraph, draw_seeds
from manyhop.bench._gpu_job import Job, Row, fanout_name
from manyhop.bench._gpu_timing import PeakMemory, Ranks
from manyhop_pyg._bench_gpu_data import MakeLoader, is_ddp, setting_of, work_of
from manyhop_pyg._bench_gpu_step import Step

_WARM_UP = 16  # steps
_KEPT = 128  # batches that the step alone works on, all different, as torch's allocator sees the sizes of those
_QUEUED = 4  # steps that wait in the GPU's queue


def train(
    job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, make: MakeLoader, placement: str, most: int
) -> Iterator[Row]:
    """Rows of the first width of the model at all scalings, and of further ones at the first scaling."""
    sizes = {"weak": min(job.epoch_batches, most), "strong": min(max(1, job.strong_batches // ranks.size), most)}
    for hidden in job.hidden:
        measured: dict[int, Row] = {}  # by number of batches: with one GPU, both scalings are the same work
        for scaling in job.scalings if hidden == job.hidden[0] else job.scalings[:1]:
            batches = sizes[scaling]
            if batches not in measured:
                measured[batches] = _measure(job, ranks, graph, memory, make, placement, hidden, batches)
            workload = f"{fanout_name(job.fanouts[0])}, {hidden} hidden, {scaling}"
            yield replace(measured[batches], workload=workload)


def _measure(
    job: Job,
    ranks: Ranks,
    graph: GPUGraph,
    memory: PeakMemory,
    make: MakeLoader,
    placement: str,
    hidden: int,
    batches: int,
) -> Row:
    """Epochs, and as many steps over batches that are there already, in turns: what else the machine does varies."""
    seeds = draw_seeds(graph.num_nodes, batches * ranks.size, job.batch_size, ranks.device)
    loader = make(job.fanouts[0], seeds)
    step = Step(job, ranks, len(job.fanouts[0]), hidden, ddp=is_ddp(ranks, placement))
    count = edges = nodes = 0

    def epoch(most: int | None = None) -> None:
        nonlocal count, edges, nodes
        count = edges = nodes = 0
        for batch in islice(loader, most):
            step(batch)
            edges += batch.edge_index.shape[1]
            nodes += batch.x.shape[0]
            count += 1

    epoch(_WARM_UP)
    peak = max(memory.peak(partial(epoch, _WARM_UP)), memory.now())
    kept = list(islice(loader, _KEPT))

    def alone(steps: int) -> None:
        for batch in islice(cycle(kept), steps):
            step(batch)

    alone(_WARM_UP)
    on_gpu = ranks.gpu_seconds(partial(alone, _QUEUED)) / _QUEUED
    seconds, without = [], []
    for _ in range(job.epochs):
        without.append(ranks.seconds(partial(alone, batches)) / batches)
        seconds.append(ranks.seconds(epoch) / count)
    per_batch, rows = ranks.mean(edges / count), ranks.mean(nodes / count)
    low, middle, high = np.quantile(np.divide(seconds, without), (0.25, 0.5, 0.75)).tolist()
    extra = {
        "batches": count,
        "peak_bytes": peak,
        "step_s": float(np.median(without)),
        "step_gpu_s": on_gpu,
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
    }
    return Row(
        part="epoch",
        workload="",
        setting=setting_of(job, placement),
        name=job.contender,
        gpus=job.gpus,
        seconds=seconds,
        edges=per_batch,
        work=work_of(job, per_batch, rows, placement),
        extra=extra,
    )
