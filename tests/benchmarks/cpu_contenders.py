"""Samplers, loaders and builders of the CPU benchmark: manyhop's and PyG's."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.utils import to_csc

from benchmarks.common import MANYHOP, Absent, BatchRunner, BenchGraph, Contender, on_threads
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, NodeType, build_graph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop_pyg import NeighborLoader

Mode = Literal["uniform", "weighted", "disjoint", "temporal"]
SampleBatch = Callable[[int], int]
"""Samples the batch of a number and returns how many edges it has."""
FEATURES = 128
SEED_BATCHES = 32
PYG_LIB = "pyg-lib"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is sampled, without replacement. Batch i has the seeds of index ``i % len(seeds)``."""

    name: str
    graph: BenchGraph
    mode: Mode
    fanout: tuple[int, ...]
    seeds: Tensor
    """``[num_batches, batch_size] int64`` nodes of the graph's seed type, distinct in each batch."""
    times: Tensor | None
    """``[num_batches, batch_size] int64``, for ``temporal``."""

    @property
    def is_disjoint(self) -> bool:
        return self.mode in ("disjoint", "temporal")

    @property
    def csc(self) -> tuple[Tensor, Tensor]:
        """Columns and sources, in the dtype that pyg-lib takes."""
        return self.graph.colptr[HOMOGENEOUS_EDGE], self.graph.edge_index[HOMOGENEOUS_EDGE][0]


def samplers(task: Task, threads: list[int], with_pyg: bool) -> list[Contender]:
    """Return manyhop, and pyg-lib where PyG samples with it; each thread samples batches of its own."""
    makers = {MANYHOP: _manyhop} | ({PYG_LIB: _pyg_lib} if with_pyg else {})
    return [
        Contender(workload=task.name, name=name, threads=n, run=on_threads([make(task) for _ in range(n)]))
        for name, make in makers.items()
        for n in threads
    ]


def _manyhop(task: Task) -> SampleBatch:
    graph, seed_type = task.graph.engine, task.graph.seed_type
    spec = NeighborSpec(
        fanouts=dict.fromkeys(graph.edge_types, task.fanout),
        weighted=task.mode == "weighted",
        temporal="uniform" if task.mode == "temporal" else None,
        disjoint=task.is_disjoint,
    )
    sampler = CPUSampler(graph, spec)

    def sample(batch: int) -> int:
        at = batch % len(task.seeds)
        times = None if task.times is None else {seed_type: task.times[at]}
        request = NodeRequest(key=BatchKey(0, 0, batch), seeds={seed_type: task.seeds[at]}, time_max=times)
        return sum(row.numel() for row in sampler.sample(request).row.values())

    return sample


def _pyg_lib(task: Task) -> SampleBatch:
    sampling = importlib.import_module("pyg_lib.sampler")
    graph, fanout = task.graph, list(task.fanout)
    options: dict[str, object] = {"csc": True, "disjoint": task.is_disjoint}
    options |= {"edge_weight": graph.weight} if task.mode == "weighted" else {}
    options |= {"edge_time": graph.time} if task.mode == "temporal" else {}

    def sample(batch: int) -> int:
        at = batch % SEED_BATCHES
        times = None if task.times is None else task.times[at]
        return int(sampling.neighbor_sample(*task.csc, task.seeds[at], fanout, seed_time=times, **options)[0].numel())

    def sample_hetero(batch: int) -> int:
        row = {t: edge_index[0] for t, edge_index in graph.edge_index.items()}
        seeds = {graph.seed_type: task.seeds[batch % SEED_BATCHES]}
        out = sampling.hetero_neighbor_sample(graph.colptr, row, seeds, dict.fromkeys(row, fanout), csc=True)
        return sum(r.numel() for r in out[0].values())

    return sample if HOMOGENEOUS_EDGE in graph.row else sample_hetero


