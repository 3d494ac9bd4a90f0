"""Rows that are spread over nodes: who has which, and who gives them to whom. Nothing here communicates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.hot.index import HotIndex
from manyhop.ranks.world import World


@dataclass(frozen=True)
class Shards:
    """``num_rows`` rows over ``num_nodes`` nodes, in pieces that differ by one row at most."""

    num_rows: int
    num_nodes: int

    @property
    def bounds(self) -> list[int]:
        """``[num_nodes + 1]``: node ``m`` has the rows from ``bounds[m]`` up to ``bounds[m + 1]``."""
        return [self.num_rows * m // self.num_nodes for m in range(self.num_nodes + 1)]

    def rows_of(self, node: int) -> range:
        """The rows that a node has."""
        return range(self.num_rows * node // self.num_nodes, self.num_rows * (node + 1) // self.num_nodes)


def servers(world: World) -> list[int]:
    """``[num_nodes]``: which rank of each node this rank asks, so that ranks of a node are asked by as many each."""
    asked = []
    for node in range(world.num_nodes):
        ranks = world.ranks_of(node)
        asked.append(ranks[world.local_rank % len(ranks)])
    return asked


class RowsInParts:
    """What is known of a tensor of which this process has but a part of the rows."""

    rows: Tensor
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole tensor."""
        return (self.num_rows, *self.rows.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.rows.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.rows.dim()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.num_rows


@dataclass(eq=False)
class ShardedRows(RowsInParts):
    """A tensor whose rows are spread over the nodes of a run; a source for :func:`manyhop.features.gather`.

    Raises:
        FeatureError: the rows are not those of this node, or do not lie contiguously in CPU memory.
    """

    rows: Tensor
    """``[rows of this node, ...]``: the part that this node has."""

    num_rows: int
    """Rows of all nodes together."""

    world: World
    """Who this rank is."""

    hot: HotIndex | None = None
    """Which rows of other nodes this node keeps, too. Tensors that are indexed by the same ids share it."""

    hot_rows: Tensor | None = None
    """``[rows in hot, ...]``: these rows."""

    shards: Shards = field(init=False)

    def __post_init__(self) -> None:
        self.shards = Shards(self.num_rows, self.world.num_nodes)
        mine = len(self.shards.rows_of(self.world.node))
        if self.rows.dim() == 0 or self.rows.shape[0] != mine:
            raise FeatureError(
                f"Expected the {mine} rows of node {self.world.node} out of {self.num_rows} on "
                f"{self.world.num_nodes} nodes, got shape {list(self.rows.shape)}."
            )
        if self.rows.device.type != "cpu" or not self.rows.is_contiguous():
            raise FeatureError("Expected contiguous rows in CPU memory. Call .cpu().contiguous().")

    @property
    def is_whole(self) -> bool:
        """Whether this node has all rows."""
        return self.world.num_nodes == 1
