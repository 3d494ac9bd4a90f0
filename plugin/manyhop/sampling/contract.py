"""Input and output of a sampler: the dataclasses of the sampling contract.

docs/project/contract.md describes the rules (order of nodes and edges, random numbers, how k of d entries are picked),
and the numpy reference in this package defines them. Every dictionary is keyed by node type or by edge type; a
homogeneous graph has the one node type ``"_N"`` and the one edge type ``("_N", "_E", "_N")``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType

CONTRACT_VERSION = 2
"""Changes whenever a request would return a different sample."""


class BatchKey(NamedTuple):
    """Names one batch. Every random number of the batch is a function of these three integers."""

    seed: int
    """The user's seed, any integer; only its low 64 bits count."""

    epoch: int
    """The epoch, from 0."""

    batch: int
    """The global index of the batch within its epoch, from 0."""


def num_hops(by_type: Mapping[Any, Sequence[int]]) -> int:
    """Return the number of hops of fanouts by type, or of nodes to add."""
    return len(next(iter(by_type.values()), ()))


@dataclass(frozen=True, kw_only=True)
class NeighborSpec:
    """How neighbours are sampled in all batches of a loader."""

    fanouts: Mapping[EdgeType, tuple[int, ...]]
    """Edge type -> neighbours per node, hop by hop; -1 is all, 0 is none. All edge types of the graph are present, all
    with the same number of hops."""

    replace: bool = False
    """Sample with replacement."""

    weighted: bool = False
    """Draw neighbours in proportion to the weights of the edges (edge types without weights: uniformly)."""

    temporal: Literal["uniform", "last"] | None = None
    """Take only edges whose time is not after the time of the tree's seed: uniformly among them (if ``weighted``, in
    proportion to weights), or the last ones (not ``weighted``). Edge types without times are not restricted. Requires
    ``disjoint``."""

    disjoint: bool = False
    """One tree per seed: nodes are unique per (tree, node) instead of per batch."""

    expand: Literal["new", "all"] = "new"
    """Frontier of a hop: the nodes that the hop before added (PyG), or all nodes so far (DGL)."""

    subgraph: Literal["directional", "bidirectional", "induced"] = "directional"
    """Edges of the result: the sampled ones, those and their reverses, or all edges among the sampled nodes."""

    reverse: Mapping[EdgeType, EdgeType] | None = None
    """Only for ``bidirectional``: edge type -> the edge type of its reverses (itself in a homogeneous graph)."""


@dataclass(frozen=True, kw_only=True)
class HGTSpec:
    """Layer-wise sampling of the Heterogeneous Graph Transformer (arXiv 2003.01332, algorithms 1 and 2)."""

    num_samples: Mapping[NodeType, tuple[int, ...]]
    """Node type -> nodes to add, hop by hop. All node types of the graph are present."""

    max_neighbors: int | None = 50
    """Neighbours of a node, per edge type, that count, 1 to 1024: a longer column is cut to a uniform choice of this
    many where budgets grow, and to another one where the edges among the sampled nodes are collected (PyG's rule, with
    50). ``None`` cuts nothing (the paper's rule)."""