def loaders(
    task: Task, batches: int, content: str, threads: list[int], pyg: str | None, absent: list[Absent]
) -> list[Contender]:
    """Return whole loaders over short epochs: one thread is ``num_workers=0``, N are threads or processes.

    ``pyg``: the name of PyG's loader; ``None``: manyhop's alone.
    """
    of_nodes = task.graph.num_nodes.items()
    features = {t: torch.rand(n, FEATURES) for t, n in of_nodes} if content == "features" else None
    data, inputs = _data(task, features), task.seeds[:batches].flatten()
    if content in ("sorted", "unsorted"):
        data.w, data.t = torch.rand(data.num_edges), torch.arange(data.num_edges)
    if content == "unsorted":
        data.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    found = []
    classes: dict[str, Callable[..., Any]] = {MANYHOP: NeighborLoader}
    if pyg is not None:
        classes[pyg] = torch_geometric.loader.NeighborLoader
    for name, make in classes.items():
        try:
            made = [_loader(make, data, task, inputs, n, is_sorted=content != "unsorted") for n in threads]
            next(iter(made[0]))  # PyG with torch-sparse knows only now what it cannot sample
            for thread in threading.enumerate():
                if thread.name == "manyhop-huge-pages":  # done before anything is measured
                    thread.join()
        except (ImportError, ValueError) as error:
            if name == MANYHOP:
                raise
            absent.append(Absent(name=name, workload=task.name, reason=str(error)))
            continue
        for n, loader in zip(threads, made, strict=True):
            run, closing = _epoch(loader), _closer(loader)
            found.append(Contender(workload=task.name, name=name, threads=n, run=run, turn=batches, close=closing))
    return found


def _epoch(loader: Any) -> BatchRunner:
    def run(num_batches: int) -> int:
        return sum(int(store.edge_index.shape[1]) for batch in loader for store in batch.edge_stores)

    return run


def _closer(loader: Any) -> Callable[[], None]:
    return lambda: setattr(loader, "_iterator", None)  # ends workers at once; as garbage they would wait for 5 s


def _data(task: Task, features: Mapping[NodeType, Tensor] | None) -> Data | HeteroData:
    graph = task.graph
    if HOMOGENEOUS_EDGE in graph.row:
        data = Data(edge_index=graph.edge_index[HOMOGENEOUS_EDGE], num_nodes=graph.num_nodes[graph.seed_type])
        data.update({} if features is None else {"x": features[graph.seed_type]})
        data.update({"edge_weight": graph.weight} if task.mode == "weighted" else {})
        data.update({"edge_time": graph.time} if task.mode == "temporal" else {})
        return data
    hetero = HeteroData()
    for node_type, num_nodes in graph.num_nodes.items():
        hetero[node_type].num_nodes = num_nodes
        if features is not None:
            hetero[node_type].x = features[node_type]
    for edge_type, edge_index in graph.edge_index.items():
        hetero[edge_type].edge_index = edge_index
    return hetero


def _loader(
    make: Callable[..., Any], data: Data | HeteroData, task: Task, inputs: Tensor, threads: int, *, is_sorted: bool
) -> Any:
    options: dict[str, object] = {"disjoint": True} if task.is_disjoint else {}
    if task.mode == "weighted":
        options["weight_attr"] = "edge_weight"
    if task.times is not None:
        options |= {"time_attr": "edge_time", "input_time": task.times.flatten()[: len(inputs)]}
    if threads > 1:
        options |= {"num_workers": threads, "persistent_workers": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        return make(
            data,
            num_neighbors=list(task.fanout),
            input_nodes=(task.graph.seed_type, inputs) if isinstance(data, HeteroData) else inputs,
            batch_size=task.seeds.shape[1],
            shuffle=True,
            is_sorted=is_sorted,
            **options,
        )


def builders(num_nodes: int, edges: Tensor, threads: list[int]) -> list[Contender]:
    row, col = edges
    builds: dict[str, Callable[[], object]] = {
        MANYHOP: lambda: build_graph({HOMOGENEOUS_NODE: num_nodes}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, col=col)}),
        "PyG": lambda: to_csc(Data(edge_index=edges, num_nodes=num_nodes)),
    }

    def runner(build: Callable[[], object], n: int) -> BatchRunner:
        def run(num_batches: int) -> int:
            torch.set_num_threads(n)
            for _ in range(num_batches):
                build()
            torch.set_num_threads(1)
            return num_batches * edges.size(1)

        return run

    return [
        Contender(workload="edge list", name=name, threads=n, run=runner(build, n), turn=1)
        for name, build in builds.items()
        for n in threads
    ]
