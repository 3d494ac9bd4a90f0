"""Whole loaders and training for ``benchmarks gpu``: manyhop's, PyG's own and cuGraph-PyG's, over the same graph.

Imports PyG, so the processes of the benchmark import it late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.gpu.graphs import GPUGraph, draw_seeds
from benchmarks.gpu.job import Job, Row, Sink, fanout_name, reason_of
from benchmarks.gpu.loaders.cugraph import cugraph_pyg
from benchmarks.gpu.loaders.data import DataMaker, MakeLoader, manyhops_data, pygs_data, setting_of, work_of
from benchmarks.gpu.loaders.epoch import train
from benchmarks.gpu.timing import PeakMemory, Ranks, tidy

_WARM_UP = 16  # batches before it is measured

_ONLY = {"padded": "loader", "DDP": "epoch", "captured": "epoch", "distributed": "loader"}
"""Ways and places that are measured at one part alone."""


def loaders(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure the job's contender: loading (``"loader"``) and training (``"epoch"``), as the job defines them."""
    for placement in job.placements:
        only = _ONLY.get(placement.rpartition(", ")[2])
        parts = [part for part in ("loader", "epoch") if part in job.parts and only in (None, part)]
        if parts:
            _measure(job, ranks, graph, memory, sink, placement, parts)
            tidy(ranks)  # the data, which nobody refers to any more


def _measure(
    job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink, placement: str, parts: Sequence[str]
) -> None:
    """These parts with the data in one place."""
    prepare: DataMaker = {"manyhop": manyhops_data, "PyG": pygs_data, "cuGraph-PyG": cugraph_pyg}[job.contender]
    try:
        make, most = prepare(job, ranks, graph, placement)
    except Exception as error:  # a line in the table
        for part in parts:
            sink.missing(part, reason_of(error), placement)
        return
    if "loader" in parts:
        for fanout in job.fanouts:
            load = partial(_load, job, ranks, graph, memory, make, fanout, placement, most)
            _keep(sink, "loader", fanout_name(fanout), load)
    if "epoch" in parts:
        epochs = partial(train, job, ranks, graph, memory, make, placement, most)
        _keep(sink, "epoch", fanout_name(job.fanouts[0]), epochs)


def _keep(sink: Sink, part: str, workload: str, measure: Callable[[], Iterator[Row]]) -> None:
    """Write the rows down as they come; a failure is a line in the table."""
    try:
        for row in measure():
            sink.add(row)
    except Exception as error:
        sink.missing(part, reason_of(error), workload)


def _load(
    job: Job,
    ranks: Ranks,
    graph: GPUGraph,
    memory: PeakMemory,
    make: MakeLoader,
    fanout: tuple[int, ...],
    placement: str,
    most: int,
) -> Iterator[Row]:
    """Epochs in which nothing is done with the batches."""
    batches = min(job.epoch_batches, most)
    seeds = draw_seeds(graph.num_nodes, batches * ranks.size, job.batch_size, ranks.device)
    for _ in zip(range(_WARM_UP), make(fanout, seeds), strict=False):  # compiles, starts and allocates
        pass
    ranks.meet()
    began = time.perf_counter()
    loader = make(fanout, seeds)
    construct = time.perf_counter() - began
    edges = nodes = count = 0
    first: list[float] = []
    seconds = []

    def epoch() -> None:
        nonlocal edges, nodes, count
        began = time.perf_counter()
        edges = nodes = count = 0
        for batch in loader:
            if count == 0:
                ranks.finish()
                first.append(time.perf_counter() - began)
            edges += batch.edge_index.shape[1]
            nodes += batch.x.shape[0]
            count += 1

    for _ in range(job.epochs):
        seconds.append(ranks.seconds(epoch) / count)
    done = count
    peak = memory.peak(epoch)
    if "padded" in placement:
        edges = sum(int(batch.edge_mask.sum()) for batch in loader)
        nodes = sum(int(batch.node_mask.sum()) for batch in loader)
    per_batch, rows = ranks.mean(edges / count), ranks.mean(nodes / count)
    extra = {
        "first_s": ranks.slowest(first[0]),
        "construct_s": ranks.slowest(construct),
        "batches": done,
        "nodes": rows,
        "peak_bytes": peak,
    }
    yield Row(
        part="loader",
        workload=fanout_name(fanout),
        setting=setting_of(job, placement),
        name=job.contender,
        gpus=job.gpus,
        seconds=seconds,
        edges=per_batch,
        work=work_of(job, per_batch, rows, placement),
        extra=extra,
    )
