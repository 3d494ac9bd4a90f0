"""Constants of a CPU: three loaders in turns, whose differences are edges and rows."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from manyhop.costs import BatchSizes, CPUCosts, cpu_batch_s
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop_bench.common.graphs import BenchGraph, homogeneous
from manyhop_bench.common.measure import Contender, Timing, measure
from manyhop_pyg import NeighborLoader

_FEATURES, _BATCH, _BATCHES = 128, 1024, 8
_FEW, _MANY = (10, 10), (15, 10, 5)


def measure_cpu(num_nodes: int, num_edges: int, rounds: int) -> tuple[CPUCosts, str]:
    """Return the constants of one thread, and a line that compares a fourth loader with its prediction.

    ``[10, 10]`` and ``[15, 10, 5]`` without features differ by edges, ``[15, 10, 5]`` with and without by rows.
    """
    graph = homogeneous(num_nodes, num_edges, attributes=False)
    rows: dict[str, float] = {}
    cases = [(fanout, width) for width in (0, _FEATURES) for fanout in (_FEW, _MANY)]
    contenders = [_contender(graph, fanout, width, rows) for fanout, width in cases]
    few, many, few_rows, many_rows = measure(contenders, rounds, 0.0)
    edge_s = max((_s(many) - _s(few)) / max(_edges(many) - _edges(few), 1.0), 0.0)
    size = 4 * _FEATURES * rows[many_rows.workload]
    costs = CPUCosts(
        batch_s=max(_s(few) - edge_s * _edges(few), 0.0),
        edge_s=edge_s,
        copy=size / max(_s(many_rows) - _s(many), 1e-9),
    )
    sizes = BatchSizes(
        fanouts=_FEW, nodes=(rows[few_rows.workload],), edges=(_edges(few_rows),), hits=(0.0,) * 8, source=""
    )
    predicted = cpu_batch_s(sizes, 4 * _FEATURES, costs)
    line = (
        f"{few_rows.workload}, not used above: {1e3 * _s(few_rows):.2f} ms a batch, "
        f"{1e3 * predicted:.2f} predicted ({predicted / _s(few_rows) - 1:+.0%})"
    )
    return costs, line


def _contender(graph: BenchGraph, fanout: tuple[int, ...], width: int, rows: dict[str, float]) -> Contender:
    """Return a loader to time; running it counts its rows per batch."""
    num_nodes = graph.num_nodes[graph.seed_type]
    data = Data(edge_index=graph.edge_index[HOMOGENEOUS_EDGE], num_nodes=num_nodes)
    if width:
        data.x = torch.zeros(num_nodes, width)
    loader = NeighborLoader(
        data,
        list(fanout),
        input_nodes=torch.arange(min(_BATCHES * _BATCH, num_nodes)) * max(num_nodes // (_BATCHES * _BATCH), 1),
        batch_size=_BATCH,
        shuffle=True,
        is_sorted=True,
        seed=0,
        device="cpu",
    )
    name = f"{list(fanout)}{f' with {width} features' if width else ''}"

    def run(num_batches: int) -> int:
        counts = [(batch.num_edges, batch.num_nodes) for batch in loader]
        rows[name] = sum(nodes for _, nodes in counts) / len(counts)
        return sum(edges for edges, _ in counts)

    return Contender(workload=name, name="manyhop", threads=1, run=run, turn=len(loader))


def _s(timing: Timing) -> float:
    return timing.ms_per_batch / 1e3


def _edges(timing: Timing) -> float:
    return sum(timing.edges) / len(timing.edges)
