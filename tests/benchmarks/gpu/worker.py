"""One process of ``benchmarks gpu``: ``python -m benchmarks.gpu.worker JOB``, JOB in JSON.

On several GPUs there is one for each, identified by RANK and WORLD_SIZE (but one for all GPUs that measures limits).
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.common import import_quietly
from benchmarks.gpu.gather import exchange, gather
from benchmarks.gpu.graphs import GPUGraph, rmat
from benchmarks.gpu.hardware import PeakMemory, Ranks, limits, tidy
from benchmarks.gpu.job import Job, Sink, reason_of
from benchmarks.gpu.loaders import build, loaders
from benchmarks.gpu.peers import join_group
from benchmarks.gpu.sampling import sampling
from benchmarks.gpu.stores import stores


def main() -> int:
    job = Job.from_json(sys.argv[1])
    warnings.simplefilter("ignore")  # of the peers
    run(job, rank=int(os.environ.get("RANK", "0")))
    sys.stdout.flush()
    os._exit(0)  # some peers' libraries end the process with an error when they are unloaded


def run(job: Job, *, rank: int = 0) -> None:
    """Measure all parts of a job; what fails is written down, and the next part follows."""
    alone = job.contender == "hardware"
    ranks = Ranks(rank, 1 if alone else job.gpus, _device(job, rank))
    sink = Sink(job, silent=rank > 0)
    if alone:
        _guarded(sink, "limits", lambda: limits(job, ranks, sink))
        return
    _join(job, ranks)
    memory = PeakMemory(ranks)
    graph: GPUGraph | None = None
    if {"sampling", "loader", "epoch", "stores", "build"} & set(job.parts):
        graph = rmat(job.num_nodes, job.num_edges, ranks.device)
    if "sampling" in job.parts and graph is not None:
        _guarded(sink, "sampling", lambda: sampling(job, ranks, graph, memory, sink))
        tidy(ranks)
    if "gather" in job.parts:
        _guarded(sink, "gather", lambda: gather(job, ranks, memory, sink))
        tidy(ranks)
        if ranks.size > 1 and job.contender == "manyhop":
            _guarded(sink, "exchange", lambda: exchange(job, ranks, sink))
            tidy(ranks)
    if {"loader", "epoch"} & set(job.parts) and graph is not None:
        _guarded(sink, "loader", lambda: loaders(job, ranks, graph, memory, sink))
    if "stores" in job.parts and graph is not None:
        _guarded(sink, "stores", lambda: stores(job, ranks, graph, sink))
    if "build" in job.parts and graph is not None:
        _guarded(sink, "build", lambda: build(job, ranks, graph, memory, sink))
    if ranks.size > 1:
        with contextlib.suppress(Exception):
            ranks.meet()


def _device(job: Job, rank: int) -> torch.device:
    if job.device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def _join(job: Job, ranks: Ranks) -> None:
    """The group of all ranks, made as the contender's users make it. Peers on one GPU make theirs when they start."""
    if ranks.size == 1 or dist.is_initialized():
        return
    if job.contender == "manyhop":
        import_quietly("manyhop").init(timeout=300)
        return
    join_group(ranks)


def _guarded(sink: Sink, part: str, measure: Callable[[], None]) -> None:
    try:
        measure()
    except Exception as error:  # a line in the table
        sink.missing(part, reason_of(error))


if __name__ == "__main__":
    sys.exit(main())
