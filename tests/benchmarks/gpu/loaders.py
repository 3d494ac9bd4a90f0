"""Whole loaders, epochs of GraphSAGE, and from an edge list to the first batch: manyhop, cuGraph-PyG and PyG."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import torch
import torch_geometric.loader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NeighborSampler

import manyhop
import manyhop_pyg
from benchmarks.common import import_quietly
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_labels, draw_seeds
from benchmarks.gpu.hardware import COPY, PEER, READS, PeakMemory, Ranks, tidy
from benchmarks.gpu.job import Job, Row, Sink, fanout_name, reason_of
from benchmarks.gpu.peers import start_cugraph
from benchmarks.gpu.sampling import READS_PER_EDGE

CLASSES = 172

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


MakeLoader: TypeAlias = Callable[[tuple[int, ...], Tensor], Iterable[Data]]
"""``make(fanout, seeds)``: a loader over this rank's share of the seeds of all ranks ``[num_batches, batch_size]``. Its
batches come on the GPU, with ``x`` and ``y``."""

DataMaker: TypeAlias = Callable[[Job, Ranks, GPUGraph, str], tuple[MakeLoader, int]]
"""``(job, ranks, graph, placement)``: how loaders are made over the data, and how many batches an epoch may have."""

UNLIMITED = 1 << 30
_BATCHES_OF_PYG = 16  # each takes hundreds of times as long as the others'


def manyhops_data(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> tuple[MakeLoader, int]:
    """Graph, features and labels in stores of ours; on several GPUs, or under DDP, ranks share the batches."""
    features, edges = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    size = (graph.num_nodes, graph.num_nodes)
    edges.put_edge_index((graph.row, graph.colptr), edge_type=None, layout="csc", size=size)
    x, y = _features(job, graph.num_nodes, ranks.device), draw_labels(graph.num_nodes, CLASSES, ranks.device)
    features.put_tensor(x, group_name=None, attr_name="x", index=None)
    features.put_tensor(y, group_name=None, attr_name="y", index=None)
    where: dict[str, Any] = {"device": ranks.device, "distributed": is_ddp(ranks, placement)}
    if where["distributed"]:
        manyhop.init(timeout=300)
    memory, _, how = placement.partition(", ")
    if ranks.size > 1 and ranks.on_gpu:
        where["placement"] = {"replica": "cuda-cuda"}.get(memory, memory)
        if memory == "distributed":  # exchanges take a thread
            where["num_workers"] = 1
    if how in ("padded", "captured"):
        where["pad"] = "auto"
    if how == "cuGraph":
        where["engine"] = "cugraph"

    def make(fanout: tuple[int, ...], seeds: Tensor) -> Iterable[Data]:
        return manyhop_pyg.NeighborLoader(
            (features, edges),
            num_neighbors=list(fanout),
            input_nodes=seeds.flatten().cpu(),
            batch_size=job.batch_size,
            shuffle=True,
            **where,
        )

    return make, UNLIMITED


def pygs_data(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> tuple[MakeLoader, int]:
    """Sampled and gathered by worker processes, copied from pinned memory: as PyG's examples do it.

    The graph is converted once, for all loaders.
    """
    if placement != "replica":
        raise NotImplementedError("PyG's loader has each process read the features from its own memory")
    host = torch.device("cpu")
    data = Data(
        edge_index=graph.edge_index().cpu(),
        x=_features(job, graph.num_nodes, host),
        y=draw_labels(graph.num_nodes, CLASSES, host),
        num_nodes=graph.num_nodes,
    )
    workers = max(1, min(8, (os.cpu_count() or 1) // ranks.size - 1)) if ranks.on_gpu else 0
    share: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": ranks.on_gpu}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        sampler = NeighborSampler(data, list(job.fanouts[0]), is_sorted=True)

    def make(fanout: tuple[int, ...], seeds: Tensor) -> Iterable[Data]:
        sampler.num_neighbors = list(fanout)  # of workers that start from now on
        loader = torch_geometric.loader.NeighborLoader(
            data,
            num_neighbors=list(fanout),
            input_nodes=seeds[ranks.rank :: ranks.size].flatten().cpu(),
            batch_size=job.batch_size,
            shuffle=True,
            filter_per_worker=True,
            neighbor_sampler=sampler,
            **share,
        )
        return OnDevice(loader, ranks.device)

    return make, _BATCHES_OF_PYG


class OnDevice:
    """A loader whose batches are copied to the GPU."""

    def __init__(self, loader: Iterable[Data], device: torch.device) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Data]:
        for batch in self._loader:
            yield batch.to(self._device, non_blocking=True)


def is_ddp(ranks: Ranks, placement: str) -> bool:
    """Whether models are trained under DDP, and batches dealt out to ranks."""
    return ranks.size > 1 or placement.endswith("DDP")


def setting_of(job: Job, placement: str) -> str:
    return placement if job.gpus > 1 else placement.removeprefix("replica").removeprefix(", ")


def work_of(job: Job, edges: float, nodes: float, placement: str) -> dict[str, float]:
    """What the hardware has to do at least for a batch."""
    size = nodes * job.num_features * (2 if job.half else 4)
    work = {READS: READS_PER_EDGE * edges}
    if placement.startswith(("sharded", "distributed")) and job.gpus > 1:
        return work | {PEER: size * (job.gpus - 1) / job.gpus}
    return work | {COPY: size}


def _features(job: Job, num_nodes: int, device: torch.device) -> Tensor:
    return draw_features(num_nodes, job.num_features, torch.float16 if job.half else torch.float32, device)


def cugraph_pyg(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> tuple[MakeLoader, int]:
    """Stores of which each rank puts its part: features in device memory, over all GPUs where there are several.

    Seeds per call of the sampler: cuGraph-PyG's own choice, which is the whole epoch unless that is very long.
    """
    if placement != ("sharded" if ranks.size > 1 else "replica"):
        raise NotImplementedError("cuGraph-PyG spreads features over all GPUs, always")
    start_cugraph(ranks)
    import_quietly("pylibwholegraph.torch.initialize").init(ranks.rank, ranks.size, ranks.rank, ranks.size, "warn")
    stores = import_quietly("cugraph_pyg.data")
    loader_class = import_quietly("cugraph_pyg.loader").NeighborLoader
    small = graph.num_edges * 16 < ranks.size << 34  # edges wait in GPU memory where there is room: a quicker start
    edges = stores.GraphStore(location="cuda" if small else "cpu")
    features = stores.FeatureStore(location="cuda")
    size = (graph.num_nodes, graph.num_nodes)
    share = [graph.num_edges * r // ranks.size for r in (ranks.rank, ranks.rank + 1)]
    edges[("node", "to", "node"), "coo", False, size] = graph.edge_index(*share)
    graph.move_to_host()
    edges = edges.finalize()
    nodes = [graph.num_nodes * r // ranks.size for r in (ranks.rank, ranks.rank + 1)]
    dtype = torch.float16 if job.half else torch.float32
    features["node", "x", None] = draw_features(nodes[1] - nodes[0], job.num_features, dtype, ranks.device, nodes[0])
    features["node", "y", None] = draw_labels(graph.num_nodes, CLASSES, ranks.device)[nodes[0] : nodes[1]]
    torch.cuda.empty_cache()

    def make(fanout: tuple[int, ...], seeds: Tensor) -> Iterable[Data]:
        loader: Iterable[Data] = loader_class(
            (features, edges),
            num_neighbors=list(fanout),
            input_nodes=seeds[ranks.rank :: ranks.size].flatten(),
            batch_size=job.batch_size,
            shuffle=True,
            drop_last=True,
        )
        return loader

    return make, 1 << 30


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
