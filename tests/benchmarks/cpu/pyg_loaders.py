"""Whole loaders for ``benchmarks cpu``: manyhop's and PyG's own NeighborLoader, over the same data.

Imports PyG, so the command imports it late.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

from benchmarks.common.measure import MANYHOP, Absent, BatchRunner, Contender
from benchmarks.cpu.tasks import LoaderTask
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop_pyg import NeighborLoader


def loaders(
    task: LoaderTask, threads: list[int], modules: Mapping[str, ModuleType]
) -> tuple[list[Contender], list[Absent]]:
    """All loaders for one task.

    ``threads = 1`` is ``num_workers=0``: everything in the caller's thread. ``threads = N`` is ``num_workers=N``: N
    threads of manyhop, N persistent processes of PyG.

    Args:
        task: what to load.
        threads: numbers of threads.
        modules: the peers that are measured: name -> module. One of them samples for PyG.
    """
    found: list[Contender] = []
    absent: list[Absent] = []
    data = _data(task)
    classes: dict[str, Callable[..., object]] = {MANYHOP: NeighborLoader}
    classes |= {f"PyG, {name}": PyGNeighborLoader for name in ("pyg-lib", "torch-sparse") if name in modules}
    for name, loader_class in classes.items():
        try:
            made = [_loader(loader_class, data, task, n) for n in threads]
            next(iter(made[0]))  # PyG with torch-sparse knows only now what it cannot sample
        except (ImportError, ValueError) as error:
            if name == MANYHOP:
                raise
            absent.append(Absent(name=name, workload=task.name, reason=str(error)))
            continue
        for n, loader in zip(threads, made, strict=True):
            run, close = _epochs(loader), _closer(loader)
            found.append(
                Contender(workload=task.name, name=name, threads=n, run=run, turn=task.num_batches, close=close)
            )
    return found, absent


def _data(task: LoaderTask) -> Data | HeteroData:
    graph = task.task.graph
    if HOMOGENEOUS_EDGE not in graph.row:
        hetero = HeteroData()
        for node_type, num_nodes in graph.num_nodes.items():
            hetero[node_type].num_nodes = num_nodes
            if task.features is not None:
                hetero[node_type].x = task.features[node_type]
        for edge_type, edge_index in graph.edge_index.items():
            hetero[edge_type].edge_index = edge_index
        return hetero
    data = Data(edge_index=graph.edge_index[HOMOGENEOUS_EDGE], num_nodes=graph.num_nodes[graph.seed_type])
    if task.features is not None:
        data.x = task.features[graph.seed_type]
    if task.task.mode == "weighted":
        data.edge_weight = graph.weight
    if task.task.mode == "temporal":
        data.edge_time = graph.time
    return data


def _loader(loader_class: Callable[..., object], data: Data | HeteroData, task: LoaderTask, threads: int) -> Any:
    options: dict[str, object] = {"disjoint": True} if task.task.is_disjoint else {}
    if task.task.mode == "weighted":
        options["weight_attr"] = "edge_weight"
    if task.task.mode == "temporal":
        options |= {"time_attr": "edge_time", "input_time": task.input_time}
    if threads > 1:
        options |= {"num_workers": threads, "persistent_workers": True}
    seed_type = task.task.graph.seed_type
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG deprecates torch-sparse
        return loader_class(
            data,
            num_neighbors=list(task.task.fanout),
            input_nodes=(seed_type, task.input_nodes) if isinstance(data, HeteroData) else task.input_nodes,
            batch_size=task.batch_size,
            shuffle=True,
            is_sorted=True,
            **options,
        )


def _epochs(loader: Any) -> BatchRunner:
    def run(num_batches: int) -> int:
        return sum(_num_edges(batch) for batch in loader)

    return run


def _closer(loader: Any) -> Callable[[], None]:
    def close() -> None:
        loader._iterator = None  # ends persistent workers at once; as garbage they would wait for a timeout of 5 s

    return close


def _num_edges(batch: Data | HeteroData) -> int:
    return sum(int(store.edge_index.shape[1]) for store in batch.edge_stores)
