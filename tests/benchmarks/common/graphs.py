"""Graphs to measure on: both ends of every edge are drawn from a power law, as in many large graphs.

The node of rank r is drawn in proportion to (r + 1)^-0.6, as source and as destination, and ranks are spread over the
ids at random. Columns are made directly: their lengths by one multinomial draw, then their sources. That is the same
distribution as an edge list that is drawn edge by edge and sorted, without the list and without the sorting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, EdgeType, Graph, NodeType, build_graph

TIME_RANGE = 1 << 20
"""Times of edges and seeds are uniform in [0, TIME_RANGE)."""

_EXPONENT = 0.6

HETERO_NODES: Mapping[NodeType, float] = {"paper": 0.5, "author": 0.4, "venue": 0.1}  # shares of all nodes

HETERO_EDGES: Mapping[EdgeType, float] = {  # shares of all edges
    ("paper", "cites", "paper"): 0.4,
    ("author", "writes", "paper"): 0.27,
    ("paper", "written_by", "author"): 0.27,
    ("paper", "appears_in", "venue"): 0.03,
    ("venue", "publishes", "paper"): 0.03,
}


@dataclass(frozen=True, kw_only=True)
class BenchGraph:
    """A graph in the forms that manyhop and its peers take. Edges lie in columns, by time where they have times."""

    num_nodes: Mapping[NodeType, int]
    """Node type -> number of nodes. Seeds are drawn from the first."""

    colptr: Mapping[EdgeType, Tensor]
    """Edge type -> ``[num_dst + 1] int64``."""

    row: Mapping[EdgeType, Tensor]
    """Edge type -> ``[num_edges] int32``."""

    weight: Tensor | None = None
    """``[num_edges] float32`` weights of the edges; homogeneous graphs only."""

    time: Tensor | None = None
    """``[num_edges] int64`` times of the edges; homogeneous graphs only."""

    @property
    def seed_type(self) -> NodeType:
        """The node type from which seeds are drawn."""
        return next(iter(self.num_nodes))

    @cached_property
    def edge_index(self) -> Mapping[EdgeType, Tensor]:
        """Edge type -> ``[2, num_edges] int64``, sorted by destination: the peers know no smaller ids."""
        edge_index = {}
        for edge_type, row in self.row.items():
            both = torch.empty(2, row.numel(), dtype=torch.int64)
            both[0] = row
            both[1] = torch.repeat_interleave(torch.diff(self.colptr[edge_type]), output_size=row.numel())
            edge_index[edge_type] = both
        return edge_index

    @cached_property
    def engine(self) -> Graph:
        """The topology as manyhop builds it."""
        edges = {
            t: EdgeInput(row=self.row[t], colptr=self.colptr[t], weight=self.weight, time=self.time, is_sorted=True)
            for t in self.row
        }
        return build_graph(self.num_nodes, edges)


def homogeneous(num_nodes: int, num_edges: int, *, attributes: bool) -> BenchGraph:
    """One node type and one edge type; with ``attributes`` the edges have weights in [0.1, 1) and times."""
    rng = np.random.default_rng(0)
    law = _PowerLaw(rng, num_nodes)
    colptr, row = _columns(rng, law, law, num_edges)
    weight = time = None
    if attributes:
        weight = torch.from_numpy(rng.uniform(0.1, 1.0, num_edges).astype(np.float32))
        times = rng.integers(0, TIME_RANGE, num_edges)
        _sort_columns(colptr, times)  # the sources are independent of each other: they may stay where they are
        time = torch.from_numpy(times)
    return BenchGraph(
        num_nodes={HOMOGENEOUS_NODE: num_nodes},
        colptr={HOMOGENEOUS_EDGE: torch.from_numpy(colptr)},
        row={HOMOGENEOUS_EDGE: torch.from_numpy(row)},
        weight=weight,
        time=time,
    )


def edge_list(num_nodes: int, num_edges: int) -> Tensor:
    """``[2, num_edges] int64``: the edges of :func:`homogeneous`, drawn one by one, so in random order."""
    rng = np.random.default_rng(0)
    law = _PowerLaw(rng, num_nodes)
    edges = torch.empty(2, num_edges, dtype=torch.int64)
    for ends in edges:
        ends.copy_(torch.from_numpy(law.draw(rng, num_edges)))
    return edges


def heterogeneous(num_nodes: int, num_edges: int) -> BenchGraph:
    """Three node types and five edge types, with so many nodes and edges in all."""
    rng = np.random.default_rng(1)
    law = {t: _PowerLaw(rng, max(1, int(num_nodes * share))) for t, share in HETERO_NODES.items()}
    columns = {t: _columns(rng, law[t[0]], law[t[2]], int(num_edges * s)) for t, s in HETERO_EDGES.items()}
    return BenchGraph(
        num_nodes={t: law[t].num_nodes for t in law},
        colptr={t: torch.from_numpy(colptr) for t, (colptr, _) in columns.items()},
        row={t: torch.from_numpy(row) for t, (_, row) in columns.items()},
    )


class _PowerLaw:
    """How often each node of one type is an end of an edge."""

    def __init__(self, rng: np.random.Generator, num_nodes: int) -> None:
        weight = 1.0 / np.arange(1, num_nodes + 1) ** _EXPONENT
        self.num_nodes = num_nodes
        self.share = weight / weight.sum()
        self.by_rank = rng.permutation(num_nodes).astype(np.int32)

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
        """``[count] int32`` independent nodes."""
        below = np.cumsum(self.share)
        below[-1] = 1.0
        # Where to begin to look: the rank at which each of num_nodes equal parts of [0, 1) begins.
        start = np.searchsorted(below, np.arange(self.num_nodes) / self.num_nodes, side="right").astype(np.int32)
        node = np.empty(count, np.int32)
        for begin in range(0, count, 1 << 22):
            part = node[begin : begin + (1 << 22)]
            _invert(below, start, self.by_rank, rng.random(part.size), part)
        return node


def _columns(
    rng: np.random.Generator, src: _PowerLaw, dst: _PowerLaw, num_edges: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """``colptr [num_dst + 1]`` and ``row [num_edges]`` of one edge type."""
    degree = np.empty(dst.num_nodes, np.int64)
    degree[dst.by_rank] = rng.multinomial(num_edges, dst.share)
    colptr = np.zeros(dst.num_nodes + 1, np.int64)
    np.cumsum(degree, out=colptr[1:])
    return colptr, src.draw(rng, num_edges)


@numba.njit(nogil=True, cache=True)
def _invert(
    below: npt.NDArray[np.float64],
    start: npt.NDArray[np.int32],
    by_rank: npt.NDArray[np.int32],
    unit: npt.NDArray[np.float64],
    node: npt.NDArray[np.int32],
) -> None:
    """The node at each number in [0, 1) of the cumulative distribution ``below``."""
    for i in range(unit.size):
        rank = start[np.int64(unit[i] * start.size)]
        while below[rank] <= unit[i]:
            rank += 1
        node[i] = by_rank[rank]


@numba.njit(nogil=True, cache=True)
def _sort_columns(colptr: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> None:
    """Sort the values of each column in place."""
    for v in range(colptr.size - 1):
        values[colptr[v] : colptr[v + 1]].sort()
