"""Gradients of rows, and update rules of optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients of rows, some of the same row, in ascending order of their rows."""

    ids: Tensor
    """``[count]`` int64, on a GPU also int32: row numbers, ascending."""

    order: Tensor
    """``[count] int64``: the gradient of each, in the order that gradients of the same row are added."""

    values: Tensor
    """``[count, width]`` float32 or bfloat16, contiguous, on the same device."""


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


PIECE = 64
"""Gradients of a row are added in pieces that end at positions divisible by this. A GPU adds pieces at the same time,
and every backend returns the same bits."""


@dataclass(frozen=True)
class Change:
    """What happens to the rows that have gradients."""

    rule: Rule
    """What to do with the sum of the gradients of a row."""

    weight: Tensor
    """``[rows, width]`` float32 or bfloat16, contiguous: in GPU memory or pinned, if the gradients are on a GPU.
    Gradients of other rows are ignored."""

    states: Sequence[Tensor] = ()
    """As many as the rule has, each ``[rows, width] float32``."""

    first: int = 0
    """The number of the first row of ``weight``."""

    scale: float = 1.0
    """Factor of the sums."""

    stamps: tuple[Tensor, int] | None = None
    """``[rows, 1] int32``, contiguous, in memory of the same kind; and the number of this update, which marks rows."""

    left_out: Tensor | None = None
    """``[2] int64``, on the gradients' device: the first row of ``weight`` that is not changed, and the next one."""
