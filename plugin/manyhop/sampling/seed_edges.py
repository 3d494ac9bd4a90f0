"""Sampling around seed edges: endpoints, negatives, and their positions in the sampled subgraph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import CSC, EdgeType, Graph, NodeType
from manyhop.sampling.check import check_negatives, check_seed_edges
from manyhop.sampling.contract import EdgeRequest, NegativeSpec, NodeRequest, SampledEdges, SampledSubgraph, Sampler
from manyhop.sampling.lookup import EdgeLookup, check_pairs
from manyhop.sampling.negatives import NegativeTable, draw_negatives, key_of_kind


class EdgeSampler:
    """Draws negatives for seed edges of one type and samples around all endpoints. A pure function of the request.

    The negatives of a batch of ``P`` seed edges have flat indices ``j = 0, 1, ...``; negative ``j`` belongs to seed
    edge ``j % P`` (its time, and for triplets its source). For binary negatives they follow the seed edges in
    ``src_index`` and ``dst_index``; for triplets ``dst_neg_index[i, a]`` is the negative ``a * P + i``.

    With ``disjoint``, tree ``t`` of the subgraph belongs to seed edge ``t % (P + N) % P`` (none or binary, ``N``
    negatives) or ``t % P`` (triplets).

    Args:
        sampler: samples around nodes.
        graph: the topology that ``sampler`` samples from.
        edge_type: type of the seed edges.
        negatives: which negatives to draw; ``None`` for none.
        src_weight: ``[num_nodes]``: sources of binary negatives are drawn in proportion to it; ``None``: uniformly.
        dst_weight: ``[num_nodes]``: weights of destinations.
        disjoint: whether ``sampler`` keeps one tree per seed.

    Raises:
        InputError: the arguments contradict each other or do not fit the graph.
    """

    def __init__(
        self,
        sampler: Sampler,
        graph: Graph,
        edge_type: EdgeType,
        *,
        negatives: NegativeSpec | None = None,
        src_weight: Tensor | None = None,
        dst_weight: Tensor | None = None,
        disjoint: bool = False,
    ) -> None:
        check_negatives(graph, edge_type, negatives, src_weight=src_weight, dst_weight=dst_weight)
        self.sampler = sampler
        self.graph = graph
        self.edge_type = edge_type
        self.negatives = negatives
        self.disjoint = disjoint
        self.avoid = None if negatives is None or not negatives.exclude_true else self._lookup(graph.csc[edge_type])
        self._src_table: NegativeTable | None = None
        self._dst_table: NegativeTable | None = None
        if negatives is not None and not negatives.given:
            self._dst_table = self._table(edge_type[2], dst_weight)
        if negatives is not None and negatives.mode == "binary":
            self._src_table = self._table(edge_type[0], src_weight)

    @staticmethod
    def check(
        graph: Graph,
        edge_type: EdgeType,
        *,
        negatives: NegativeSpec | None = None,
        src_weight: Tensor | None = None,
        dst_weight: Tensor | None = None,
    ) -> None:
        """Raise InputError where making one would; makes nothing."""
        check_negatives(graph, edge_type, negatives, src_weight=src_weight, dst_weight=dst_weight)
        if negatives is None or negatives.given:
            return
        if negatives.exclude_true:
            check_pairs(graph.csc[edge_type])
        drawn = [(edge_type[2], dst_weight)] + [(edge_type[0], src_weight)] * (negatives.mode == "binary")
        for node_type, weight in drawn:
            NegativeTable.check(graph.num_nodes[node_type], weight, graph.node_time.get(node_type))

    def _table(self, node_type: NodeType, weight: Tensor | None) -> NegativeTable:
        time = self.graph.node_time.get(node_type)
        return NegativeTable(self.graph.num_nodes[node_type], weight, None if time is None else time.cpu())

    def _lookup(self, csc: CSC) -> EdgeLookup:
        return EdgeLookup(csc)

    def sample(self, request: EdgeRequest) -> SampledEdges:
        """Sample around the endpoints of ``request`` and of the negatives drawn for it.

        Raises:
            InputError: the request does not fit the graph or the sampler, or there is no negative to draw.
        """
        (sampled,), _ = sample_together([self], [request])
        return sampled

    def endpoints(self, request: EdgeRequest, number: int) -> tuple[Tensor, Tensor]:
        """Return sources and destinations, followed by those of the negatives.

        Args:
            request: the seed edges.
            number: which of the edge types of a batch this is, from 0.

        Raises:
            InputError: the request does not fit the graph or the sampler, or there is no negative to draw.
        """
        check_seed_edges(self.graph, self.edge_type, request, self.negatives, disjoint=self.disjoint)
        key = key_of_kind(request.key, number)
        spec, src, dst = self.negatives, request.src, request.dst
        if spec is None or self._dst_table is None:
            return src, request.all_dst()
        num_neg = math.ceil(src.numel() * spec.amount)
        time = None if request.time_max is None else _repeat(request.time_max, num_neg).numpy()
        sources = _repeat(src, num_neg).numpy() if self._src_table is None else self._src_table
        s, d = draw_negatives(key, sources, self._dst_table, num_neg, time, self.avoid)
        if self._src_table is not None:
            src = torch.cat([src, torch.from_numpy(s)])
        return src, torch.cat([dst, torch.from_numpy(d)])


def sample_together(
    samplers: Sequence[EdgeSampler], requests: Sequence[EdgeRequest]
) -> tuple[list[SampledEdges], Tensor | None]:
    """Sample around seed edges of multiple types in one batch.

    Args:
        samplers: one per edge type, over the same sampler around nodes.
        requests: one per edge type, with the same key; the first names the edges that the sample must not have.

    Returns:
        The result for each edge type, all with the same subgraph; with ``disjoint``, ``[num_trees] int64``, the seed
        edge of each tree, numbered through the edge types, otherwise ``None``.

    Raises:
        InputError: a request does not fit the graph or its sampler, or there is no negative to draw.
    """
    disjoint, request = samplers[0].disjoint, requests[0]
    ends = [s.endpoints(r, i) for i, (s, r) in enumerate(zip(samplers, requests, strict=True))]
    pieces: dict[NodeType, list[_Piece]] = {}
    first_edge = 0
    for i, (sampler, one) in enumerate(zip(samplers, requests, strict=True)):
        src_type, _, dst_type = sampler.edge_type
        pieces.setdefault(src_type, []).append(_Piece((i, 0), ends[i][0], one, first_edge))
        pieces.setdefault(dst_type, []).append(_Piece((i, 1), ends[i][1], one, first_edge))
        first_edge += one.src.numel()
    seeds: dict[NodeType, Tensor] = {}
    local: dict[tuple[int, int], Tensor] = {}
    for node_type, found in pieces.items():
        ids = torch.cat([piece.ids for piece in found])
        seeds[node_type], index = (
            (ids, torch.arange(ids.numel(), device="cpu")) if disjoint else torch.unique(ids, return_inverse=True)
        )
        sizes = [piece.ids.numel() for piece in found]
        local.update(zip([piece.place for piece in found], torch.split(index, sizes), strict=True))
    subgraph = samplers[0].sampler.sample(
        NodeRequest(
            key=request.key,
            seeds=seeds,
            time_max=_times(pieces, "time_max"),
            time_min=_times(pieces, "time_min"),
            exclude=request.exclude,
        )
    )
    check_trees(subgraph, disjoint=disjoint)
    edges = [
        _result(sampler.negatives, one, subgraph, local[i, 0], local[i, 1])
        for i, (sampler, one) in enumerate(zip(samplers, requests, strict=True))
    ]
    if not disjoint:
        return edges, None
    return edges, torch.cat([piece.seed_edges() for found in pieces.values() for piece in found])


def check_trees(subgraph: SampledSubgraph, *, disjoint: bool) -> None:
    """Raise InputError where a sampler of nodes keeps trees, or none, unlike the sampler of edges around it."""
    if (subgraph.tree is not None) != disjoint:
        raise InputError(f"Expected a sampler with disjoint={disjoint}, got one that differs.")


def _result(
    negatives: NegativeSpec | None,
    request: EdgeRequest,
    subgraph: SampledSubgraph,
    src_index: Tensor,
    dst_index: Tensor,
) -> SampledEdges:
    """Return the result for seed edges, from local ids of all sources and of all destinations."""
    num_pos, drawn = request.src.numel(), None
    if negatives is not None and negatives.mode == "triplet":
        drawn = dst_index[num_pos:].view(int(negatives.amount), num_pos).t().contiguous()
    return SampledEdges(
        subgraph=subgraph,
        src_index=src_index,
        dst_index=dst_index if drawn is None else dst_index[:num_pos],
        dst_neg_index=drawn,
        num_pos=num_pos,
        time_max=None if request.time_max is None else _repeat(request.time_max, src_index.numel()),
    )


class _Piece(NamedTuple):
    """The sources or the destinations of seed edges of one type, including those of negatives."""

    place: tuple[int, int]
    """Number of the edge type; 0 for sources, 1 for destinations."""

    ids: Tensor
    request: EdgeRequest
    first_edge: int
    """Seed edges of the types before."""

    def seed_edges(self) -> Tensor:
        """Return the seed edge of each of :attr:`ids`, numbered through the edge types."""
        return self.first_edge + torch.arange(self.ids.numel(), device="cpu") % max(self.request.src.numel(), 1)


def _times(
    pieces: Mapping[NodeType, Sequence[_Piece]], name: Literal["time_max", "time_min"]
) -> dict[NodeType, Tensor] | None:
    """Times of the seeds of a disjoint request."""
    times = {
        node_type: [_repeat(time, p.ids.numel()) for p in found if (time := getattr(p.request, name)) is not None]
        for node_type, found in pieces.items()
    }
    return {node_type: torch.cat(each) for node_type, each in times.items() if each} or None


def _repeat(values: Tensor, n: int) -> Tensor:
    """Return ``[n]``: entry ``j`` is ``values[j % len(values)]``."""
    return values if n == values.numel() else values[torch.arange(n, device="cpu") % max(values.numel(), 1)]
