"""What an optimizer does to a row: the same for every memory and device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor


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
