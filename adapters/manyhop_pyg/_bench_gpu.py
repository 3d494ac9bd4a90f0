"""Whole loaders and training for ``manyhop bench gpu``: manyhop's, PyG's own and cuGraph-PyG's, over the same graph.

The benchmark's processes import this module when they need it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data

import manyhop_pyg
from manyhop.bench._gpu_graphs import GPUGraph, draw_features, draw_labels, draw_seeds
from manyhop.bench._gpu_job import Job, Row, Sink, fanout_name, reason_of
from manyhop.bench._gpu_limits import COPY, PEER, READS
from manyhop.bench._gpu_sampling import READS_PER_EDGE
from manyhop.bench._gpu_timing import PeakMemory, Ranks, tidy
from manyhop_pyg._bench_gpu_cugraph import cugraph_pyg
from manyhop_pyg._bench_gpu_step import CLASSES, Step

MakeLoader: TypeAlias = Callable[[tuple[int, ...], Tensor], Any]
"""``make(fanout, seeds)``: a loader over this rank's share of the seeds of all ranks ``[num_batches, batch_size]``. Its
batches come on the GPU, with ``x`` and ``y``."""

DataMaker: TypeAlias = Callable[[Job, Ranks, GPUGraph, str], tuple[MakeLoader, int]]
"""``(job, ranks, graph, placement)``: how loaders are made over the data, and how many batches an epoch may have."""


WARM_UP = 16
"""Batches before it is measured."""


def loaders(job: Job, ranks: Ranks, graph: GPUGraph, memory: PeakMemory, sink: Sink) -> None:
    """Measure the job's contender: loading (``"loader"``) and training (``"epoch"``), as the job says."""
    prepare: DataMaker = {"manyhop": _manyhop, "PyG": _pyg, "cuGraph-PyG": cugraph_pyg}[job.contender]
    for placement in job.placements:
        try:
            make, most = prepare(job, ranks, graph, placement)
        except Exception as error:  # a line in the table
            for part in {"loader", "epoch"} & set(job.parts):
                sink.missing(part, reason_of(error), placement)
            continue
        for fanout in job.fanouts:
            for part, measure in (("loader", _load), ("epoch", _train)):
                if part not in job.parts or (part == "epoch" and fanout != job.fanouts[0]):
                    continue
                if part == "epoch" and "padded" in placement:  # what it is for is a step in a CUDA graph
                    continue
                try:
                    for row in measure(job, ranks, graph, memory, make, fanout, placement, most):
                        sink.add(row)
                except Exception as error:  # a line in the table
                    sink.missing(part, reason_of(error), fanout_name(fanout))
        del make
        tidy(ranks)


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
    for _ in zip(range(WARM_UP), make(fanout, seeds), strict=False):  # compiles, starts and allocates
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
        setting=_setting(job, placement),
        name=job.contender,
        gpus=job.gpus,
        seconds=seconds,
        edges=per_batch,
        work=_work(job, per_batch, rows, placement),
        extra=extra,
    )


