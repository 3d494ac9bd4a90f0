"""Sampling alone on GPUs: manyhop, pylibcugraph, and WholeGraph's operation for several layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import import_quietly
from benchmarks.gpu.graphs import GPUGraph, draw_seeds, heterogeneous
from benchmarks.gpu.hardware import READS, PeakMemory, Ranks, tidy
from benchmarks.gpu.job import Job, Row, Sink, fanout_name, reason_of
from benchmarks.gpu.peers import start_cugraph, start_wholegraph, whole_tensor
from manyhop import graph as graphs
from manyhop.graph import CSC, HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Graph
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest

READS_PER_EDGE = 3
"""Random accesses that an edge needs: the neighbour, and twice the table that finds out which nodes are new."""

SampleCalls: TypeAlias = Callable[[int, int], int]
"""``sample(calls, size)``: so many calls of so many batches each; returns the number of sampled edges."""

Made: TypeAlias = Iterator[tuple[str, SampleCalls, tuple[int, ...]]]
"""Where the topology lies, the sampler, its numbers of batches per call."""

SamplerMaker: TypeAlias = Callable[[Job, Ranks, GPUGraph, Tensor, tuple[int, ...]], Made]
"""``make(job, ranks, graph, seeds, fanout)``."""


def sampling(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure the job's contender at all fanouts."""
    make: SamplerMaker = {"manyhop": _manyhop, "pylibcugraph": _pylibcugraph, "WholeGraph": _wholegraph}[job.contender]
    seeds = draw_seeds(graph.num_nodes, job.sampling_batches, job.batch_size, ranks.device)
    tasks = {fanout_name(fanout): (make, fanout) for fanout in job.fanouts}
    if job.contender == "manyhop" and job.gpus == 1 and len(job.fanouts) > 1:
        tasks[f"3 node types {fanout_name(job.fanouts[-1])}"] = (_manyhop_hetero, job.fanouts[-1])
    for workload, (make, fanout) in tasks.items():
        try:
            for place, sample, sizes in make(job, ranks, graph, seeds, fanout):
                for size in sizes:
                    tidy(ranks)
                    sink.add(_measure(job, ranks, memory, workload, place, sample, size))
        except Exception as error:  # one contender's failure is a line in the table
            sink.missing("sampling", reason_of(error), workload)