@dataclass(frozen=True, kw_only=True)
class LaborSpec:
    """Layer-neighbour sampling (LABOR, arXiv 2210.13339): nodes that ask share one random number per neighbour.

    They prefer common neighbours, so a batch has fewer nodes than with neighbour sampling.
    """

    fanouts: Mapping[EdgeType, tuple[int, ...]]
    """As in :class:`NeighborSpec`; for ``poisson`` an expected number of neighbours per node."""

    method: Literal["poisson", "exact"] = "poisson"
    """``poisson``: each neighbour independently, a varying number of them (DGL's LaborSampler). ``exact``: sequential
    Poisson sampling, as many as the fanout (GraphBolt's LayerNeighborSampler)."""

    importance: int = 0
    """Only for ``poisson``: rounds that raise the probabilities of neighbours that many nodes share
    (LABOR-0, LABOR-i); -1: until the expected number of nodes does not fall any more (LABOR-*)."""

    layer_dependency: bool = False
    """Whether all hops share random numbers, which leads to fewer nodes."""

    batch_dependency: int = 1
    """Over how many batches the random numbers change, all neighbours' in turn: batches in a row share nodes. 1: new
    ones in each batch; 0: identical in all batches of all epochs."""

    weighted: bool = False
    """Prefer edges by their weights (edge types without weights: uniformly)."""

    replace: bool = False
    """Only for ``exact``: a neighbour has one number per unit of fanout, and each may pick it."""

    expand: Literal["new", "all"] = "all"
    """As in :class:`NeighborSpec`."""


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """One batch of seed nodes."""

    key: BatchKey
    """Names the batch; all draws are functions of it."""

    seeds: Mapping[NodeType, Tensor]
    """Node type -> ``[num_seeds] int64`` seed nodes, duplicates allowed. Of any number of types; with ``disjoint``,
    trees are numbered through all seeds in this order."""

    time_max: Mapping[NodeType, Tensor] | None = None
    """Node type -> ``[num_seeds] int64`` time key of each seed: edges of a tree are not later. Required for temporal
    sampling."""

    time_min: Mapping[NodeType, Tensor] | None = None
    """Node type -> ``[num_seeds] int64`` time key: edges of a tree are not earlier (a window); ``None``: no limit."""

    exclude: Mapping[EdgeType, Tensor] | None = None
    """Edge type -> ``[n] int64`` the user's ids of edges that the sample must not have, in any order. They are taken
    out of what nodes have picked, in every hop, before new nodes enter: nobody picks another in their place. Ids that
    no edge has change nothing."""


@dataclass(frozen=True, kw_only=True)
class NegativeSpec:
    """Negative edges of a batch of seed edges."""

    mode: Literal["binary", "triplet"]
    """``binary``: pairs of two drawn nodes. ``triplet``: drawn destinations for each source."""

    amount: float = 1
    """Negatives per positive edge; ``ceil(num_edges * amount)`` per batch. An integer for ``triplet``."""

    exclude_true: bool = False
    """Never return an edge of the graph as a negative (``False``: chance hits remain, as in PyG)."""

    given: bool = False
    """Only for ``triplet``: destinations come with each request, as ``neg_dst``, and are not drawn."""


@dataclass(frozen=True, kw_only=True)
class EdgeRequest:
    """One batch of seed edges."""

    key: BatchKey
    """Names the batch; all draws are functions of it, including those of negatives."""

    edge_type: EdgeType
    """Type of the seed edges."""

    src: Tensor
    """``[num_edges] int64``: source node of each seed edge."""

    dst: Tensor
    """``[num_edges] int64``: destination node of each seed edge."""

    time_max: Tensor | None = None
    """``[num_edges] int64``: time key of each seed edge; its two trees and its negatives are not later."""

    time_min: Tensor | None = None
    """``[num_edges] int64``: earliest time key of edges (a window); ``None``: no limit."""

    exclude: Mapping[EdgeType, Tensor] | None = None
    """As in :class:`NodeRequest`; negatives are drawn as without it."""

    neg_dst: Tensor | None = None
    """``[num_edges, amount] int64``: given destinations of the negatives of each seed edge."""

    def all_dst(self) -> Tensor:
        """Return ``[num_ends] int64``: ``dst``, then given negatives: ``[i, a]`` as ``a * num_edges + i``."""
        if self.neg_dst is None:
            return self.dst
        on_gpu = self.dst if self.dst.is_cuda else self.neg_dst
        return torch.cat([ids.to(on_gpu.device) for ids in (self.dst, self.neg_dst.t().reshape(-1))])


