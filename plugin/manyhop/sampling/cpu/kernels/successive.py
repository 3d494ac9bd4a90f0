"""Weighted picks of one column without replacement (successive sampling), whatever finds the entry of a draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.picks import add_to_set, is_in_set, new_set
from manyhop.sampling.cpu.kernels.random import draw, unit
from manyhop.sampling.cpu.tables import REPEATS, Mode
from manyhop.system.numba_kernels import helper

U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]


@helper
def count_positive(weight: F64s) -> int:
    """How many entries may be picked."""
    n = 0
    for q in range(weight.size):
        n += weight[q] > 0.0
    return n


@helper
def all_positive(weight: F64s, out: U64s) -> None:
    """The entries of positive weight, in stored order."""
    n = 0
    for q in range(weight.size):
        if weight[q] > 0.0 and n < out.size:
            out[n] = q
            n += 1


def without_replacement(find: Callable[[Any, np.uint64], np.uint64]) -> Callable[..., None]:
    """A helper ``pick(mode, table, first, weight, key, out, replace)``.

    It picks as many entries as ``out`` holds, fewer than there are of positive weight. Draws that hit a picked entry
    are repeated, and what is left is scanned after too many.

    The entries are those of a range of a column: ``weight`` are its weights, ``first`` is where it begins. Draws that
    hit another entry of the column are repeated, too. With ``replace``, picked entries may be picked again.

    Args:
        find: a helper: the entry ``find(table, r)`` of a column for a random number. It is no argument of ``pick``,
            because numba does not cache kernels that hand on functions.
    """

    @helper
    def pick(mode: Mode, table: Any, first: np.uint64, weight: F64s, key: np.uint64, out: U64s, replace: bool) -> None:
        slot, t, repeats = 0, 0, 0
        new_set(mode)
        while slot < out.size:
            if repeats < REPEATS:
                q = find(table, draw(key, np.uint64(t))) - first  # what is before the range becomes large
            else:
                q = _scan(mode, weight, unit(draw(key, np.uint64(t))))
            t += 1
            repeats += 1
            if q < np.uint64(weight.size) and (replace or add_to_set(mode, q)):
                out[slot] = q
                slot, repeats = slot + 1, 0

    return pick


@helper
def _scan(mode: Mode, weight: F64s, u: float) -> np.uint64:
    """One of the entries that are left, in proportion to its weight; sums run one addition at a time."""
    total = 0.0
    for q in range(weight.size):
        if weight[q] > 0.0 and not is_in_set(mode, np.uint64(q)):
            total += weight[q]
    target, running, last = u * total, 0.0, np.uint64(0)
    for q in range(weight.size):
        if weight[q] > 0.0 and not is_in_set(mode, np.uint64(q)):
            last = np.uint64(q)
            running += weight[q]
            if running > target:
                break
    return last
