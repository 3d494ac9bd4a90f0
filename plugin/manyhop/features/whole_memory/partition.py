"""How WholeMemory divides a tensor among ranks, and how many bytes each of them gives for it. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from manyhop.errors import FeatureError, InputError
from manyhop.features.sources.shards import Shards

Kind = Literal["continuous", "chunked", "distributed"]
"""``continuous``: one range of addresses over all ranks' memory. ``chunked``: every rank sees the part of each other
one, at addresses of its own. ``distributed``: every rank sees its own part only."""

Location = Literal["cuda", "cpu"]
"""``cuda``: memory of the ranks' GPUs. ``cpu``: pinned memory of the host, which GPUs read, too."""

KINDS: tuple[Kind, ...] = ("continuous", "chunked", "distributed")
LOCATIONS: tuple[Location, ...] = ("cuda", "cpu")

# WholeGraph takes pages of this size, and larger ones for large tensors.
_PAGE, _LARGE_PAGE, _LARGE = 2 << 20, 512 << 20, 16 << 30


@dataclass(frozen=True)
class Division:
    """A tensor divided among ranks.

    Raises:
        InputError: a kind or a location that there is not.
        FeatureError: a shape without rows, or rows without bytes.
    """

    shape: tuple[int, ...]
    """That of the whole tensor."""
    dtype: torch.dtype
    num_ranks: int
    """Of those that hold it together."""
    kind: Kind
    location: Location

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"Expected a kind of {', '.join(KINDS)}, got {self.kind!r}.")
        if self.location not in LOCATIONS:
            raise InputError(f"Expected a location of {', '.join(LOCATIONS)}, got {self.location!r}.")
        if not self.shape or any(n < 0 for n in self.shape):
            raise FeatureError(f"Expected the shape [num_rows, ...], got {list(self.shape)}.")
        if self.row_bytes == 0:
            raise FeatureError(f"Expected rows of at least one number, got the shape {list(self.shape)}.")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.shape[0] * self.row_bytes

    @property
    def shards(self) -> Shards:
        """Which rows each rank holds."""
        return Shards(self.shape[0], self.num_ranks)

    @property
    def partition(self) -> list[int]:
        """``[num_ranks]``: rows that are allocated for each rank; WholeGraph demands one at least."""
        shards = self.shards
        if shards.num_rows < self.num_ranks:
            return [1] * self.num_ranks
        return [len(shards.rows_of(rank)) for rank in range(self.num_ranks)]

    @property
    def allocated_bytes(self) -> int:
        """Bytes that WholeGraph is asked for, of all ranks together."""
        return sum(self.partition) * self.row_bytes

    def bytes_of_ranks(self) -> list[int]:
        """``[num_ranks]``: what each rank allocates: whole pages."""
        total, ranks = self.allocated_bytes, range(self.num_ranks)
        if self.location == "cpu" and self.kind != "distributed":  # the first rank allocates all
            return [total] + [0] * (self.num_ranks - 1)
        if self.kind == "continuous":
            page = _LARGE_PAGE if total >= _LARGE else _PAGE
            pages = -(-total // page)
            return [((r + 1) * pages // self.num_ranks - r * pages // self.num_ranks) * page for r in ranks]
        page = _LARGE_PAGE if total > _LARGE else _PAGE
        return [-(-rows * self.row_bytes // page) * page for rows in self.partition]