def _train(
    job: Job,
    ranks: Ranks,
    graph: GPUGraph,
    memory: PeakMemory,
    make: MakeLoader,
    fanout: tuple[int, ...],
    placement: str,
    most: int,
) -> Iterator[Row]:
    """Epochs of GraphSAGE, and the same steps over batches that are there already."""
    sizes = {"weak": min(job.epoch_batches, most), "strong": min(max(1, job.strong_batches // ranks.size), most)}
    for scaling in job.scalings:
        batches = sizes[scaling]
        seeds = draw_seeds(graph.num_nodes, batches * ranks.size, job.batch_size, ranks.device)
        loader = make(fanout, seeds)
        step = Step(job, ranks, len(fanout))
        count = edges = nodes = 0

        def epoch(most: int = 1 << 30, loader: Any = loader, step: Step = step) -> None:
            nonlocal count, edges, nodes
            count = edges = nodes = 0
            for _, batch in zip(range(most), loader, strict=False):
                step(batch)
                edges += batch.edge_index.shape[1]
                nodes += batch.x.shape[0]
                count += 1

        epoch(WARM_UP)
        peak = memory.peak(partial(epoch, WARM_UP))
        seconds = [ranks.seconds(epoch) / count for _ in range(job.epochs)]
        per_batch, rows = ranks.mean(edges / count), ranks.mean(nodes / count)
        peak, steps = max(peak, memory.now()), count
        kept = [batch for batch, _ in zip(loader, range(4), strict=False)]
        alone = ranks.rounds(lambda kept=kept, step=step: [step(batch) for batch in kept], job.rounds)  # type: ignore[misc]  # bound at once
        extra = {"batches": steps, "peak_bytes": peak, "step_s": sorted(alone)[len(alone) // 2] / len(kept)}
        yield Row(
            part="epoch",
            workload=f"{fanout_name(fanout)}, {scaling}",
            setting=_setting(job, placement),
            name=job.contender,
            gpus=job.gpus,
            seconds=seconds,
            edges=per_batch,
            work=_work(job, per_batch, rows, placement),
            extra=extra,
        )
        del kept, loader, step, epoch


def _setting(job: Job, placement: str) -> str:
    return placement if job.gpus > 1 else placement.removeprefix("replica").removeprefix(", ")


def _work(job: Job, edges: float, nodes: float, placement: str) -> dict[str, float]:
    size = nodes * job.num_features * (2 if job.half else 4)
    work = {READS: READS_PER_EDGE * edges}
    if placement == "sharded" and job.gpus > 1:
        return work | {PEER: size * (job.gpus - 1) / job.gpus}
    return work | {COPY: size}


def _features(job: Job, num_nodes: int, device: torch.device) -> Tensor:
    return draw_features(num_nodes, job.num_features, torch.float16 if job.half else torch.float32, device)


def _manyhop(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> tuple[MakeLoader, int]:
    features, edges = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    size = (graph.num_nodes, graph.num_nodes)
    edges.put_edge_index((graph.row, graph.colptr), edge_type=None, layout="csc", size=size)
    x, y = _features(job, graph.num_nodes, ranks.device), draw_labels(graph.num_nodes, CLASSES, ranks.device)
    features.put_tensor(x, group_name=None, attr_name="x", index=None)
    features.put_tensor(y, group_name=None, attr_name="y", index=None)
    where: dict[str, Any] = {"device": ranks.device}
    memory, _, how = placement.partition(", ")
    if ranks.size > 1 and ranks.on_gpu:
        where["placement"] = {"replica": "cuda-cuda", "sharded": "sharded"}[memory]
    if how == "padded":
        where["pad"] = "auto"
    elif how:
        where["num_workers"] = int(how.split()[0])

    def make(fanout: tuple[int, ...], seeds: Tensor) -> Any:
        return manyhop_pyg.NeighborLoader(
            (features, edges),
            num_neighbors=list(fanout),
            input_nodes=seeds.flatten().cpu(),
            batch_size=job.batch_size,
            shuffle=True,
            distributed=ranks.size > 1,
            **where,
        )

    return make, 1 << 30


def _pyg(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> tuple[MakeLoader, int]:
    """Sampled and gathered by worker processes, copied from pinned memory: as PyG's examples do it."""
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

    def make(fanout: tuple[int, ...], seeds: Tensor) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
            loader = torch_geometric.loader.NeighborLoader(
                data,
                num_neighbors=list(fanout),
                input_nodes=seeds[ranks.rank :: ranks.size].flatten().cpu(),
                batch_size=job.batch_size,
                shuffle=True,
                is_sorted=True,
                filter_per_worker=True,
                **share,
            )
        return OnDevice(loader, ranks.device)

    return make, 16


class OnDevice:
    """A loader whose batches are copied to the GPU."""

    def __init__(self, loader: Any, device: torch.device) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch.to(self._device, non_blocking=True)
