"""A graph and a spec in the form that kernels read, the capacity of batches, and the static tables of a launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from manyhop.errors import CapacityError
from manyhop.graph import Graph
from manyhop.sampling.check import table_addresses
from manyhop.sampling.contract import NeighborSpec, num_hops
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.edges import WINDOW_BITS

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
        # Hops after the one that overflowed report too few: never use less than the current capacity or an earlier hop.
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


def is_on_host(table: torch.Tensor, device: torch.device) -> bool:
    """Return whether a table resides in host memory."""
    return table.device != device


class Plan:
    """Addresses and dtypes of the tables of a graph, and the sampling modes of a spec.

    Args:
        graph: the topology, in memory that the device can read.
        spec: how to sample.
        device: where kernels run.

    Raises:
        GraphError: kernels cannot read a table of the graph.
    """

    def __init__(self, graph: Graph, spec: NeighborSpec, device: torch.device) -> None:
        self.graph, self.spec, self.device = graph, spec, device
        self.guess = spec
        """The spec from which the first capacity is estimated."""
        self.types = types = {name: i for i, name in enumerate(graph.node_types)}
        self.edge_types = graph.edge_types
        self.num_nodes = [graph.num_nodes[name] for name in graph.node_types]
        self.node_bits = max(*self.num_nodes, 2).bit_length()
        self.src = np.array([types[e[0]] for e in graph.edge_types], np.int64)
        self.dst = np.array([types[e[2]] for e in graph.edge_types], np.int64)
        fanouts = [spec.fanouts[e] for e in graph.edge_types]
        self.num_hops = len(fanouts[0]) if fanouts else 0
        self.fanouts = np.array(fanouts, np.int64).reshape(len(fanouts), self.num_hops).T.copy()
        self.window_bits = WINDOW_BITS
        self.timed = spec.temporal is not None
        self.last = spec.temporal == "last"
        self.replace = spec.replace and not self.last
        self.weighs = False
        """Whether picked edges have weights."""
        self.counts_ahead = len(fanouts) == 1 and graph.is_homogeneous and spec.expand == "new"
        """Whether the nodes that a hop adds, in their order, are the frontier of the next hop."""
        self.edges = edge_tables(graph, device, timed=self.timed, weighted=spec.weighted)
        for about, edge_type in zip(self.edges, graph.edge_types, strict=True):
            csc = graph.csc[edge_type]
            windows = -(-csc.num_edges >> self.window_bits)
            if csc.row.dtype == torch.int32 and windows > 1 and is_on_host(csc.row, device):
                about[t.WINDOWS.value] = windows


_COLUMN = {
    "colptr": t.COLPTR, "row": t.ROW, "perm": t.PERM, "time": t.TIME, "weight": t.WEIGHT, "alias": t.ALIAS,
    "num_positive": t.POSITIVE,
}  # fmt: skip


def edge_tables(
    graph: Graph, device: torch.device, *, timed: bool = False, weighted: bool = False
) -> npt.NDArray[np.int64]:
    """Return ``[num_edge_types, WINDOWS + 1]``: addresses and widths of the tables of each edge type.

    Args:
        graph: the topology, in memory that the device can read.
        device: where kernels run.
        timed, weighted: whether kernels read times and weights; addresses that they do not read are 0.

    Raises:
        GraphError: kernels cannot read a table of the graph.
    """
    found = np.zeros((len(graph.edge_types), t.WINDOWS.value + 1), np.int64)
    for about, (edge_type, csc) in zip(found, graph.csc.items(), strict=True):
        for name, at in table_addresses(edge_type, csc, device, timed=timed, weighted=weighted).items():
            about[_COLUMN[name].value] = at
        about[t.ROW_WIDE.value] = csc.row.dtype == torch.int64
        about[t.PERM_WIDE.value] = csc.perm is not None and csc.perm.dtype == torch.int64
    return found


POSITION_LIMIT = 31  # bits: positions are stored as int32


def make_type_ranges(plan: Plan, capacity: Capacity, num_batches: int) -> Ints:
    """Return the table of type ranges: ``[num_batches, num_node_types, TYPE_RANGE_COLUMNS]``."""
    num_types = len(plan.num_nodes)
    type_ranges = np.zeros((num_batches, num_types, t.TYPE_RANGE_COLUMNS.value), np.int64)
    begins = _begins(np.tile(capacity.nodes[-1], num_batches))
    type_ranges[..., t.NODE_BASE.value] = begins.reshape(num_batches, num_types)
    type_ranges[..., t.NODE_TYPE.value] = np.arange(num_types)
    type_ranges[..., t.OF_BATCH.value] = np.arange(num_batches)[:, None]
    type_ranges[..., t.NUM_NODES.value] = plan.num_nodes
    return type_ranges


def make_segments(plan: Plan, capacity: Capacity, type_ranges: Ints) -> tuple[Ints, list[list[int]], int]:
    """Return the table of segments, the segments of each batch by edge type, and the length of the longest chain.

    The table is ``[num_batches * num_edge_types, SEGMENT_COLUMNS]``, the lists ``[num_batches][num_edge_types]``.
    """
    num_batches, num_types = type_ranges.shape[:2]
    order = sorted(range(len(plan.edges)), key=lambda e: (plan.src[e], e))
    segments = np.zeros((num_batches, len(order), t.SEGMENT_COLUMNS.value), np.int64)
    segment_of: list[list[int]] = []
    src, dst = plan.src[order], plan.dst[order]
    for b in range(num_batches):
        about = segments[b]
        about[:, : plan.edges.shape[1]] = plan.edges[order]
        about[:, t.BATCH.value] = b
        about[:, t.EDGE_TYPE.value] = order
        about[:, t.SRC.value], about[:, t.DST.value] = b * num_types + src, b * num_types + dst
        about[:, t.SRC_TYPE.value] = src
        about[:, t.SRC_BASE.value] = type_ranges[b, src, t.NODE_BASE.value]
        about[:, t.DST_BASE.value] = type_ranges[b, dst, t.NODE_BASE.value]
        first = np.searchsorted(src, src)
        about[:, t.CHAIN.value] = b * len(order) + first
        about[:, t.ENDS_CHAIN.value] = np.searchsorted(src, src, side="right") == np.arange(len(order)) + 1
        segment_of.append([b * len(order) + order.index(e) for e in range(len(order))])
    segments = segments.reshape(-1, t.SEGMENT_COLUMNS.value)
    segments[:, t.EDGE_BASE.value] = _begins(capacity.edges[-1][segments[:, t.EDGE_TYPE.value]])
    segments[:, t.FRONTIER_BASE.value] = _begins(np.tile(capacity.nodes[-1][dst], num_batches))
    return segments, segment_of, int(np.bincount(src, minlength=1).max()) if len(order) else 1


def bits_of_entries(plan: Plan, shape: Shape, total_nodes: int, total_edges: int) -> tuple[int, int, int]:
    """Return how many bits of a hash table entry are for positions, keys and stamps.

    Raises:
        CapacityError: an entry has too few bits.
    """
    scopes = sum(shape.seeds) * shape.num_batches if plan.spec.disjoint else shape.num_batches
    pos_bits = max(total_nodes, total_edges, 2).bit_length() + 1
    key_bits = plan.node_bits + max(scopes * len(plan.num_nodes) - 1, 1).bit_length()
    if pos_bits + key_bits > 62 or pos_bits > POSITION_LIMIT:
        raise CapacityError(
            f"Expected batches whose table entries need up to {POSITION_LIMIT} bits for positions and 62 in all, got "
            f"{pos_bits} and {pos_bits + key_bits}: {total_edges} edges in a graph of {max(plan.num_nodes)} nodes. "
            "Use smaller fanouts or batches."
        )
    return pos_bits, key_bits, 63 - pos_bits - key_bits


def _begins(sizes: Ints) -> Ints:
    return np.cumsum(sizes) - sizes
