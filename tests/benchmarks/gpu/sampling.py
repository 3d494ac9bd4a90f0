"""Sampling alone on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.graphs import GPUGraph, draw_seeds
from benchmarks.gpu.hardware import READS, PeakMemory, Ranks, tidy
from benchmarks.gpu.job import Job, Row, Sink, fanout_name, reason_of
from manyhop.graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Graph, PlacedGraph
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest

READS_PER_EDGE = 3
"""Random accesses that an edge needs: the neighbour, and twice the table that finds out which nodes are new."""

Made: TypeAlias = "Iterator[tuple[str, _Calls, int]]"
"""Where the topology resides, a sampler over it, batches per call."""


def sampling(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure the sampler at all fanouts."""
    seeds = draw_seeds(graph.num_nodes, job.sampling_batches, job.batch_size, ranks.device)
    for fanout in job.fanouts:
        workload = fanout_name(fanout)
        try:
            for place, sample, size in _samplers(job, ranks, graph, seeds, fanout):
                tidy(ranks)
                sink.add(_measure(job, ranks, memory, workload, place, sample, size))
        except Exception as error:  # a line in the table
            sink.missing("sampling", reason_of(error), workload)


def _measure(job: Job, ranks: Ranks, memory: PeakMemory, workload: str, place: str, sample: _Calls, size: int) -> Row:
    calls = max(1, job.sampling_batches // size)
    edges = 0

    def run() -> None:
        nonlocal edges
        edges = sample(calls, size)

    batches = calls * size
    seconds = [s / batches for s in ranks.rounds(run, job.rounds, warm_up=2)]
    extra = {"per_call": size, "peak_bytes": memory.peak(run)}
    if ranks.on_gpu:
        extra["launch_s"] = sample.launch_seconds(size, job.rounds)
    per_batch = ranks.mean(edges / batches)
    return job.row(
        "sampling",
        workload,
        seconds,
        setting=f"{size} per call{place}",
        edges=per_batch,
        work={READS: READS_PER_EDGE * per_batch},
        extra=extra,
    )


def _samplers(job: Job, ranks: Ranks, graph: GPUGraph, seeds: Tensor, fanout: tuple[int, ...]) -> Made:
    for place, topology in _topologies(job, ranks, graph):
        for size in job.merged:  # samplers of their own: what they keep for one size does not count for another
            yield place, _Calls(topology, ranks, seeds, fanout), size
        if 1 in job.merged:
            yield f"{place}, one ahead", _Calls(topology, ranks, seeds, fanout, ahead=True), 1


class _Calls:
    """manyhop's sampler: a batch after the other, or groups of which the next is begun before the last is finished.

    Args:
        ahead: batches of their own are begun so, too.
    """

    def __init__(
        self, topology: Graph, ranks: Ranks, seeds: Tensor, fanout: tuple[int, ...], *, ahead: bool = False
    ) -> None:
        from manyhop.sampling import GPUSampler

        spec = NeighborSpec(fanouts=dict.fromkeys(topology.edge_types, fanout))
        self._sampler = GPUSampler(topology, spec, device=ranks.device)
        self._ranks, self._ahead = ranks, ahead
        on_host = seeds.cpu()  # as loaders draw them
        self._requests = [
            NodeRequest(key=BatchKey(0, 0, batch), seeds={topology.node_types[0]: on_host[batch]})
            for batch in range(len(on_host))
        ]

    def __call__(self, calls: int, size: int) -> int:
        if size == 1 and not self._ahead:
            return sum(_edges(self._sampler.sample(self._requests[call])) for call in range(calls))
        edges, pending = 0, self._sampler.begin(self._group(0, size))
        for call in range(1, calls):
            following = self._sampler.begin(self._group(call, size))
            edges += sum(map(_edges, pending.finish()))
            pending = following
        return edges + sum(map(_edges, pending.finish()))

    def launch_seconds(self, size: int, rounds: int) -> float:
        """Seconds per batch that the GPU takes for launches that wait in its queue, with the writing of results."""
        launches, seconds = 4, []
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # of torch; until all is enqueued
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record()
            pending = [self._sampler.begin(self._group(0, size)) for _ in range(launches)]
            ended.record()
            torch.cuda.synchronize()
            seconds.append(began.elapsed_time(ended) / 1e3 / launches / size)
            for launch in pending:
                launch.finish()
        return self._ranks.slowest(float(np.median(seconds[1:])))

    def _group(self, call: int, size: int) -> list[NodeRequest]:
        return self._requests[call * size : (call + 1) * size]


def _topologies(job: Job, ranks: Ranks, graph: GPUGraph) -> Iterator[tuple[str, Graph]]:
    """The same topology in all memories that a GPU can read: its own, the host's, that of all GPUs together."""
    yield "", graph.engine
    if ranks.size == 1 and ranks.on_gpu:
        yield ", pinned topology", PlacedGraph.of(_topology(graph, Tensor.cpu), ranks.device, "pinned").graph
    if "sharded" in job.memories:
        from manyhop.features import WholeMemory

        def spread(table: Tensor) -> Tensor:
            memory = WholeMemory(table.shape, table.dtype, kind="continuous")
            memory.copy_from(table)
            return memory.whole

        yield ", sharded topology", _topology(graph, spread)


def _topology(graph: GPUGraph, move: Callable[[Tensor], Tensor]) -> Graph:
    csc = CSC(num_src=graph.num_nodes, colptr=move(graph.colptr), row=move(graph.row))
    return Graph(num_nodes={HOMOGENEOUS_NODE: graph.num_nodes}, csc={HOMOGENEOUS_EDGE: csc})


def _edges(sample: Any) -> int:
    return sum(row.numel() for row in sample.row.values())
