"""Building the topology: an edge list in random order -> columns; manyhop's beside PyG's own conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from benchmarks.common.measure import MANYHOP, Absent, BatchRunner, Contender
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph

if TYPE_CHECKING:
    from torch import Tensor

_WORKLOAD = "edge list"


def contenders(num_nodes: int, edges: Tensor, threads: Sequence[int]) -> tuple[list[Contender], list[Absent]]:
    """Both at one homogeneous graph. A batch is a build; its edges are those of the graph.

    Args:
        num_nodes: of the graph.
        edges: ``[2, num_edges] int64``, in random order.
        threads: numbers of threads.
    """
    builds: dict[str, Callable[[Tensor, int], object]] = {MANYHOP: _build}
    absent = []
    try:
        builds["PyG"] = _pyg()
    except ImportError as error:
        absent.append(Absent(name="PyG", reason=str(error), workload=_WORKLOAD))
    found = [
        Contender(workload=_WORKLOAD, name=name, threads=n, run=_runner(build, edges, num_nodes, n), turn=1)
        for name, build in builds.items()
        for n in threads
    ]
    return found, absent


def _build(edges: Tensor, num_nodes: int) -> object:
    row, col = edges
    return build_graph({HOMOGENEOUS_NODE: num_nodes}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, col=col)})


def _pyg() -> Callable[[Tensor, int], object]:
    from torch_geometric.data import Data
    from torch_geometric.sampler.utils import to_csc

    return lambda edges, num_nodes: to_csc(Data(edge_index=edges, num_nodes=num_nodes))


def _runner(build: Callable[[Tensor, int], object], edges: Tensor, num_nodes: int, threads: int) -> BatchRunner:
    def run(num_batches: int) -> int:
        try:
            torch.set_num_threads(threads)
            for _ in range(num_batches):
                build(edges, num_nodes)
        finally:
            torch.set_num_threads(1)
        return num_batches * edges.size(1)

    return run