def _measure(
    job: Job, ranks: Ranks, memory: PeakMemory, workload: str, place: str, sample: SampleCalls, size: int
) -> Row:
    calls = max(1, job.sampling_batches // size)
    edges = 0

    def run() -> None:
        nonlocal edges
        edges = sample(calls, size)

    batches = calls * size
    seconds = [s / batches for s in ranks.rounds(run, job.rounds, warm_up=2)]
    extra = {"per_call": size, "peak_bytes": memory.peak(run)}
    if isinstance(sample, _Calls) and ranks.on_gpu:
        extra["launch_s"] = sample.launch_seconds(size, job.rounds)
    per_batch = ranks.mean(edges / batches)
    return Row(
        part="sampling",
        workload=workload,
        setting=f"{size} per call{place}",
        name=job.contender,
        gpus=job.gpus,
        seconds=seconds,
        edges=per_batch,
        work={READS: READS_PER_EDGE * per_batch},
        extra=extra,
    )


def _manyhop(job: Job, ranks: Ranks, graph: GPUGraph, seeds: Tensor, fanout: tuple[int, ...]) -> Made:
    for place, topology in _topologies(job, ranks, graph):
        for size in job.merged:  # samplers of their own: what they keep for one size does not count for another
            yield place, _Calls(topology, ranks, seeds, fanout), (size,)
        if 1 in job.merged:
            yield f"{place}, one ahead", _Calls(topology, ranks, seeds, fanout, ahead=True), (1,)


def _manyhop_hetero(job: Job, ranks: Ranks, graph: GPUGraph, seeds: Tensor, fanout: tuple[int, ...]) -> Made:
    topology = heterogeneous(graph.num_nodes, graph.num_edges, ranks.device)
    seeds = seeds % next(iter(topology.num_nodes.values()))
    for size in job.merged:
        yield "", _Calls(topology, ranks, seeds, fanout), (size,)


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
        yield ", pinned topology", graphs.place(_topology(graph, Tensor.cpu), ranks.device, "pinned")
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


def _pylibcugraph(job: Job, ranks: Ranks, graph: GPUGraph, seeds: Tensor, fanout: tuple[int, ...]) -> Made:
    """With the options that cuGraph-PyG's loader passes. The graph is built once for all fanouts."""
    cupy = import_quietly("cupy")
    plc = import_quietly("pylibcugraph")
    handle, plc_graph = _once("cuGraph", lambda: _cugraph_graph(ranks, graph))
    fan_out = np.array(fanout, dtype=np.int32)
    seeds = seeds[ranks.rank :: ranks.size].contiguous() if ranks.size > 1 else seeds

    def sample(calls: int, size: int) -> int:
        offsets = cupy.arange(size + 1, dtype="int64") * job.batch_size
        edges = 0
        for call in range(calls):
            at = call * size % len(seeds)
            batch = torch.cat([seeds[(at + i) % len(seeds)] for i in range(size)])
            out = plc.neighbor_sample(
                handle,
                plc_graph,
                cupy.asarray(batch),
                fan_out,
                starting_vertex_label_offsets=offsets,
                with_replacement=False,
                do_expensive_check=False,
                prior_sources_behavior="exclude",
                deduplicate_sources=True,
                return_hops=True,
                renumber=True,
                retain_seeds=True,
                compression="CSR",
                random_state=call,
            )
            edges += int(out["minors"].shape[0])
        return edges

    yield "", sample, tuple(sorted({1, *job.merged, 128 if max(job.merged) > 4 else 8}))


def _cugraph_graph(ranks: Ranks, graph: GPUGraph) -> Any:
    start_cugraph(ranks)
    cupy = import_quietly("cupy")
    plc = import_quietly("pylibcugraph")
    properties = plc.GraphProperties(is_multigraph=True, is_symmetric=False)
    share = [graph.num_edges * r // ranks.size for r in (ranks.rank, ranks.rank + 1)]
    edges = graph.edge_index(*share)
    source, target = (cupy.asarray(edges[i]) for i in (1, 0))  # sampling follows edges from their source
    edge_id = cupy.arange(*share, dtype="int64")
    edge_type = cupy.zeros(edges.shape[1], dtype="int32")
    if ranks.size == 1:
        handle = plc.ResourceHandle()
        made = plc.SGGraph(
            handle,
            properties,
            source,
            target,
            vertices_array=cupy.arange(graph.num_nodes, dtype="int64"),
            edge_id_array=edge_id,
            edge_type_array=edge_type,
        )
    else:
        comms = import_quietly("pylibcugraph.comms")
        handle = plc.ResourceHandle(comms.cugraph_comms_get_raft_handle().getHandle())
        nodes = [graph.num_nodes * r // ranks.size for r in (ranks.rank, ranks.rank + 1)]
        made = plc.MGGraph(
            handle,
            properties,
            [source],
            [target],
            vertices_array=[cupy.arange(*nodes, dtype="int64")],
            edge_id_array=[edge_id],
            edge_type_array=[edge_type],
        )
    return handle, made


def _wholegraph(job: Job, ranks: Ranks, graph: GPUGraph, seeds: Tensor, fanout: tuple[int, ...]) -> Made:
    structure = _once("WholeGraph", lambda: _wholegraph_structure(ranks, graph))
    seeds = seeds.to(torch.int32)  # of the same type as the neighbours

    def sample(calls: int, size: int) -> int:
        edges = 0
        for call in range(calls):
            _, pairs, _, _ = structure.multilayer_sample_without_replacement(seeds[call], list(fanout))
            edges += sum(int(pair.shape[1]) for pair in pairs)
        return edges

    yield "" if ranks.size == 1 else ", sharded topology", sample, (1,)


def _wholegraph_structure(ranks: Ranks, graph: GPUGraph) -> Any:
    wgth = import_quietly("pylibwholegraph.torch")
    if not dist.is_initialized():
        start_wholegraph(ranks)

    def table(values: Tensor) -> Any:
        def fill(part: Tensor, first: int) -> None:
            part.copy_(values[first : first + part.shape[0]])

        return whole_tensor(wgth, "continuous", [values.numel()], values.dtype, fill)

    structure = wgth.GraphStructure()
    structure.set_csr_graph(table(graph.colptr), table(graph.row))
    return structure


_MADE: dict[str, Any] = {}


def _once(name: str, make: Callable[[], object]) -> Any:
    if name not in _MADE:
        _MADE[name] = make()
    return _MADE[name]
