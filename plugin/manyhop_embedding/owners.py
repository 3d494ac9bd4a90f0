"""Which rank updates which rows. Pure arithmetic: nothing here communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manyhop.features import Shards
from manyhop.ranks.world import World

Copies = Literal["rank", "node", "nodes", "ranks"]
"""Who has a copy of a table. ``rank``: each rank. ``node``: each node, whose ranks share it. ``nodes``: all nodes
together, a part each, which its ranks share. ``ranks``: all ranks together, a part each."""


@dataclass(frozen=True)
class Owners:
    """The rows of a table over ranks: every row of every copy belongs to one rank, which updates it."""

    num_rows: int
    world: World
    copies: Copies

    @property
    def num_copies(self) -> int:
        """How many ranks update the same row."""
        return {"rank": self.world.world_size, "node": self.world.num_nodes}.get(self.copies, 1)

    @property
    def share_memory(self) -> bool:
        """Whether ranks read rows where another rank updates them.

        Elsewhere a rank reads its own, or gets those of other ranks in an exchange, which each of these begins after
        its update.
        """
        return self.copies in ("node", "nodes")

    def rows_of(self, rank: int) -> range:
        """The rows that a rank owns."""
        if self.copies == "rank":
            return range(self.num_rows)
        if self.copies == "ranks":
            return Shards(self.num_rows, self.world.world_size).rows_of(rank)
        here = self.rows_near(rank)
        ranks = self.world.ranks_of(self.world.nodes[rank])
        part = Shards(len(here), len(ranks)).rows_of(ranks.index(rank))
        return range(here.start + part.start, here.start + part.stop)

    def rows_near(self, rank: int) -> range:
        """The rows of the memory that a rank writes to: its own, or those that it shares with ranks of its node."""
        if self.copies == "nodes":
            return Shards(self.num_rows, self.world.num_nodes).rows_of(self.world.nodes[rank])
        return range(self.num_rows) if self.copies == "node" else self.rows_of(rank)

    def has_first_copy(self, rank: int) -> bool:
        """Whether the rows of a rank belong to the first copy, the one that is saved."""
        if self.copies == "rank":
            return rank == 0
        return self.copies != "node" or self.world.nodes[rank] == 0

    def bounds(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return ``[world_size, 2]``: the first row of each rank, and the one after its last."""
        ranges = [self.rows_of(rank) for rank in range(self.world.world_size)]
        return torch.tensor([[rows.start, rows.stop] for rows in ranges], dtype=dtype, device=device)
