"""Layer-neighbour sampling among edges that were found before: those that are early enough for their column."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from manyhop.graph import EdgeType, Graph
from manyhop.sampling import BatchKey, LaborSpec, SampledSubgraph
from manyhop.sampling.random import draw
from manyhop.sampling.reference.labor import Variates

Ints = npt.NDArray[np.int64]


def thinned(graph: Graph, spec: LaborSpec, key: BatchKey, sample: SampledSubgraph) -> SampledSubgraph:
    """Return a sample of one hop with only the edges that layer-neighbour sampling picks; nodes stay.

    What is picked of a column's edges, and in which order, is what :class:`LaborSpec` of method ``exact`` without
    weights picks where these are all edges that lead to its node.

    Args:
        graph: the graph that was sampled.
        spec: how to pick; one fanout per edge type.
        key: of the batch.
        sample: with all edges of each column, in stored order.
    """
    row, col, edge_id = dict(sample.row), dict(sample.col), dict(sample.edge_id)
    counts: dict[EdgeType, list[int]] = {}
    for edge_type, rows in sample.row.items():
        src = edge_type[0]
        neighbors = sample.node[src][rows].cpu().numpy()
        variates = Variates.of(spec, key, 0, graph.node_types.index(src))
        columns = col[edge_type].cpu().numpy()
        numbers = np.asarray(variates(neighbors))
        picked = torch.from_numpy(_picked(numbers, columns, spec.fanouts[edge_type][0], spec.replace))
        at = picked.to(rows.device)
        row[edge_type], col[edge_type] = rows[at], col[edge_type][at]
        ids = edge_id[edge_type]
        edge_id[edge_type] = None if ids is None else ids[at]
        counts[edge_type] = [picked.numel()]
    return replace(sample, row=row, col=col, edge_id=edge_id, num_sampled_edges=counts)


def _picked(numbers: npt.NDArray[np.uint64], columns: Ints, fanout: int, with_replacement: bool) -> Ints:
    """Return the positions of picked edges, ascending: in each column those of the ``fanout`` smallest numbers.

    Args:
        numbers: ``[num_edges]``, one for each neighbor, whoever asks for it.
        columns: ``[num_edges]``, ascending.
        fanout: edges per column; -1 is all.
        with_replacement: each neighbor has ``fanout`` numbers.
    """
    edges = np.arange(columns.size)
    if fanout == -1:
        return edges
    if with_replacement:
        numbers = np.asarray(draw(numbers[:, None], np.arange(fanout))).reshape(-1)
        edges, columns = edges.repeat(fanout), columns.repeat(fanout)
    order = np.lexsort((numbers, columns))
    rank = np.arange(order.size) - np.searchsorted(columns, columns)  # columns[order] is columns, which ascend
    return np.sort(edges[order[rank < fanout]])
