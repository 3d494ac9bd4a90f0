"""Weighted picks of one column without replacement (successive sampling), whatever finds the entry of a draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.sampling._cpu_compile import helper, u64
from manyhop.sampling._cpu_picks import add_to_set, is_in_set, new_set
from manyhop.sampling._cpu_random import draw, unit
from manyhop.sampling._cpu_tables import AGAIN, REPEATS, VECTOR_FANOUT

Table = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_ONE = np.uint64(1)
_SMALL = 64  # columns up to this length: which entries are picked fits the bits of one number


@helper
def all_positive(weight: F64s, out: U64s) -> None:
    """The entries of positive weight, in stored order."""
    n = 0
    for q in range(weight.size):
        if weight[q] > 0.0 and n < out.size:
            out[n] = q
            n += 1


def without_replacement(find: Callable[[Any, np.uint64], np.uint64]) -> Callable[..., None]:
    """A helper ``pick(mode, table, weight, key, draws, out)``.

    It picks as many entries as ``out`` holds, fewer than there are of positive weight. Draws that hit a picked entry
    are repeated, and what is left is scanned after too many. Draws that turn out too many are dropped: hardly a branch
    depends on a draw. ``draws`` are the first of the key, any number; ``out`` has room for one entry behind its end.

    Args:
        find: a helper: the entry ``find(table, r)`` of a column for a random number. It is no argument of ``pick``,
            because numba does not cache kernels that hand on functions.
    """

    @helper
    def pick(mode: Table, table: Any, weight: F64s, key: np.uint64, draws: U64s, out: U64s) -> None:
        k, small = out.size, weight.size <= _SMALL
        slot, t, repeats, picked = 0, 0, 0, np.uint64(0)
        if not small:
            new_set(mode)
        while slot < k:
            for j in range(draws.size):
                q = find(table, draws[j])
                out[slot] = q  # beyond the last slot: the next node overwrites it
                if small:
                    is_new = np.int64(~(picked >> q) & _ONE)
                    picked |= _ONE << q
                else:
                    is_new = np.int64(add_to_set(mode, q))
                slot += is_new & np.int64(slot < k)
                t += 1
                repeats = (repeats + 1) * (1 - is_new)
                if repeats == REPEATS and slot < k:
                    q = _scan(mode, weight, unit(draw(key, np.uint64(t))), picked)
                    out[slot] = q
                    if small:
                        picked |= _ONE << q
                    else:
                        add_to_set(mode, q)
                    slot, t, repeats = slot + 1, t + 1, 0
                    break
            draws = u64(mode[AGAIN], min(k - slot + 2, VECTOR_FANOUT))
            for j in range(draws.size):
                draws[j] = draw(key, np.uint64(t + j))

    return pick


@helper
def _is_picked(mode: Table, d: int, picked: np.uint64, q: np.uint64) -> bool:
    return (picked >> q) & _ONE > 0 if d <= _SMALL else is_in_set(mode, q)


@helper
def _scan(mode: Table, weight: F64s, u: float, picked: np.uint64) -> np.uint64:
    """One of the entries that are left, in proportion to its weight; sums run one addition at a time."""
    total = 0.0
    for q in range(weight.size):
        if weight[q] > 0.0 and not _is_picked(mode, weight.size, picked, np.uint64(q)):
            total += weight[q]
    target, running, last = u * total, 0.0, np.uint64(0)
    for q in range(weight.size):
        if weight[q] > 0.0 and not _is_picked(mode, weight.size, picked, np.uint64(q)):
            last = np.uint64(q)
            running += weight[q]
            if running > target:
                break
    return last
