"""Sampling around seed edges, dressed as PyG wants it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType, Graph, without_edges
from manyhop.sampling import EdgeSampler, SampledEdges, SampledSubgraph
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.samplers.given_negatives import GivenNegatives
from manyhop_pyg.samplers.spec import negative_spec
from manyhop_pyg.typing import Metadata

if TYPE_CHECKING:
    from manyhop.sampling import GPUEdgeSampler


T = TypeVar("T")
EngineT = TypeVar("EngineT", bound="EdgeSampler | GPUEdgeSampler")


class SeedEdges(Generic[EngineT]):
    """The engine's samplers around seed edges of any type; what each kind of request needs is prepared once.

    Args:
        topology: what is sampled.
        make: makes a sampler: ``EdgeSampler``, or that of a GPU, but for the graph and the kind of request.
    """

    def __init__(self, topology: Topology, make: Callable[..., EngineT]) -> None:
        self._topology = topology
        self._make = make
        self._samplers: dict[Hashable, tuple[EngineT, NegativeSampling | None]] = {}

    @staticmethod
    def relabelled(out: SampledEdges) -> SampledSubgraph:
        """The subgraph, with trees numbered by seed edge instead of by endpoint."""
        if out.subgraph.tree is not None:
            trees, num_src = out.subgraph.tree, out.src_index.numel()
            for node_type, tree in trees.items():
                trees[node_type] = tree % max(num_src, 1) % max(out.num_pos, 1)
        return out.subgraph

    def prepare(
        self, input_type: EdgeType | None, neg_sampling: NegativeSampling | None, *, exclude_true: bool
    ) -> EngineT:
        """The engine's sampler for one kind of request; ``input_type`` is ``None`` without types.

        Raises:
            InputError: an unknown node type, weights that do not fit, or negatives that cannot be drawn.
        """
        n, edge_type = neg_sampling, self._edge_type(input_type)
        cache_key: tuple[Hashable, ...] = (edge_type, exclude_true)
        if n is not None:
            cache_key += (negative_spec(n, exclude_true=exclude_true), id(n.src_weight), id(n.dst_weight))
        if cache_key not in self._samplers:
            sampler = self._for_request(self._make, edge_type, n, exclude_true=exclude_true)
            self._samplers[cache_key] = sampler, n  # kept alive: the cache knows its tensors by id
        return self._samplers[cache_key][0]

    def check(self, input_type: EdgeType | None, neg_sampling: NegativeSampling | None, *, exclude_true: bool) -> None:
        """Raise InputError where :meth:`prepare` would; makes no tables."""
        self._for_request(EdgeSampler.check, self._edge_type(input_type), neg_sampling, exclude_true=exclude_true)

    def _edge_type(self, input_type: EdgeType | None) -> EdgeType:
        if not self._topology.hetero:
            return HOMOGENEOUS_EDGE
        if input_type is None:
            raise InputError("Expected seed edges with an edge type, since the graph has types, got none.")
        return input_type

    def _for_request(
        self, call: Callable[..., T], edge_type: EdgeType, n: NegativeSampling | None, *, exclude_true: bool
    ) -> T:
        """What ``call`` gives, with the arguments of the engine's samplers around seed edges."""
        graph = self._seed_graph(edge_type, exclude_true=exclude_true)
        negatives = negative_spec(n, exclude_true=exclude_true)
        src_weight, dst_weight = (None, None) if n is None else (n.src_weight, n.dst_weight)
        if n is not None and n.is_triplet() and src_weight is not None:
            _warn_of_src_weight()
            src_weight = None
        for name, weight in (("src_weight", src_weight), ("dst_weight", dst_weight)):
            if not isinstance(weight, Tensor | None):
                raise InputError(f"Expected {name} of negatives as a tensor [num_nodes], got {type(weight).__name__}.")
        return call(graph, edge_type, negatives=negatives, src_weight=src_weight, dst_weight=dst_weight)

    def _seed_graph(self, edge_type: EdgeType, *, exclude_true: bool) -> Graph:
        """The graph as seed edges see it: seeds may be of a type that has no edges, or that is sampled backward."""
        topology, graph = self._topology, self._topology.graph
        for end in (edge_type[0], edge_type[2]):
            if end not in graph.num_nodes:
                raise InputError(
                    f"Edge type {edge_type} uses the unknown node type '{end}'. The graph has: {list(graph.num_nodes)}."
                )
        if edge_type in graph.edge_types and not topology.backward:
            return graph
        if exclude_true:
            raise InputError(
                f"exclude_true_negatives=True needs the edges of type {edge_type} in the graph that is sampled, "
                "in forward direction."
            )
        return without_edges(graph, edge_type)


@functools.cache
def _warn_of_src_weight() -> None:
    """Warn, once in a process."""
    warnings.warn(
        "src_weight has no effect with triplets, as in PyG: only destinations are drawn. Leave it out.",
        stacklevel=2,
    )


def edge_metadata(
    out: SampledEdges,
    neg_sampling: NegativeSampling | None,
    input_id: Tensor | None,
    label: Tensor | None,
    time: Tensor | None,
) -> Metadata:
    """PyG's ``metadata``: where the seed edges and the negatives are, their labels and times."""
    if out.dst_neg_index is not None:
        negatives = out.dst_neg_index.squeeze(1) if out.dst_neg_index.size(1) == 1 else out.dst_neg_index
        return input_id, out.src_index, out.dst_index, negatives, time
    if isinstance(neg_sampling, GivenNegatives):
        return input_id, out.src_index, out.dst_index, neg_sampling.in_batch_index(out.dst_index), time
    num_pos, num_src, device = out.num_pos, out.src_index.numel(), out.src_index.device
    if neg_sampling is not None:
        label = torch.ones(num_pos, device=device) if label is None else label
        label = torch.cat([label, label.new_zeros(num_src - num_pos, *label.shape[1:])])
        if time is not None and num_pos > 0:
            time = time[torch.arange(num_src, device=device) % num_pos]
    return input_id, torch.stack([out.src_index, out.dst_index]), label, time
