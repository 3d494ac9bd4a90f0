"""Training with each loader, for ``benchmarks gpu``: epochs of GraphSAGE, in turns with the step alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
from torch_geometric.data import Data

from benchmarks.gpu.graphs import GPUGraph, draw_seeds
from benchmarks.gpu.job import Job, Row, fanout_name
from benchmarks.gpu.loaders.data import MakeLoader, is_ddp, setting_of, work_of
from benchmarks.gpu.loaders.step import Step
from benchmarks.gpu.timing import PeakMemory, Ranks

_WARM_UP = 16  # steps
_TURN = 64  # steps, after which those with loading and those without take turns
_KEPT = 128  # batches of an epoch that are there already, for the step alone
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
    """Epochs, and steps over batches that are there already, in turns: what else the machine does varies."""
    seeds = draw_seeds(graph.num_nodes, batches * ranks.size, job.batch_size, ranks.device)
    loader = make(job.fanouts[0], seeds)
    step = Step(
        job, ranks, len(job.fanouts[0]), hidden, ddp=is_ddp(ranks, placement), captured=placement.endswith("captured")
    )

    def steps(source: Iterable[Data]) -> None:
        for batch in source:
            step(batch)

    steps(islice(loader, _WARM_UP))
    peak = max(memory.peak(lambda: steps(islice(loader, _WARM_UP))), memory.now())
    kept = list(islice(loader, _KEPT))
    edges = ranks.mean(float(np.mean([_count(batch, "edge_mask", batch.edge_index.shape[1]) for batch in kept])))
    nodes = ranks.mean(float(np.mean([_count(batch, "node_mask", batch.x.shape[0]) for batch in kept])))
    for _ in range(2):
        steps(kept[:_QUEUED])  # captured ones record sizes that are new
    on_gpu = ranks.gpu_seconds(partial(steps, kept[:_QUEUED])) / _QUEUED
    del kept
    gc.collect()  # else Python may look through all that was imported in the middle of an epoch: a quarter of a second
    epochs: list[float] = []
    pairs: list[tuple[float, float]] = []
    for _ in range(job.epochs):
        seconds, some = _in_turns(ranks, steps, loader, batches)
        epochs.append(seconds)
        pairs += some
    low, middle, high = np.quantile([loading / alone for loading, alone in pairs], (0.25, 0.5, 0.75)).tolist()
    extra = {
        "batches": batches,
        "peak_bytes": peak,
        "step_s": float(np.median([alone for _, alone in pairs])),
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
        seconds=epochs,
        edges=edges,
        work=work_of(job, edges, nodes, placement),
        extra=extra,
    )


def _count(batch: Data, mask: str, padded: int) -> int:
    """Nodes or edges of a batch, without padding."""
    return int(batch[mask].sum()) if mask in batch else padded


def _in_turns(
    ranks: Ranks, steps: Callable[[Iterable[Data]], None], loader: Iterable[Data], batches: int
) -> tuple[float, list[tuple[float, float]]]:
    """One epoch, in parts, each after as many steps over batches that are there already, as long as there are some.

    No batch is used twice: torch and its libraries know the sizes that they have seen, and are quicker with them.

    Returns:
        Seconds per step of the epoch; of its parts, seconds per step with loading and without.
    """
    kept = list(islice(loader, min(_KEPT, batches)))
    source = iter(loader)
    seconds, pairs = 0.0, []
    for first in range(0, batches, _TURN):
        there, n = kept[first : first + _TURN], min(_TURN, batches - first)
        alone = ranks.seconds(partial(steps, there))
        to_the_end = first + n == batches  # which the loader then knows
        loading = ranks.seconds(partial(steps, islice(source, None if to_the_end else n)))
        seconds += loading
        if len(there) == n:
            pairs.append((loading / n, alone / n))
    return seconds / batches, pairs