@dataclass(slots=True, kw_only=True, eq=False)
class SampledSubgraph:
    """The result: nodes and edges of one batch, ordered hop by hop."""

    node: dict[NodeType, Tensor]
    """``[num_nodes] int64`` global ids: the seeds in the given order with duplicates, then each node where it first
    occurs, hop by hop. All node types of the graph are present."""

    row: dict[EdgeType, Tensor]
    """``[num_edges] int64``: local id (index into ``node`` of the source type) of the neighbour of each sampled edge.
    A neighbour refers to the first copy of a seed. All edge types of the graph are present, also below."""

    col: dict[EdgeType, Tensor]
    """``[num_edges] int64``: local id of the node that asked. ``row[t]`` and ``col[t]`` are the two rows of one
    contiguous ``[2, num_edges]`` tensor, ``edge_index(t)``."""

    edge_id: dict[EdgeType, Tensor | None]
    """``[num_edges] int64``: the user's id of each sampled edge. ``None`` where reverses of another edge type were
    added."""

    tree: dict[NodeType, Tensor] | None
    """``[num_nodes] int64``: tree (running number of the seed) of each node; ``None`` unless ``disjoint``."""

    num_sampled_nodes: dict[NodeType, list[int]] | None
    """``[num_hops + 1]``: seeds, then nodes added by each hop. ``None`` for ``bidirectional`` and ``induced``."""

    num_sampled_edges: dict[EdgeType, list[int]] | None
    """``[num_hops]``: edges added by each hop. ``None`` for ``bidirectional`` and ``induced``."""

    edge_weight: dict[EdgeType, Tensor] | None = None
    """``[num_edges] float32``: what the message of each edge counts in a mean over the edges of a node and hop, 1 on
    average, so that the mean estimates that over all neighbours. Only from :class:`LaborSpec` samplers with
    ``poisson``, where edges are weighted or sampled by importance."""

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        """Return ``[2, num_edges] int64``: ``row`` and ``col`` of an edge type, without a copy if they are adjacent."""
        row, col = self.row[edge_type], self.col[edge_type]
        n = row.numel()
        if (
            row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
            and col.storage_offset() == row.storage_offset() + n
        ):
            return row.as_strided((2, n), (n, 1))
        return torch.stack([row, col])


def add_reverses(samples: Sequence[SampledSubgraph], reverse: Mapping[EdgeType, EdgeType]) -> list[SampledSubgraph]:
    """Join the edges of each type ``t`` with the reversed edges of ``reverse[t]``.

    The joined edges are sorted by (col, row), each pair once. If both directions or parallel edges give the same
    pair, the edge that was sampled first keeps its id. Types that ``reverse`` does not name are unchanged.

    Args:
        samples: samples on one device. All are sorted at once, as a GPU is slow at many small tasks.
        reverse: edge type -> the edge type of its reverses.

    Returns:
        The samples with ``num_sampled_nodes`` and ``num_sampled_edges`` ``None``, and ``edge_id`` ``None`` for types
        whose reverses came from another type.
    """
    found = [
        replace(s, row={**s.row}, col={**s.col}, edge_id={**s.edge_id}, num_sampled_nodes=None, num_sampled_edges=None)
        for s in samples
    ]
    parts = [(sample, t, r) for sample in found for t, r in reverse.items()]
    if not parts:
        return found
    row = torch.cat([x for s, t, r in parts for x in (s.row[t], s.col[r])])
    col = torch.cat([x for s, t, r in parts for x in (s.col[t], s.row[r])])
    sizes = [s.row[t].numel() + s.row[r].numel() for s, t, r in parts]
    widths = [max(s.node[t[0]].numel(), 1) for s, t, _ in parts]
    bases = list(accumulate((w * s.node[t[2]].numel() for w, (s, t, _) in zip(widths, parts, strict=True)), initial=0))
    size, width, base = torch.tensor([sizes, widths, bases[:-1]], device=row.device)
    part = torch.repeat_interleave(size, output_size=row.numel())
    key, order = torch.sort(base[part] + col * width[part] + row, stable=True)
    first = torch.ones_like(key, dtype=torch.bool)
    torch.ne(key[1:], key[:-1], out=first[1:])
    order = order[first]
    bounds = torch.searchsorted(part[order], torch.arange(len(parts) + 1, device=row.device)).tolist()
    joined = [order[begin:end] for begin, end in pairwise(bounds)]
    for (sample, t, r), edges, begin in zip(parts, joined, accumulate(sizes, initial=0), strict=False):
        ids = sample.edge_id[t]
        sample.row[t], sample.col[t] = torch.stack([row[edges], col[edges]])
        sample.edge_id[t] = ids[(edges - begin) % max(ids.numel(), 1)] if r == t and ids is not None else None
    return found


