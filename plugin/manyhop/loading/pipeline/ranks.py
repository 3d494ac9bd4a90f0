"""Which batches of an epoch a rank gets: pure arithmetic, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from manyhop.errors import InputError
from manyhop.loading.pipeline.parts import ItemParts, seats

Uneven: TypeAlias = Literal["pad", "drop", "error"]
"""What happens where ranks cannot share the batches evenly: batches are repeated, left out, or an error is raised."""

Dealing: TypeAlias = Uneven | Literal["keep"]
"""The same, or, as GraphBolt does: only the first ranks have a batch in the last round."""


@dataclass(slots=True)
class Turn:
    """One batch of one rank, in one iteration."""

    round: int
    """Counts the batches of this rank, from 0: in each round every rank gets one."""

    batch: int
    """Global index of the batch in its epoch, from 0."""

    is_padding: bool = False
    """Whether the batch is a repetition, which another rank, or an earlier round, has as its own."""

    contents: dict[str, int] = field(default_factory=dict, compare=False)
    """Seeds, nodes, edges and bytes in it, as ``Stats.count`` takes them: once it is handed out."""


@dataclass(frozen=True, kw_only=True)
class Deal:
    """Deals the global batches ``first .. num_batches - 1`` of an epoch out to ranks, round by round.

    Rank ``r`` of ``W`` gets batches ``first + r``, ``first + r + W``, and so on; all ranks get the same number. Where
    the last round is not full, ``"pad"`` fills it with batches of the epoch from batch 0 on, ``"drop"`` leaves it out,
    and with ``"keep"`` only the first ranks have one. With ``parts``, the ranks get the same batches in each round, but
    a full round is dealt out by the parts of its batches: to ranks to which they are local, as far as possible.

    Raises:
        InputError: for numbers out of range, another ``uneven``, or ``"error"`` where the last round is not full.
    """

    num_batches: int
    """Global batches of the whole epoch."""

    world_size: int = 1
    """Number of ranks."""

    rank: int = 0
    """The rank whose batches these are."""

    first: int = 0
    """Global batches that were dealt out before (above 0 after a restart in mid-epoch)."""

    uneven: Dealing = "pad"
    """What happens where the last round is not full."""

    parts: ItemParts | None = None
    """The parts of the items, where batches have items of one part each."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"Expected a rank in [0, {self.world_size}), got {self.rank}. Pass another.")
        if not 0 <= self.first <= self.num_batches:
            raise InputError(
                f"Expected to begin at 0 to {self.num_batches} batches, got {self.first}. There are no more."
            )
        if self.uneven not in ("keep", *get_args(Uneven)):
            raise InputError(
                f"Expected uneven to be one of {get_args(Uneven)}, got {self.uneven!r}. Choose one of them."
            )
        left = self.num_batches - self.first
        if self.uneven == "error" and left % self.world_size:
            raise InputError(
                f"Expected batches that {self.world_size} ranks can share evenly (uneven='error'), got {left}. Choose "
                "another batch_size or number of ranks, or uneven='pad' or 'drop'."
            )

    def __len__(self) -> int:
        """Number of rounds: how many batches each rank gets."""
        left = self.num_batches - self.first
        if self.uneven == "keep":
            return max(0, -(-(left - self.rank) // self.world_size))
        return left // self.world_size if self.uneven == "drop" else -(-left // self.world_size)

    def __iter__(self) -> Iterator[Turn]:
        """The batches of this rank, in order."""
        return map(self.turn, range(len(self)))

    def turn(self, round: int) -> Turn:
        """The batch of this rank in one round."""
        begin = self.first + round * self.world_size
        seat = self.rank
        if self.parts is not None and begin + self.world_size <= self.num_batches:
            homes = self.parts.homes(begin, begin + self.world_size)
            seat = seats(homes, self.parts.num_parts).index(self.rank)
        place = begin + seat
        return Turn(round, place % self.num_batches, place >= self.num_batches)

    def after(self, rounds: int) -> int:
        """Global batches of the epoch that are done after some rounds, those before ``first`` included."""
        return min(self.first + rounds * self.world_size, self.num_batches)
