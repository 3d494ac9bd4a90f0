"""Sampling along the edges and against them: PyG's ``BidirectionalNeighborSampler``."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch_geometric.sampler
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from manyhop.arguments import as_ids
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.loading import next_key
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.spec import as_num_neighbors

_PyGs: Any = getattr(  # PyG 2.6 has none
    torch_geometric.sampler, "BidirectionalNeighborSampler", torch_geometric.sampler.NeighborSampler
)


class BidirectionalNeighborSampler(_PyGs):  # type: ignore[misc]  # PyG is untyped
    """Sample neighbours along and against edges, hop by hop: PyG's ``BidirectionalNeighborSampler``.

    Each hop samples ``n`` in-neighbours and ``n`` out-neighbours of its seeds; the new nodes are the seeds of the next
    hop. Each node and edge appears once per batch (per tree, if disjoint), in the order of its first appearance.
    ``num_sampled_nodes`` has two counts per hop and direction (new seeds, and neighbours), ``num_sampled_edges`` one.
    ``edge`` holds the user's edge ids, as with :class:`NeighborSampler`.

    Args:
        data: ``Data``, or a homogeneous ``(FeatureStore, GraphStore)``.
        num_neighbors: neighbours per node and direction, hop by hop. May be set later.
        subgraph_type: ``"directional"``, ``"induced"`` or ``"bidirectional"``: reverses of the sampled edges are added.
        replace, disjoint, weight_attr, is_sorted, share_memory, directed: see :class:`NeighborSampler`.
        temporal_strategy, time_attr: not supported, since times of later seeds are undefined.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph; heterogeneous data; times.
        GraphError: a topology or weights that are wrong.
    """

    def __init__(
        self,
        data: Data | tuple[FeatureStore, GraphStore],
        num_neighbors: NumNeighbors | list[int],
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
    ) -> None:
        name = type(self).__name__
        if time_attr is not None:
            raise InputError(f"Expected no times for {name}, got time_attr={time_attr!r}. Use NeighborSampler.")
        both = [
            NeighborSampler(
                data,
                num_neighbors,
                subgraph_type=subgraph_type,
                replace=replace,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                share_memory=share_memory,
                directed=directed,
                sample_direction=direction,
            )
            for direction in ("forward", "backward")
        ]
        if both[0].is_hetero:
            raise InputError(f"Expected data without types for {name}, got some with types. Use NeighborSampler.")
        self.forward_sampler, self.backward_sampler = both
        self.data_type = both[0].data_type
        self.subgraph_type = both[0].subgraph_type
        self.keep_orig_edges = False
        self.num_nodes: int = both[0].num_nodes  # type: ignore[assignment]  # without types
        self.node_time = self.edge_time = None
        for sampler in both:  # whose reverses are added to the whole
            if self.subgraph_type == SubgraphType.bidirectional:
                sampler.subgraph_type = SubgraphType.directional
        self.num_neighbors = num_neighbors

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """Sample around the endpoints of seed edges; raise InputError for ``neg_sampling``."""
        if neg_sampling is not None:
            raise InputError(f"Expected no neg_sampling for {type(self).__name__}, got some. Use NeighborSampler.")
        return super().sample_from_edges(inputs)

    def _sample(self, seed: Tensor, seed_time: Tensor | None = None, **kwargs: object) -> SamplerOutput:
        if seed_time is not None or kwargs:
            raise InputError(f"Expected seed only, got also {['seed_time', *kwargs]}. Leave them out.")
        seeds = as_ids("seed nodes", seed).long()
        trees = torch.arange(len(seeds)) if self.disjoint else torch.zeros_like(seeds)
        if not self.disjoint and len(torch.unique(seeds)) < len(seeds):
            raise InputError("Expected each seed node once in a batch, got duplicates. Pass disjoint=True.")
        # The key of a node of a tree is tree * num_nodes + node; edges have similar keys.
        num_edges = self.forward_sampler.topology.graph.num_edges(HOMOGENEOUS_EDGE)
        nodes, edges = _Merged(), _Merged()
        rows: list[Tensor] = []
        cols: list[Tensor] = []
        known = len(seeds)
        for hop in self._hops:
            for sampler in hop:
                request = sampler.requests.of_nodes({None: seeds}, {}, next_key())
                out: Any = sampler.node_output(sampler.engine.sample(request))
                tree = trees[out.batch] if self.disjoint else torch.zeros_like(out.node)
                node = tree * self.num_nodes + out.node
                nodes.add(node, out.num_sampled_nodes)
                edges.add(tree[out.row] * num_edges + out.edge, out.num_sampled_edges)
                rows.append(node[out.row])
                cols.append(node[out.col])
            found = nodes.unique()
            fresh, known = found[known:], len(found)
            trees, seeds = fresh // self.num_nodes, fresh % self.num_nodes
        node, first, dtype = nodes.unique(), edges.first(), self.forward_sampler.topology.index_dtype
        return SamplerOutput(
            node=(node % self.num_nodes).to(dtype),
            row=nodes.find(torch.cat(rows)[first]).to(dtype),
            col=nodes.find(torch.cat(cols)[first]).to(dtype),
            edge=edges.unique() % num_edges,
            batch=(node // self.num_nodes).to(dtype) if self.disjoint else None,
            num_sampled_nodes=nodes.counts(),
            num_sampled_edges=edges.counts(),
        )

    # Attributes of PyG's sampler.

    @property
    def num_neighbors(self) -> NumNeighbors:
        """Neighbours per node and direction, hop by hop. May be set."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: object) -> None:
        self._num_neighbors = as_num_neighbors(value)
        if not self._num_neighbors.values:
            raise InputError("Expected num_neighbors with at least one hop, got none.")
        one_hop: dict[int, tuple[NeighborSampler, NeighborSampler]] = {}
        for n in self._num_neighbors.values:
            if n not in one_hop:
                one_hop[n] = _one_hop(self.forward_sampler, n), _one_hop(self.backward_sampler, n)
        self._hops = [one_hop[n] for n in self._num_neighbors.values]

    is_hetero = is_temporal = False
    edge_permutation = None  # edges have the user's ids

    @property
    def disjoint(self) -> bool:
        """Whether each seed has its own tree. May be set."""
        return self.forward_sampler.disjoint

    @disjoint.setter
    def disjoint(self, value: bool) -> None:
        self.forward_sampler.disjoint = self.backward_sampler.disjoint = value
        self.num_neighbors = self._num_neighbors


