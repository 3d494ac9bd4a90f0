"""How manyhop and cuGraph-PyG load the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from benchmarks.common import import_quietly
from benchmarks.gpu.graphs import GPUGraph, draw_features, draw_labels
from benchmarks.gpu.hardware import Ranks
from benchmarks.gpu.job import Job
from benchmarks.gpu.peers import start_cugraph

CLASSES = 172
MakeLoader: TypeAlias = Callable[[tuple[int, ...], Tensor], Iterable[Data]]
"""``make(fanout, seeds)``: a loader over this rank's share of the seeds of all ranks ``[num_batches, batch_size]``. Its
batches come on the GPU, with ``x`` and ``y``."""
DataMaker: TypeAlias = Callable[[Job, Ranks, GPUGraph, str], MakeLoader]
"""``(job, ranks, graph, placement)``: how loaders are made over the data."""


def manyhops_data(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> MakeLoader:
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

    return make


def is_ddp(ranks: Ranks, placement: str) -> bool:
    """Whether models are trained under DDP, and batches dealt out to ranks."""
    return ranks.size > 1 or placement.endswith("DDP")


def _features(job: Job, num_nodes: int, device: torch.device) -> Tensor:
    return draw_features(num_nodes, job.num_features, torch.float16 if job.half else torch.float32, device)


def cugraph_pyg(job: Job, ranks: Ranks, graph: GPUGraph, placement: str) -> MakeLoader:
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

    return make
