"""The data of ``benchmarks gpu``, and the loaders of manyhop and PyG over them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler

import manyhop
import manyhop_pyg
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_labels
from benchmarks.gpu.job import Job
from benchmarks.gpu.limits import COPY, PEER, READS
from benchmarks.gpu.loaders.step import CLASSES
from benchmarks.gpu.sampling import READS_PER_EDGE
from benchmarks.gpu.timing import Ranks

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
    """What tables call a placement."""
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
