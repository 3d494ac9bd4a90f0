"""Sampling alone: manyhop, and the sampler under PyG's loaders."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TypeAlias, TypeVar

import torch

from benchmarks.common.measure import MANYHOP, Absent, BatchRunner, Contender
from benchmarks.cpu.tasks import Task
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest

T = TypeVar("T")
SampleBatch: TypeAlias = Callable[[int], int]
"""Samples the batch of a number and returns how many edges it has."""

MakeSampler: TypeAlias = Callable[[Task], SampleBatch]
"""Makes the sampler of a task for one thread, or raises NotImplementedError with what the sampler lacks."""


def contenders(
    tasks: list[Task], threads: list[int], modules: Mapping[str, ModuleType]
) -> tuple[list[Contender], list[Absent]]:
    """All samplers at all tasks.

    Args:
        tasks: what to sample.
        threads: numbers of threads; each thread samples batches of its own.
        modules: the peers that can be imported: name -> module.
    """
    makers: dict[str, MakeSampler] = {MANYHOP: _manyhop}
    makers |= {name: make for name, make in (("pyg-lib", _pyg_lib), ("torch-sparse", _torch_sparse)) if name in modules}
    found, absent = [], []
    for task in tasks:
        for name, make in makers.items():
            try:
                for n in threads:
                    samplers = [make(task) for _ in range(n)]
                    found.append(Contender(workload=task.name, name=name, threads=n, run=_run(samplers)))
            except NotImplementedError as error:
                absent.append(Absent(name=name, workload=task.name, reason=str(error)))
    return found, absent


def _run(samplers: list[SampleBatch]) -> BatchRunner:
    """Runs batches on as many threads as there are samplers, on the caller's own if there is one."""
    done = 0
    pool = ThreadPoolExecutor(len(samplers)) if len(samplers) > 1 else None

    def run(num_batches: int) -> int:
        nonlocal done
        first, done = done, done + num_batches

        def share(thread: int) -> int:
            sample = samplers[thread]
            return sum(sample(i) for i in range(first + thread, first + num_batches, len(samplers)))

        return share(0) if pool is None else sum(pool.map(share, range(len(samplers))))

    return run


def _manyhop(task: Task) -> SampleBatch:
    graph = task.graph.engine
    spec = NeighborSpec(
        fanouts=dict.fromkeys(graph.edge_types, task.fanout),
        weighted=task.mode == "weighted",
        temporal="uniform" if task.mode == "temporal" else None,
        disjoint=task.is_disjoint,
    )
    sampler = CPUSampler(graph, spec)
    seed_type = task.graph.seed_type

    def sample(batch: int) -> int:
        at = batch % len(task.seeds)
        request = NodeRequest(
            key=BatchKey(0, 0, batch),
            seeds={seed_type: task.seeds[at]},
            time_max={seed_type: task.seed_times[at]} if task.seed_times is not None else None,
        )
        return sum(row.numel() for row in sampler.sample(request).row.values())

    return sample


def _torch_sparse(task: Task) -> SampleBatch:
    if task.mode != "uniform":
        raise NotImplementedError(f"torch-sparse has no {task.mode} sampling for PyG's NeighborLoader")
    graph, fanout, seed_type = task.graph, list(task.fanout), task.graph.seed_type
    row = {t: edge_index[0] for t, edge_index in graph.edge_index.items()}
    if HOMOGENEOUS_EDGE in graph.row:
        args = (graph.colptr[HOMOGENEOUS_EDGE], row[HOMOGENEOUS_EDGE])

        def sample(batch: int) -> int:
            seeds = task.seeds[batch % len(task.seeds)]
            out = torch.ops.torch_sparse.neighbor_sample(*args, seeds, fanout, False, True)
            return int(out[1].numel())

        return sample

    colptrs, rows, fanouts = (_by_relation(d) for d in (graph.colptr, row, dict.fromkeys(row, fanout)))
    types = (list(graph.num_nodes), list(graph.row))

    def sample_hetero(batch: int) -> int:
        seeds = {seed_type: task.seeds[batch % len(task.seeds)]}
        out = torch.ops.torch_sparse.hetero_neighbor_sample(
            *types, colptrs, rows, seeds, fanouts, len(fanout), False, True
        )
        return sum(r.numel() for r in out[1].values())

    return sample_hetero


def _pyg_lib(task: Task) -> SampleBatch:
    sampling = importlib.import_module("pyg_lib.sampler")
    graph, fanout = task.graph, list(task.fanout)
    row = {t: edge_index[0] for t, edge_index in graph.edge_index.items()}
    if HOMOGENEOUS_EDGE in graph.row:
        options: dict[str, object] = {"csc": True, "disjoint": task.is_disjoint}
        if task.mode == "weighted":
            options["edge_weight"] = graph.weight
        if task.mode == "temporal":
            options["edge_time"] = graph.time

        def sample(batch: int) -> int:
            at = batch % len(task.seeds)
            seed_time = None if task.seed_times is None else task.seed_times[at]
            tables = (graph.colptr[HOMOGENEOUS_EDGE], row[HOMOGENEOUS_EDGE])
            out = sampling.neighbor_sample(*tables, task.seeds[at], fanout, seed_time=seed_time, **options)
            return int(out[0].numel())

        return sample

    def sample_hetero(batch: int) -> int:
        seeds = {graph.seed_type: task.seeds[batch % len(task.seeds)]}
        out = sampling.hetero_neighbor_sample(graph.colptr, row, seeds, dict.fromkeys(row, fanout), csc=True)
        return sum(r.numel() for r in out[0].values())

    return sample_hetero


def _by_relation(by_type: Mapping[EdgeType, T]) -> dict[str, T]:
    return {"__".join(t): value for t, value in by_type.items()}