@dataclass(frozen=True, kw_only=True)
class SampledEdges:
    """A subgraph around the endpoints of seed edges, and the positions of the seed edges in it."""

    subgraph: SampledSubgraph
    """Nodes and edges around the endpoints. Not disjoint: the seeds are the sorted unique endpoints (of both types
    together where they agree). Disjoint: all sources, then all destinations, each in its own tree."""

    src_index: Tensor
    """``[num_pos + num_neg] int64`` local ids of the sources (binary or no negatives); ``[num_pos]`` for triplets."""

    dst_index: Tensor
    """``[num_pos + num_neg] int64`` local ids of the destinations; ``[num_pos]`` for triplets."""

    dst_neg_index: Tensor | None
    """Triplets only: ``[num_pos, amount] int64`` local ids of the drawn destinations; entry ``[i, a]`` is negative
    ``a * num_pos + i``, as negative ``j`` belongs to seed edge ``j % num_pos``."""

    num_pos: int
    """Number of positive (given) edges, which precede the negatives."""

    time_max: Tensor | None
    """``[num_pos + num_neg] int64`` time keys, negatives have the key of their positive; ``[num_pos]`` for triplets."""


@dataclass(frozen=True, kw_only=True)
class WalkSpec:
    """Random walks: each step leads from a node to one of its in-neighbours, an entry of its column."""

    steps: tuple[EdgeType, ...]
    """The edge type of each step, from its destination type to its source type, where the next step begins."""

    p: float = 1.0
    """Return parameter of node2vec (arXiv 1607.00653): a step back to the node before counts ``1 / p``."""

    q: float = 1.0
    """In-out parameter of node2vec: a step to a node counts 1 if the node before is among its in-neighbours, else
    ``1 / q``. Both need steps of one edge type, from a node type to itself."""

    weighted: bool = False
    """Steps in proportion to the weights of the edges (edge types without weights: uniformly)."""

    stop: tuple[float, ...] | None = None
    """``[num_steps]`` probability that a walk ends before each step; ``None``: only nodes without edges end it."""

    edge_ids: bool = False
    """Whether the result has them."""


@dataclass(frozen=True, kw_only=True)
class WalkRequest:
    """One batch of walks."""

    key: BatchKey
    """Names the batch; all draws are functions of it."""

    start: Tensor
    """``[num_walks] int64`` nodes, of the destination type of the first step; duplicates allowed."""


@dataclass(frozen=True, kw_only=True)
class Walks:
    """The nodes that each walk visits."""

    node: Tensor
    """``[num_walks, num_steps + 1] int64`` nodes, the start first; -1 after the end of a walk."""

    edge_id: Tensor | None
    """``[num_walks, num_steps] int64`` the user's ids of the edges that were taken, -1 where none was; ``None`` where
    they are not asked for."""


@dataclass(frozen=True, kw_only=True)
class PageRankSpec:
    """Neighbours by personalised PageRank: those in which random walks from a node, which end with probability
    ``alpha`` before each step, end most often. Found by pushes (Andersen, Chung, Lang: Local graph partitioning using
    PageRank vectors, 2006); a function of the graph alone, without random numbers."""

    edge_type: EdgeType
    """From a node type to itself. Walks step to in-neighbours."""

    alpha: float = 0.2
    """Probability that a walk ends."""

    eps: float = 1e-5
    """A node is pushed while its residual is at least ``alpha * eps`` times its number of in-neighbours."""

    top_k: int | None = None
    """Limit of neighbours per node, by rank; ``None``: all that were pushed."""


@dataclass(frozen=True)
class PageRankNeighbors:
    """The result: neighbours of nodes, the node itself among them."""

    begin: Tensor
    """``[num_nodes + 1] int64``: where the neighbours of each node begin."""

    node: Tensor
    """``[num_neighbors] int64``: by falling rank, then by ascending id; without ``top_k``, in the order of their first
    push."""

    value: Tensor
    """``[num_neighbors] float64``: their rank."""


class WalkSampler(Protocol):
    """A pure function from a request to walks. Safe to call from several threads at once."""

    def sample(self, request: WalkRequest) -> Walks:
        """Walk from ``request.start``."""
        ...


class Sampler(Protocol):
    """A pure function from a request to a sample. Safe to call from several threads at once."""

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        ...


class Pending(Protocol):
    """Batches whose sampling has begun."""

    def finish(self) -> list[SampledSubgraph]:
        """Return one sample per request, in their order."""
        ...


class Engine(Sampler, Protocol):
    """Samples one graph by one spec. Safe to call from several threads at once."""

    @property
    def collective(self) -> bool:
        """Whether all ranks must sample the same number of batches, in the same order."""
        ...

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Begin to sample multiple batches; a GPU does so on the current stream, without waiting for anything."""
        ...
