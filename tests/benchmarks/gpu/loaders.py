"""Whole loaders, epochs of GraphSAGE, and from an edge list to the first batch: manyhop, cuGraph-PyG and PyG."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import manyhop_pyg
from benchmarks.gpu.data import CLASSES, DataMaker, MakeLoader, cugraph_pyg, is_ddp, manyhops_data
from benchmarks.gpu.graphs import GPUGraph, draw_seeds
from benchmarks.gpu.hardware import COPY, PEER, READS, PeakMemory, Ranks, tidy
from benchmarks.gpu.job import Job, Row, Sink, fanout_name, ratios, reason_of
from benchmarks.gpu.sampling import READS_PER_EDGE

# One all-reduce, in which gradients lie where it reads them; nothing is searched for, nothing is sent but gradients.
_DDP: dict[str, Any] = {
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "bucket_cap_mb": 25,
    "broadcast_buffers": False,
}


class Step:
    """One step of Adam on one batch, each layer only for the nodes that the next ones need.

    With autocast where features are float16.

    Args:
        job: what is measured.
        ranks: who take part.
        num_layers: as many as the batches have hops.
        hidden: channels between layers.
        ddp: train under DDP, also where there is one rank.
        captured: replay steps, aggregate by segments, and compute only rows that seeds depend on.
    """

    def __init__(self, job: Job, ranks: Ranks, num_layers: int, hidden: int, *, ddp: bool, captured: bool) -> None:
        torch.manual_seed(0)
        model = GraphSAGE(job.num_features, hidden, num_layers, CLASSES).to(ranks.device)
        if captured:
            manyhop_pyg.accelerate(model, trim=True)
        if ddp:
            model = DistributedDataParallel(model, device_ids=[ranks.device] if ranks.on_gpu else None, **_DDP)
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=ranks.on_gpu or None)
        self._autocast = torch.autocast(ranks.device.type, torch.bfloat16, enabled=job.half)
        self._trims = captured  # by itself, and to fewer rows than PyG by the counts of a batch
        self._run = manyhop_pyg.capture(self._step) if captured else self._step

    def __call__(self, batch: Data) -> None:
        """Forward, backward, update; nothing is read back."""
        self._run(batch)

    def _step(self, batch: Data) -> None:
        size = batch.batch_size
        with self._autocast:
            per_hop = {} if self._trims else _per_hop(batch)
            out = self._model(batch.x, batch.edge_index, **per_hop)[:size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[:size].view(-1).long())
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()


def _per_hop(batch: Data) -> dict[str, list[int] | None]:
    """Nodes and edges of each hop, by which PyG's model trims; its sampler through torch-sparse reports none."""
    counts = {f"{name}_per_hop": batch.get(name) for name in ("num_sampled_nodes", "num_sampled_edges")}
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in counts.items()}


def setting_of(job: Job, placement: str) -> str:
    return placement if job.gpus > 1 else placement.removeprefix("replica").removeprefix(", ")


def work_of(job: Job, edges: float, nodes: float, placement: str) -> dict[str, float]:
    """What the hardware has to do at least for a batch."""
    size = nodes * job.num_features * (2 if job.half else 4)
    work = {READS: READS_PER_EDGE * edges}
    if placement.startswith(("sharded", "distributed")) and job.gpus > 1:
        return work | {PEER: size * (job.gpus - 1) / job.gpus}
    return work | {COPY: size}


_WARM_UP = 16  # steps
_TURN = 64  # steps, after which those with loading and those without take turns
_KEPT = 128  # batches of an epoch that are there already, for the step alone
_QUEUED = 4  # steps that wait in the GPU's queue


def train(
    job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, make: MakeLoader, placement: str
) -> Iterator[Row]:
    """Rows of the first width of the model at all scalings, and of further ones at the first scaling."""
    sizes = {"weak": job.epoch_batches, "strong": max(1, job.strong_batches // ranks.size)}
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
    extra = {
        "batches": batches,
        "peak_bytes": peak,
        "step_s": float(np.median([alone for _, alone in pairs])),
        "step_gpu_s": on_gpu,
        **ratios(loading / alone for loading, alone in pairs),
    }
    work = work_of(job, edges, nodes, placement)
    return job.row("epoch", "", epochs, setting=setting_of(job, placement), edges=edges, work=work, extra=extra)


def _count(batch: Data, mask: str, padded: int) -> int:
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


_ONLY = {"padded": "loader", "DDP": "epoch", "captured": "epoch", "distributed": "loader"}
"""Ways and places that are measured at one part alone."""


def loaders(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure the job's contender: loading (``"loader"``) and training (``"epoch"``), as the job defines them."""
    for placement in job.placements:
        only = _ONLY.get(placement.rpartition(", ")[2])
        parts = [part for part in ("loader", "epoch") if part in job.parts and only in (None, part)]
        if parts:
            _measure_place(job, ranks, graph, memory, sink, placement, parts)
            tidy(ranks)  # the data, which nobody refers to any more


def _measure_place(
    job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink, placement: str, parts: Sequence[str]
) -> None:
    prepare: DataMaker = {"manyhop": manyhops_data, "cuGraph-PyG": cugraph_pyg}[job.contender]
    try:
        make = prepare(job, ranks, graph, placement)
    except Exception as error:  # a line in the table
        for part in parts:
            sink.missing(part, reason_of(error), placement)
        return
    if "loader" in parts:
        for fanout in job.fanouts:
            load = partial(_load, job, ranks, graph, memory, make, fanout, placement)
            _keep(sink, "loader", fanout_name(fanout), load)
    if "epoch" in parts:
        epochs = partial(train, job, ranks, graph, memory, make, placement)
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
) -> Iterator[Row]:
    batches = job.epoch_batches
    seeds = draw_seeds(graph.num_nodes, batches * ranks.size, job.batch_size, ranks.device)
    list(islice(make(fanout, seeds), _WARM_UP))  # compiles, starts and allocates
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
    work, setting = work_of(job, per_batch, rows, placement), setting_of(job, placement)
    yield job.row("loader", fanout_name(fanout), seconds, setting=setting, edges=per_batch, work=work, extra=extra)


def build(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure loaders without features. The first one of all, which compiles kernels, does not count."""
    edges = _shuffled(graph, ranks)
    graph.move_to_host()
    _first_batch(job, ranks, edges, graph.num_nodes)
    for setting, device in (("on the host", edges.device), ("on the GPU", ranks.device)):
        first_batch = partial(_first_batch, job, ranks, edges.to(device), graph.num_nodes)
        peak = memory.peak(first_batch)
        times = [first_batch() for _ in range(job.rounds)]
        workload = f"{edges.size(1):,} edges, {fanout_name(job.fanouts[0])}"
        extra = {"construct_s": median(made for made, _ in times), "peak_bytes": peak}
        seconds = [made + first for made, first in times]
        sink.add(job.row("build", workload, seconds, setting=setting, edges=edges.size(1), extra=extra))


def _shuffled(graph: GPUGraph, ranks: Ranks) -> Tensor:
    """``[2, num_edges] int64`` in host memory, in random order."""
    draw = torch.Generator(ranks.device).manual_seed(4)
    order = torch.randperm(graph.num_edges, device=ranks.device, generator=draw)
    edges = torch.empty(2, graph.num_edges, dtype=torch.int64)
    for side, ids in zip(edges, graph.edge_index(), strict=True):
        side.copy_(ids[order])
    return edges


def _first_batch(job: Job, ranks: Ranks, edges: Tensor, num_nodes: int) -> tuple[float, float]:
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
