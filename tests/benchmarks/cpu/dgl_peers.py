"""DGL and GraphBolt as peers, on homogeneous graphs with uniform sampling.

Both expand all nodes of a batch again at each hop and so sample more edges per batch than the others; the table
compares times per edge. Their threads are OpenMP threads inside one batch: with worker processes both are slower.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from benchmarks.common.measure import Absent, BatchRunner, Contender
from benchmarks.common.openmp import in_dgl_threads
from benchmarks.cpu.tasks import LoaderTask, Task
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE

if TYPE_CHECKING:
    from dgl import DGLGraph
    from dgl.dataloading import BlockSampler

Count: TypeAlias = Callable[[Any], int]
"""Counts the edges of a batch."""


def dgl_samplers(
    tasks: list[Task], threads: list[int], modules: Mapping[str, ModuleType]
) -> tuple[list[Contender], list[Absent]]:
    """DGL's NeighborSampler at all tasks that it is written for here."""
    if "DGL" not in modules:
        return [], []
    found, absent = [], []
    for task in tasks:
        if not _is_plain(task):
            absent.append(_not_written("DGL", task.name))
            continue
        graph = _dgl_graph(modules["DGL"], task)
        sampler = modules["DGL"].dataloading.NeighborSampler(list(reversed(task.fanout)))  # outermost hop first
        for n in threads:
            run = in_dgl_threads(modules["DGL"], n, _sample_blocks(task, graph, sampler))
            found.append(Contender(workload=task.name, name="DGL", threads=n, run=run))
    return found, absent


def dgl_loaders(
    task: LoaderTask, threads: list[int], modules: Mapping[str, ModuleType]
) -> tuple[list[Contender], list[Absent]]:
    """The DataLoaders of DGL and of GraphBolt."""
    makers = {"DGL": _dgl_loader, "GraphBolt": _graphbolt_loader}
    found, absent = [], []
    for name, make in makers.items():
        if name not in modules:
            continue
        if not _is_plain(task.task):
            absent.append(_not_written(name, task.name))
            continue
        loader, count = make(modules[name], task)
        for n in threads:
            run = in_dgl_threads(modules["DGL"], n, _epoch(loader, count))
            found.append(Contender(workload=task.name, name=name, threads=n, run=run, turn=task.num_batches))
    return found, absent


def _is_plain(task: Task) -> bool:
    return task.mode == "uniform" and HOMOGENEOUS_EDGE in task.graph.row


def _not_written(name: str, workload: str) -> Absent:
    return Absent(name=name, workload=workload, reason="the benchmark runs it on uniform homogeneous workloads only")


def _dgl_graph(dgl: ModuleType, task: Task) -> DGLGraph:
    edge_index = task.graph.edge_index[HOMOGENEOUS_EDGE]
    empty = torch.empty(0, dtype=torch.int64)
    return dgl.graph(("csc", (task.graph.colptr[HOMOGENEOUS_EDGE], edge_index[0], empty)))


def _sample_blocks(task: Task, graph: DGLGraph, sampler: BlockSampler) -> BatchRunner:
    done = 0

    def run(num_batches: int) -> int:
        nonlocal done
        first, done = done, done + num_batches
        edges = 0
        for i in range(first, done):
            blocks = sampler.sample_blocks(graph, task.seeds[i % len(task.seeds)])[2]
            edges += sum(block.num_edges() for block in blocks)
        return edges

    return run


def _dgl_loader(dgl: ModuleType, task: LoaderTask) -> tuple[Iterable[object], Count]:
    graph = _dgl_graph(dgl, task.task)
    prefetch = []
    if task.features is not None:
        graph.ndata["x"] = task.features[HOMOGENEOUS_NODE]
        prefetch = ["x"]
    sampler = dgl.dataloading.NeighborSampler(list(reversed(task.task.fanout)), prefetch_node_feats=prefetch)
    loader = dgl.dataloading.DataLoader(
        graph, task.input_nodes, sampler, batch_size=task.batch_size, shuffle=True, num_workers=0
    )

    def count(batch: Any) -> int:
        blocks = batch[2]
        for name in prefetch:
            blocks[0].srcdata[name]
        return sum(block.num_edges() for block in blocks)

    return loader, count


def _graphbolt_loader(gb: ModuleType, task: LoaderTask) -> tuple[Iterable[object], Count]:
    edge_index = task.task.graph.edge_index[HOMOGENEOUS_EDGE]
    graph = gb.fused_csc_sampling_graph(task.task.graph.colptr[HOMOGENEOUS_EDGE], edge_index[0])
    items = gb.ItemSet(task.input_nodes, names="seed_nodes")
    pipe = gb.ItemSampler(items, batch_size=task.batch_size, shuffle=True)
    pipe = pipe.sample_neighbor(graph, list(reversed(task.task.fanout)))
    if task.features is not None:
        store = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(task.features[HOMOGENEOUS_NODE])})
        pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
    loader = gb.DataLoader(pipe, num_workers=0)
    return loader, lambda batch: sum(int(s.sampled_csc.indices.numel()) for s in batch.sampled_subgraphs)


def _epoch(loader: Iterable[object], count: Count) -> BatchRunner:
    def run(num_batches: int) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DGL's advice about cores
            return sum(count(batch) for batch in loader)

    return run