class _Merged:
    """Ids that are added in parts, each kept where it first appears."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._sizes: list[int] | None = []

    def add(self, ids: Tensor, sizes: list[int] | None) -> None:
        """Add ids; ``sizes``: number of ids per slot, ``None``: they are not counted."""
        self._parts.append(ids)
        self._sizes = None if sizes is None or self._sizes is None else self._sizes + sizes

    def first(self) -> Tensor:
        """Return the positions of first appearances, ascending."""
        ids = torch.cat(self._parts)
        unique, inverse = torch.unique(ids, return_inverse=True)
        first = torch.full_like(unique, len(ids))
        return first.scatter_reduce_(0, inverse, torch.arange(len(ids)), "amin").sort().values

    def unique(self) -> Tensor:
        """Return the ids in the order of their first appearance."""
        return torch.cat(self._parts)[self.first()]

    def find(self, ids: Tensor) -> Tensor:
        """Return the positions of ids among the unique ones."""
        ordered, order = self.unique().sort()
        return order[torch.searchsorted(ordered, ids)]

    def counts(self) -> list[int] | None:
        """Return the number of first appearances in each slot."""
        if self._sizes is None:
            return None
        slots = torch.bucketize(self.first(), torch.tensor(self._sizes).cumsum(0), right=True)
        counts: list[int] = slots.bincount(minlength=len(self._sizes)).tolist()
        return counts


def _one_hop(sampler: NeighborSampler, num_neighbors: int) -> NeighborSampler:
    """Return a copy of a sampler that samples one of its hops."""
    one = copy.copy(sampler)
    one.num_neighbors = NumNeighbors([num_neighbors])
    return one
