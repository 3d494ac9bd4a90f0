"""Seed edges of several types in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from manyhop.graph import EdgeType
from manyhop.sampling import SampledEdges
from manyhop_pyg.samplers.seed_edges import edge_metadata
from manyhop_pyg.samplers.typed_negatives import negatives_of
from manyhop_pyg.typing import Metadata


class TypedEdgeInput(EdgeSamplerInput):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``EdgeSamplerInput`` for seed edges of several types: those of the first type, then those of the next.

    Args:
        parts: edge type -> its seed edges.
    """

    def __init__(self, parts: Mapping[EdgeType, EdgeSamplerInput]) -> None:
        each = list(parts.values())
        for part in each:
            part.input_id = torch.arange(part.row.numel()) if part.input_id is None else part.input_id
        ids, row, col = (torch.cat([getattr(part, name) for part in each]) for name in ("input_id", "row", "col"))
        super().__init__(ids, row, col, input_type=tuple(parts))
        self.parts = dict(parts)
        self.sizes = [part.row.numel() for part in each]

    def __getitem__(self, index: Tensor | list[int]) -> TypedEdgeInput:
        """The seed edges at some positions, by type, in the order of the positions within a type."""
        index = torch.as_tensor(index, dtype=torch.int64)
        ends = list(accumulate(self.sizes))
        kind = torch.searchsorted(torch.tensor(ends), index, right=True)
        return TypedEdgeInput(
            {
                edge_type: part[index[kind == i] - (ends[i] - self.sizes[i])]
                for i, (edge_type, part) in enumerate(self.parts.items())
            }
        )


def typed_metadata(
    index: TypedEdgeInput,
    input_id: Tensor,
    sampled: Sequence[SampledEdges],
    seed_edges: Tensor | None,
    neg_sampling: NegativeSampling | None,
    columns: Sequence[tuple[Tensor | None, Tensor | None, Tensor | None]],
) -> Metadata:
    """PyG's ``metadata``, that of each type in second place; numbers the trees of the sample by seed edge.

    Args:
        index: the seed edges of a batch.
        input_id: of all types, where the batch is.
        sampled, seed_edges: what the engine gives for them.
        neg_sampling: which negatives there are.
        columns: ids, labels and times of each type, where the batch is.
    """
    trees = sampled[0].subgraph.tree
    if trees is not None and seed_edges is not None:
        trees.update({node_type: seed_edges[tree] for node_type, tree in trees.items()})
    about = {
        t: edge_metadata(one, negatives_of(neg_sampling, t), *of_type)
        for t, one, of_type in zip(index.parts, sampled, columns, strict=True)
    }
    return input_id, about, dict(zip(index.parts, index.sizes, strict=True))


def parts_of(index: EdgeSamplerInput) -> dict[EdgeType | None, EdgeSamplerInput]:
    """Return the seed edges of each type; ``None`` is that of a graph without types."""
    if isinstance(index, TypedEdgeInput):
        return {edge_type: part for edge_type, part in index.parts.items()}  # keys of another type
    return {index.input_type: index}
