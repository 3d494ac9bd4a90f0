"""Gradients of rows, and update rules of optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from manyhop.features import CachedRows, HotRows


@dataclass(frozen=True)
class Gradients:
    """Gradients of rows, some of the same row, in ascending order of their rows."""

    ids: Tensor
    """``[count]`` int64, on a GPU also int32: row numbers, ascending."""

    order: Tensor
    """``[count] int64``: the gradient of each, in the order that gradients of the same row are added."""

    values: Tensor
    """``[count, width]`` float32 or bfloat16, contiguous, on the same device."""

    pieces: list[Tensor] = field(default_factory=list)
    """On a GPU: partial sums of rows with many gradients, computed once."""

    positions: tuple[int, int] | None = None
    """Begin and end of the selected gradients, whose rows have no others; ``None``: all."""

    @property
    def ends(self) -> tuple[int, int]:
        """Begin and end of the selected gradients."""
        return self.positions or (0, len(self.ids))

    def part(self, begin: int, end: int) -> Gradients:
        """Select some positions of the same gradients, with the same sums."""
        return Gradients(self.ids, self.order, self.values, self.pieces.copy(), (begin, end))


class Kind(IntEnum):
    """The use of the gradient of a row in a kernel."""

    STORE = 0
    """The row becomes the gradient."""
    SGD = 1
    ADAM = 2
    ADAGRAD = 3
    RMSPROP = 4


@dataclass(frozen=True)
class Rule:
    """One update: ``g`` is the gradient of a row, ``w`` the row, ``a`` and ``b`` its states; all in float32.

    ============ =============================================================================================
    ``SGD``      ``w -= h0 g``
    ``ADAM``     ``a += h1 (g - a)``, ``b += h2 (g g - b)``, ``w -= h0 (a / (sqrt(b) + h3))``
    ``ADAGRAD``  ``a += g g``, ``w -= h0 (g / (sqrt(a) + h3))``
    ``RMSPROP``  ``a += h1 (g g - a)``, ``w -= h0 (g / (sqrt(a) + h3))``
    ============ =============================================================================================
    """

    kind: Kind
    h0: float = 0.0
    h1: float = 0.0
    h2: float = 0.0
    h3: float = 0.0


@dataclass(frozen=True)
class Stamps:
    """Marks on rows: which update was the latest."""

    of_rows: Tensor
    """``[rows, 1] int32``, contiguous, of the rows that are updated, in memory of the same kind."""

    value: int
    """The number of this update."""


PIECE = 64
"""Gradients of a row are added in pieces that end at positions divisible by this. A GPU adds pieces at the same time,
and every backend returns the same bits."""


@dataclass(frozen=True)
class Hot:
    """The only place of some rows: memory of the others has outdated ones."""

    ids: Tensor
    """``[count] int64``, ascending, on the GPU."""
    rows_set: HotRows
    """The same ids, as kernels look them up."""
    rows: Tensor
    """``[count, width]``, on the GPU."""

    @staticmethod
    def of(ids: Tensor, rows_set: HotRows, held: Tensor) -> Hot:
        """Copy the rows ``ids`` of ``held [num_rows, width]`` to the GPU that the ids are on."""
        return Hot(ids, rows_set, held[ids.to(held.device)].to(ids.device))

    def source(self, held: Tensor) -> CachedRows:
        """Return a source of all rows for gathers on the GPU."""
        return CachedRows(held, self.rows_set, self.rows)

    def settle(self, held: Tensor) -> None:
        """Copy the rows to ``held``, for reads by the host."""
        if self.rows.is_cuda:
            torch.cuda.synchronize(self.rows.device)  # updates of the others
        held[self.ids.to(held.device)] = self.rows.to(held.device)

    def take(self, held: Tensor) -> None:
        """Copy the rows from ``held``, which the host has changed."""
        self.rows.copy_(held[self.ids.to(held.device)])


@dataclass(frozen=True)
class Change:
    """What happens to the rows that have gradients."""

    rule: Rule
    """What to do with the sum of the gradients of a row."""

    weight: Tensor
    """``[rows, width]`` float32 or bfloat16, contiguous: in GPU memory or pinned, if the gradients are on a GPU. There
    are no gradients of other rows."""

    states: Sequence[Tensor] = ()
    """As many as the rule has, each ``[rows, width] float32``."""

    first: int = 0
    """The number of the first row of ``weight``."""

    scale: float = 1.0
    """Factor of the sums."""

    stamps: Stamps | None = None
    """Marks the rows that are updated."""

    hot: Sequence[Hot] = ()
    """Rows of ``weight`` and of each state that reside elsewhere, with equal ids, on one GPU."""

    apart: Tensor | None = None
    """``[2] int64`` on a GPU: begin and end of positions that are left out, unknown on the host. Their rows have no
    other gradients."""
