"""Seed edges in PyG's classes: the engine's samplers around them, multiple types per batch, and metadata."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from manyhop.arguments import as_tensor
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType, Graph, without_edges
from manyhop.sampling import EdgeSampler, SampledEdges
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.samplers.spec import GivenNegatives, negative_spec, negatives_of
from manyhop_pyg.typing import Metadata

if TYPE_CHECKING:
    from manyhop.sampling import GPUEdgeSampler


T = TypeVar("T")
EngineT = TypeVar("EngineT", bound="EdgeSampler | GPUEdgeSampler")


class SeedEdges(Generic[EngineT]):
    """The engine's samplers around seed edges, one per edge type and kind of negatives, cached.

    ``make`` creates an ``EdgeSampler``, or the GPU's, from a graph, an edge type and negatives.
    """

    def __init__(self, topology: Topology, make: Callable[..., EngineT]) -> None:
        self._topology = topology
        self._make = make
        self._samplers: dict[Hashable, tuple[EngineT, NegativeSampling | None]] = {}

    def of(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None, *, exclude_true: bool
    ) -> list[EngineT]:
        """Return the engine's sampler of each type of some seed edges."""
        found: list[EngineT] = []
        for input_type in parts_of(index):
            n, edge_type = negatives_of(neg_sampling, input_type), self._edge_type(input_type)
            key: tuple[Hashable, ...] = (edge_type, exclude_true)
            if n is not None:
                key += (negative_spec(n, exclude_true=exclude_true), id(n.src_weight), id(n.dst_weight))
            if key not in self._samplers:
                sampler = self._for_request(self._make, edge_type, n, exclude_true=exclude_true)
                self._samplers[key] = sampler, n  # kept alive, since the cache uses ids of its tensors
            found.append(self._samplers[key][0])
        return found

    def check(self, input_type: EdgeType | None, neg_sampling: NegativeSampling | None, *, exclude_true: bool) -> None:
        """Raise the errors of :meth:`of` without building tables."""
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
        """Call ``call`` with the arguments of the engine's samplers around seed edges."""
        graph = self._seed_graph(edge_type, exclude_true=exclude_true)
        negatives = negative_spec(n, exclude_true=exclude_true)
        src_weight, dst_weight = (None, None) if n is None else (n.src_weight, n.dst_weight)
        if n is not None and n.is_triplet() and src_weight is not None:
            warnings.warn(
                "src_weight has no effect with triplets, as in PyG: only destinations are drawn. Leave it out.",
                stacklevel=2,
            )
            src_weight = None
        src_weight, dst_weight = (
            None if weight is None else as_tensor(f"{name} of negatives", weight)
            for name, weight in (("src_weight", src_weight), ("dst_weight", dst_weight))
        )
        return call(graph, edge_type, negatives=negatives, src_weight=src_weight, dst_weight=dst_weight)

    def _seed_graph(self, edge_type: EdgeType, *, exclude_true: bool) -> Graph:
        """Return a graph that has the seed edges' type, even if it has no edges or is sampled backward."""
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


def edge_metadata(
    out: SampledEdges,
    neg_sampling: NegativeSampling | None,
    input_id: Tensor | None,
    label: Tensor | None,
    time: Tensor | None,
) -> Metadata:
    """Return PyG's ``metadata``: indices of seed edges and negatives, labels and times."""
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


class TypedEdgeInput(EdgeSamplerInput):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``EdgeSamplerInput`` for seed edges of multiple types, type by type."""

    def __init__(self, parts: Mapping[EdgeType, EdgeSamplerInput]) -> None:
        each = list(parts.values())
        for part in each:
            part.input_id = torch.arange(part.row.numel()) if part.input_id is None else part.input_id
        ids, row, col = (torch.cat([getattr(part, name) for part in each]) for name in ("input_id", "row", "col"))
        super().__init__(ids, row, col, input_type=tuple(parts))
        self.parts = dict(parts)
        self.sizes = [part.row.numel() for part in each]

    def __getitem__(self, index: Tensor | list[int]) -> TypedEdgeInput:
        """Return the seed edges at positions, sorted by type."""
        index = torch.as_tensor(index, dtype=torch.int64)
        ends = list(accumulate(self.sizes))
        kind = torch.searchsorted(torch.tensor(ends), index, right=True)
        return TypedEdgeInput(
            {
                edge_type: part[index[kind == i] - (ends[i] - self.sizes[i])]
                for i, (edge_type, part) in enumerate(self.parts.items())
            }
        )


def finish_seed_edges(
    index: EdgeSamplerInput,
    sampled: Sequence[SampledEdges],
    seed_edges: Tensor | None,
    neg_sampling: NegativeSampling | None,
    columns: Sequence[Tensor | None],
) -> Metadata:
    """Return ``metadata`` of a batch, and number the trees of its sample by seed edge instead of endpoint.

    Seed edges of multiple types have ``input_id``, the metadata of each type, and the number of seed edges of each.
    ``seed_edges [num_trees]`` is the seed edge of each tree; ``columns`` are :func:`columns_of_edges` of ``index``.
    """
    trees = sampled[0].subgraph.tree
    if trees is not None and seed_edges is not None:
        trees.update({node_type: seed_edges[tree] for node_type, tree in trees.items()})
    about = {
        t: edge_metadata(one, negatives_of(neg_sampling, t), *columns[3 * i : 3 * i + 3])
        for i, (t, one) in enumerate(zip(parts_of(index), sampled, strict=True))
    }
    if not isinstance(index, TypedEdgeInput):
        return about[index.input_type]
    return columns[-1], about, dict(zip(index.parts, index.sizes, strict=True))


def columns_of_edges(index: EdgeSamplerInput) -> list[Tensor | None]:
    """Return ids, labels and times of seed edges, type by type, then all ids."""
    columns = [column for part in parts_of(index).values() for column in (part.input_id, part.label, part.time)]
    return [*columns, index.input_id] if isinstance(index, TypedEdgeInput) else columns


def parts_of(index: EdgeSamplerInput) -> dict[EdgeType | None, EdgeSamplerInput]:
    """Return the seed edges by type; the key is ``None`` in homogeneous graphs."""
    if isinstance(index, TypedEdgeInput):
        return {edge_type: part for edge_type, part in index.parts.items()}  # keys of another type
    return {index.input_type: index}
