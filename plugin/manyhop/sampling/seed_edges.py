"""Sampling around seed edges: endpoints, negatives, and where they lie in the sampled subgraph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling.check import check_edge_request, check_negatives
from manyhop.sampling.contract import EdgeRequest, NegativeSpec, NodeRequest, SampledEdges, Sampler
from manyhop.sampling.lookup import EdgeLookup, check_pairs
from manyhop.sampling.negatives import NegativeTable, draw_destinations, draw_pairs


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
        dst_weight: ``[num_nodes]``: the same for destinations.
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
        self._avoid = EdgeLookup(graph.csc[edge_type]) if negatives is not None and negatives.exclude_true else None
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
        return NegativeTable.build(self.graph.num_nodes[node_type], weight, self.graph.node_time.get(node_type))

    def sample(self, request: EdgeRequest) -> SampledEdges:
        """Sample around the endpoints of ``request`` and of the negatives drawn for it.

        Raises:
            InputError: the request does not fit the graph or the sampler, or there is no negative to draw.
        """
        check_edge_request(self.graph, request, self.negatives)
        if request.edge_type != self.edge_type:
            raise InputError(f"Expected seed edges of type {self.edge_type}, got {request.edge_type}.")
        num_pos = request.src.numel()
        triplet = self.negatives is not None and self.negatives.mode == "triplet"
        src, dst = self._endpoints(request)
        src_type, _, dst_type = self.edge_type
        homogeneous = src_type == dst_type
        if self.disjoint:
            src_index = torch.arange(src.numel())
            dst_index = torch.arange(dst.numel()) + (src.numel() if homogeneous else 0)
            seeds = {src_type: torch.cat([src, dst])} if homogeneous else {src_type: src, dst_type: dst}
        elif homogeneous:
            unique, index = _unique(torch.cat([src, dst]))
            src_index, dst_index = index[: src.numel()], index[src.numel() :]
            seeds = {src_type: unique}
        else:
            (unique, src_index), (unique_dst, dst_index) = _unique(src), _unique(dst)
            seeds = {src_type: unique, dst_type: unique_dst}
        subgraph = self.sampler.sample(
            NodeRequest(
                key=request.key,
                seeds=seeds,
                time_max=self._seed_times(request.time_max, src.numel(), dst.numel()),
                time_min=self._seed_times(request.time_min, src.numel(), dst.numel()),
                exclude=request.exclude,
            )
        )
        if (subgraph.tree is not None) != self.disjoint:
            raise InputError(f"Expected a sampler with disjoint={self.disjoint}, got one that differs.")
        amount = int(self.negatives.amount) if self.negatives is not None and triplet else 0
        return SampledEdges(
            subgraph=subgraph,
            src_index=src_index,
            dst_index=dst_index[:num_pos] if triplet else dst_index,
            dst_neg_index=dst_index[num_pos:].view(amount, num_pos).t().contiguous() if triplet else None,
            num_pos=num_pos,
            time_max=None if request.time_max is None else _repeat(request.time_max, src.numel()),
        )

    def _endpoints(self, request: EdgeRequest) -> tuple[Tensor, Tensor]:
        """Sources and destinations, those of the negatives appended."""
        spec, src, dst = self.negatives, request.src, request.dst
        if spec is None or self._dst_table is None:
            return src, request.all_dst()
        num_neg = math.ceil(src.numel() * spec.amount)
        time = None if request.time_max is None else _repeat(request.time_max, num_neg).numpy()
        if self._src_table is not None:
            pairs = draw_pairs(request.key, self._src_table, self._dst_table, num_neg, time, self._avoid)
            return torch.cat([src, torch.from_numpy(pairs[0])]), torch.cat([dst, torch.from_numpy(pairs[1])])
        sources = _repeat(src, num_neg).numpy()
        drawn = draw_destinations(request.key, sources, self._dst_table, time, self._avoid)
        return src, torch.cat([dst, torch.from_numpy(drawn)])

    def _seed_times(self, time: Tensor | None, num_src: int, num_dst: int) -> dict[NodeType, Tensor] | None:
        """Times of the seeds, in the order of the seeds of a disjoint request."""
        if time is None:
            return None
        if not self.disjoint:
            raise InputError("Times of seed edges need one tree per endpoint: build the samplers with disjoint=True.")
        src_type, _, dst_type = self.edge_type
        src_time, dst_time = _repeat(time, num_src), _repeat(time, num_dst)
        if src_type == dst_type:
            return {src_type: torch.cat([src_time, dst_time])}
        return {src_type: src_time, dst_type: dst_time}


def _repeat(values: Tensor, n: int) -> Tensor:
    """``[n]``: entry ``j`` is ``values[j % len(values)]``."""
    return values if n == values.numel() else values[torch.arange(n) % max(values.numel(), 1)]


def _unique(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted unique ids, and where each of ``ids`` lies among them."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    return unique, inverse
