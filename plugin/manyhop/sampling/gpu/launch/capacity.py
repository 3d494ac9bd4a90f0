"""Capacity of the batches of a launch: learned from batches, since the worst case is many times the usual size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manyhop.graph import Graph
from manyhop.sampling.contract import NeighborSpec, num_hops

Ints = npt.NDArray[np.int64]

UNBOUNDED = 1 << 40  # upper limit of counts, which keeps their products in int64
MARGIN = 1.25  # batches of one loader differ by a few per cent
MAX_GUESS = 1 << 25  # nodes or edges of a launch, before any launch has been measured


@dataclass(frozen=True)
class Shape:
    """Upper limits that the launches of a workspace share."""

    num_batches: int
    """Largest number of batches."""

    seeds: tuple[int, ...]
    """Largest number of seeds of a batch, for each node type."""

    window: bool
    """Whether requests have `time_min`, a lower limit of edge times."""

    exclude: bool = False
    """Whether batches exclude edges."""


@dataclass(frozen=True)
class Capacity:
    """Numbers of nodes and edges that fit, per batch."""

    nodes: Ints
    """``[num_hops + 1, num_node_types]``: nodes after each hop."""

    edges: Ints
    """``[num_hops + 1, num_edge_types]``: edges after each hop; the first row is 0."""

    def grown(self, nodes: Ints, edges: Ints, bound: Capacity) -> Capacity:
        """Return a larger capacity for the reported counts, with a margin; twice this one if they fit already."""
        # Hops after the one that overflowed report too few: never go below the present capacity or an earlier hop.
        nodes, edges = (
            np.maximum.accumulate(np.maximum(reported, now), axis=0)
            for reported, now in ((nodes, self.nodes), (edges, self.edges))
        )
        larger = Capacity.learned(nodes, edges, bound)
        if (larger.nodes <= self.nodes).all() and (larger.edges <= self.edges).all():
            return Capacity(2 * self.nodes, 2 * self.edges)
        return larger

    @staticmethod
    def learned(nodes: Ints, edges: Ints, bound: Capacity) -> Capacity:
        """Return the capacity for observed counts, with a margin, and for as many seeds as a batch may have."""
        most_seeds = bound.nodes[:1]
        # A hop picks edges before it drops the excluded ones, so a later hop may report fewer than an earlier one.
        edges = np.maximum.accumulate(edges, axis=0)
        return Capacity(
            np.maximum(np.minimum(_with_margin(nodes), bound.nodes), most_seeds),
            np.minimum(_with_margin(edges), bound.edges),
        )


def _with_margin(counts: Ints) -> Ints:
    return (counts * MARGIN).astype(np.int64) // 128 * 128 + 256


def worst_case(graph: Graph, spec: NeighborSpec, shape: Shape) -> Capacity:
    """Return a capacity that no batch can exceed."""
    return _grow(graph, spec, shape, None)


def first_guess(graph: Graph, spec: NeighborSpec, shape: Shape) -> Capacity:
    """Estimate the capacity, assuming that frontier nodes have at most four times the mean degree, plus 16."""
    guess = _grow(graph, spec, shape, 4)
    most = MAX_GUESS // max(shape.num_batches * max(len(graph.edge_types), len(graph.node_types)), 1)
    return Capacity(np.minimum(guess.nodes, most + max(shape.seeds, default=0)), np.minimum(guess.edges, most))


def _grow(graph: Graph, spec: NeighborSpec, shape: Shape, times_mean: int | None) -> Capacity:
    types = {t: i for i, t in enumerate(graph.node_types)}
    most = [graph.num_nodes[t] for t in graph.node_types]
    nodes = [list(shape.seeds)]
    edges = [[0] * len(graph.edge_types)]
    frontier = list(shape.seeds)
    for hop in range(num_hops(spec.fanouts)):
        now, found, new = list(nodes[-1]), list(edges[-1]), [0] * len(most)
        for i, edge_type in enumerate(graph.edge_types):
            csc = graph.csc[edge_type]
            k, dst = spec.fanouts[edge_type][hop], types[edge_type[2]]
            mean = csc.num_edges / max(csc.num_dst, 1)
            degree = csc.num_edges if times_mean is None else int(times_mean * mean) + 16
            each = degree if k < 0 else k if spec.replace else min(k, degree)
            more = min(frontier[dst] * each, UNBOUNDED) if csc.num_edges else 0
            found[i] = min(found[i] + more, UNBOUNDED)
            now[types[edge_type[0]]] += more
            new[types[edge_type[0]]] += more
        for i, n in enumerate(now):
            now[i] = min(n, most[i] * (sum(shape.seeds) if spec.disjoint else 1) + shape.seeds[i])
        frontier = now if spec.expand == "all" else list(map(min, new, now))
        nodes.append(now)
        edges.append(found)
    return Capacity(np.array(nodes, np.int64), np.array(edges, np.int64).reshape(len(edges), -1))
