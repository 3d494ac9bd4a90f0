"""Whole loaders for ``manyhop bench cpu``: manyhop's and PyG's own NeighborLoader, over the same data.

The benchmark imports this module when it is run: it is the one place where the engine's command reaches for an adapter.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch_geometric.typing as pyg_typing
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

from manyhop.bench._measure import MANYHOP, Absent, BatchRunner, Contender
from manyhop.bench._tasks import LoaderTask
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop_pyg import NeighborLoader


def loaders(task: LoaderTask, threads: list[int], modules: Mapping[str, Any]) -> tuple[list[Contender], list[Absent]]:
    """All loaders for one task.

    ``threads = 1`` is ``num_workers=0``: everything in the caller's thread. ``threads = N`` is ``num_workers=N``: N
    threads of manyhop, N persistent processes of PyG.

    Args:
        task: what to load.
        threads: numbers of threads.
        modules: the samplers for PyG that can be imported: name -> module.
    """
    found: list[Contender] = []
    absent: list[Absent] = []
    data = _data(task)
    for backend in (None, *(name for name in ("pyg-lib", "torch-sparse") if name in modules)):
        name = MANYHOP if backend is None else f"PyG, {backend}"
        loader_class = NeighborLoader if backend is None else PyGNeighborLoader
        try:
            made = [_loader(loader_class, data, task, n, backend) for n in threads]
        except (ImportError, ValueError) as error:
            if backend is None:
                raise
            absent.append(Absent(name=name, workload=task.name, reason=str(error)))
            continue
        for n, loader in zip(threads, made, strict=True):
            run, close = _epochs(loader, backend), _closer(loader)
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


def _loader(
    loader_class: Callable[..., Any], data: Data | HeteroData, task: LoaderTask, threads: int, backend: str | None
) -> Any:
    options: dict[str, Any] = {}
    if task.task.mode == "weighted":
        options["weight_attr"] = "edge_weight"
    if task.task.mode == "temporal":
        options |= {"time_attr": "edge_time", "input_time": task.input_time}
    if threads > 1:
        options |= {"num_workers": threads, "persistent_workers": True}
    seed_type = task.task.graph.seed_type
    with _backend(backend), warnings.catch_warnings():
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


def _epochs(loader: Any, backend: str | None) -> BatchRunner:
    def run(num_batches: int) -> int:
        with _backend(backend):
            return sum(_num_edges(batch) for batch in loader)

    return run


def _closer(loader: Any) -> Callable[[], None]:
    def close() -> None:
        loader._iterator = None  # ends persistent workers at once; as garbage they would wait for a timeout of 5 s

    return close


def _num_edges(batch: Data | HeteroData) -> int:
    return sum(int(store.edge_index.shape[1]) for store in batch.edge_stores)


@contextmanager
def _backend(name: str | None) -> Iterator[None]:
    """Let PyG use torch-sparse although pyg-lib, which it prefers, is there too."""
    before = pyg_typing.WITH_PYG_LIB
    if name == "torch-sparse":
        pyg_typing.WITH_PYG_LIB = False
    try:
        yield
    finally:
        pyg_typing.WITH_PYG_LIB = before
