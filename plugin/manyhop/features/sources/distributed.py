"""Rows that are spread over all ranks, a part of them on each GPU. Nothing here communicates."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.sources.cached import HotRows
from manyhop.features.sources.shards import RowsInParts, Shards
from manyhop.ranks.world import World


@dataclass(eq=False)
class DistributedRows(RowsInParts):
    """A tensor of whose rows every rank has a part; a source for :func:`manyhop.features.gather`.

    Raises:
        FeatureError: the rows are not those of this rank, or not contiguous.
    """

    rows: Tensor
    """``[rows of this rank, ...]``: the part that this rank has, where its GPU can read it."""

    num_rows: int
    """Rows of all ranks together."""

    world: World
    """Who this rank is."""

    hot: HotRows | None = None
    """Which rows of other ranks this rank's GPU keeps, too. Tensors that are indexed by the same ids share it."""

    hot_rows: Tensor | None = None
    """``[hot.count, ...]``: these rows, on the GPU."""

    on_host: bool = False
    """Whether ``rows`` are page-locked memory of the host, which this rank's GPU reads."""

    shards: Shards = field(init=False)
    """Which rows each rank has."""

    def __post_init__(self) -> None:
        self.shards = Shards(self.num_rows, self.world.world_size)
        mine = len(self.shards.rows_of(self.world.rank))
        if self.rows.dim() == 0 or self.rows.shape[0] != mine:
            raise FeatureError(
                f"Expected the {mine} rows of rank {self.world.rank} out of {self.num_rows} on {self.world.world_size} "
                f"ranks, got shape {list(self.rows.shape)}."
            )
        if not self.rows.is_contiguous():
            raise FeatureError("Expected contiguous rows. Call .contiguous().")

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all rows."""
        return self.world.is_alone
