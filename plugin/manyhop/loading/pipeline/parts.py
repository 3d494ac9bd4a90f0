"""The parts of items: batches with items of one part, and the ranks to which they are local. Equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from manyhop.arguments import integer
from manyhop.errors import InputError

MOST_PARTS: Final = 1 << 16

Ints = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """Items of a batch: a range of the (permuted) items of a part."""

    part: int
    begin: int
    end: int


def check_num_parts(num_parts: int) -> int:
    """Return a number of parts.

    Raises:
        InputError: not an integer, or out of range.
    """
    num_parts = integer("seed_parts", num_parts, 1)
    if num_parts > MOST_PARTS:
        raise InputError(f"Expected seed_parts to be at most {MOST_PARTS}, got {num_parts}. Pass the number of ranks.")
    return num_parts


def parts_of(ids: npt.ArrayLike, num_nodes: int, num_parts: int) -> Ints:
    """Return the part of nodes. Part ``p`` begins at node ``num_nodes * p // num_parts``, like slices of rows.

    Args:
        ids: ``[n]`` integers in ``[0, num_nodes)``; others belong to the first or the last part.
        num_nodes: number of nodes of the type.
        num_parts: number of parts.

    Returns:
        ``[n] int64`` in ``[0, num_parts)``.
    """
    bounds = num_nodes * np.arange(1, num_parts, dtype=np.int64) // num_parts
    return np.searchsorted(bounds, np.asarray(ids, dtype=np.int64), side="right").astype(np.int64, copy=False)


class ItemParts:
    """Cuts items into batches by part. Immutable.

    Each part yields as many full batches as it has items for, in rounds of ``num_parts`` batches. A round has a batch
    of each part that has one left; surplus batches of large parts replace those of the others. The remaining items of
    all parts are joined, part by part, in the last batches of the epoch.

    Args:
        part: ``[num_items] int64``: the part of each item.
        num_parts: number of parts.
        batch_size: items per batch.
    """

    def __init__(self, part: Ints, num_parts: int, batch_size: int) -> None:
        self.num_parts, self.batch_size = num_parts, batch_size
        self.sizes: list[int] = np.bincount(part, minlength=num_parts).tolist()
        self._order: Ints = np.argsort(part, kind="stable")
        self._begins: list[int] = [0, *np.cumsum(self.sizes).tolist()]
        full = np.asarray(self.sizes) // batch_size
        self._home, self._number = _in_rounds(full)
        self._left: list[int] = (np.asarray(self.sizes) - full * batch_size).tolist()

    def homes(self, first: int, end: int) -> list[int]:
        """Return the part of each of some batches; -1: multiple parts."""
        homes: list[int] = self._home[first:end].tolist()
        return homes + [-1] * (end - first - len(homes))

    def pieces(self, batch: int, rotation: int) -> list[Piece]:
        """Return the pieces of a batch.

        Args:
            batch: its number in the epoch.
            rotation: the part whose remaining items are first.
        """
        if batch < len(self._home):
            begin = int(self._number[batch]) * self.batch_size
            return [Piece(int(self._home[batch]), begin, begin + self.batch_size)]
        first = (batch - len(self._home)) * self.batch_size
        end, at, found = first + self.batch_size, 0, []
        for i in range(self.num_parts):
            part = (rotation + i) % self.num_parts
            left, size = self._left[part], self.sizes[part]
            low, high = max(first - at, 0), min(end - at, left)
            if low < high:
                found.append(Piece(part, size - left + low, size - left + high))
            at += left
        return found

    def items(self, part: int, places: Ints) -> Ints:
        """Return the items at some positions of a part, ``[n] int64``."""
        return self._order[self._begins[part] + places]


def assign_ranks(homes: Sequence[int], num_parts: int) -> list[int]:
    """Assign the batches of a round to ranks, if possible to one whose slice overlaps the part of the batch.

    Rank ``r`` of ``W`` has the slice from ``r / W`` to ``(r + 1) / W`` of all rows, part ``p`` of ``P`` the slice from
    ``p / P`` to ``(p + 1) / P``.

    Args:
        homes: ``[W]``: the part of each batch; -1: none.
        num_parts: number of parts.

    Returns:
        ``[W]``: the rank of each batch.
    """
    world_size = len(homes)
    free, seat = [True] * world_size, [-1] * world_size
    for i, part in enumerate(homes):
        if part < 0:
            continue
        for rank in range(part * world_size // num_parts, -(-(part + 1) * world_size // num_parts)):
            if free[rank]:
                seat[i], free[rank] = rank, False
                break
    others = iter([rank for rank in range(world_size) if free[rank]])
    return [rank if rank >= 0 else next(others) for rank in seat]


def _in_rounds(counts: Ints) -> tuple[Ints, Ints]:
    """Return the order of batches that have one part: the part of each, and its number within the part.

    Args:
        counts: ``[num_parts]``: batches of each part.
    """
    num_parts = len(counts)
    home = np.repeat(np.arange(num_parts), counts)
    number = np.arange(len(home)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((_spread(num_parts)[home], number))
    home, number = home[order], number[order]
    num_rounds = -(-len(home) // num_parts)
    own = np.count_nonzero(number < num_rounds)  # the others are surplus
    free = num_parts - np.bincount(number[:own], minlength=num_rounds)
    rounds = np.concatenate([number[:own], np.repeat(np.arange(num_rounds), free)[: len(home) - own]])
    order = np.argsort(rounds, kind="stable")
    return home[order], number[order]


def _spread(num_parts: int) -> Ints:
    """Return the position of each part in a round: consecutive parts are far apart.

    The digits of a part in the mixed radix of the prime factors of ``num_parts``, the smallest factor first, are the
    reversed digits of its position. With fewer ranks than parts, a round has parts of all slices if the number of ranks
    is a product of the smallest factors: any power of two, if ``num_parts`` is one.
    """
    place, part, weight, rest = np.zeros(num_parts, dtype=np.int64), np.arange(num_parts), 1, num_parts
    factor = 2
    while rest > 1:
        while rest % factor:
            factor += 1
        rest //= factor
        digit, part = np.divmod(part, rest)
        place += digit * weight
        weight *= factor
    return place
