"""Seed nodes of several types in one batch."""

from __future__ import annotations

from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput

from manyhop.graph import NodeType
from manyhop_pyg.typing import Metadata

ByType: TypeAlias = dict[NodeType | None, Tensor]


class TypedNodeInput(NodeSamplerInput):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``NodeSamplerInput`` for seeds of several types: those of the first type, then those of the next.

    Args:
        input_id: ``[num_seeds]``: what the batch calls each seed.
        node: ``[num_seeds]`` ids, each of its type.
        time: ``[num_seeds]``; ``None``: each node's own.
        node_types: the types.
        sizes: how many seeds each type has.
    """

    def __init__(
        self, input_id: Tensor, node: Tensor, time: Tensor | None, node_types: tuple[NodeType, ...], sizes: list[int]
    ) -> None:
        super().__init__(input_id, node, time, node_types)
        self.sizes = sizes

    def __getitem__(self, index: Tensor | list[int]) -> TypedNodeInput:
        """The seeds at some positions, by type, in the order of the positions within a type."""
        index = torch.as_tensor(index, dtype=torch.int64)
        ends = torch.tensor(list(accumulate(self.sizes)))
        kind = torch.searchsorted(ends, index, right=True)
        index = index[kind.sort(stable=True).indices]
        return TypedNodeInput(
            self.input_id[index],
            self.node[index],
            None if self.time is None else self.time[index],
            self.input_type,
            kind.bincount(minlength=len(self.sizes)).tolist(),
        )


def seeds_of(index: NodeSamplerInput) -> tuple[ByType, ByType]:
    """Return the seed nodes by type (``None`` without types), and their times, as far as given."""
    if not isinstance(index, TypedNodeInput):
        return {index.input_type: index.node}, {} if index.time is None else {index.input_type: index.time}
    columns = (None if column is None else column.split(index.sizes) for column in (index.node, index.time))
    node, time = ({} if parts is None else dict(zip(index.input_type, parts, strict=True)) for parts in columns)
    return node, time


def node_metadata(index: NodeSamplerInput, input_id: Tensor | None, time: Tensor | None) -> Metadata:
    """Return ``metadata`` of the sample of seed nodes, whose ids and times may be on another device by now."""
    if isinstance(index, TypedNodeInput):
        return input_id, time, dict(zip(index.input_type, index.sizes, strict=True))
    return input_id, time
