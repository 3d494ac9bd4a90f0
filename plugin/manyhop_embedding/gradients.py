"""Gradients of rows, and the rules by which optimizers apply them."""

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
    """Of a GPU, which sums parts of a row that has many gradients at the same time: these sums, made once; at first
    none."""

    positions: tuple[int, int] | None = None
    """Begin and end of those that are meant, none of whose rows has others; ``None``: all."""

    @property
    def ends(self) -> tuple[int, int]:
        """Begin and end of those that are meant."""
        return self.positions or (0, len(self.ids))

    def part(self, begin: int, end: int) -> Gradients:
        """Return the same gradients, of which some positions are meant: sums do not depend on where they are cut."""
        return Gradients(self.ids, self.order, self.values, self.pieces.copy(), (begin, end))


class Kind(IntEnum):
    """What a kernel does with the gradient of a row."""

    STORE = 0
    """The row becomes the gradient."""
    SGD = 1
    ADAM = 2
    ADAGRAD = 3
    RMSPROP = 4


@dataclass(frozen=True)
class Rule:
    """One update: ``g`` is the gradient of a row, ``w`` the row, ``a`` and ``b`` its states; float32 throughout.

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
"""Gradients of a row are added in pieces that end at multiples of this, of positions in the order of rows: a GPU adds
pieces at the same time, and the sum has the same bits everywhere."""


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
        """Return what gathers read all rows from, on the GPU."""
        return CachedRows(held, self.rows_set, self.rows)

    def settle(self, held: Tensor) -> None:
        """Copy the rows to their places in ``held``, where the host reads them."""
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
    """``[rows, width]`` float32 or bfloat16, contiguous: in GPU memory or pinned, if the gradients are on a GPU. The
    gradients are of these rows only."""

    states: Sequence[Tensor] = ()
    """As many as the rule has, each ``[rows, width] float32``."""

    first: int = 0
    """The number of the first row of ``weight``."""

    scale: float = 1.0
    """What sums are multiplied by."""

    stamps: Stamps | None = None
    """Marks the rows that are updated."""

    hot: Sequence[Hot] = ()
    """Rows of ``weight`` and of each state that reside elsewhere, the same of all; of one GPU."""

    apart: Tensor | None = None
    """``[2] int64`` on a GPU: positions of gradients, which the host does not know. Those from the first to the
    last are left out; none of their rows has others."""
