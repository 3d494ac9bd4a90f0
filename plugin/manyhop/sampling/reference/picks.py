"""Numpy reference: which k of the d entries of one column are picked.

Every function takes the key of the frontier node and returns positions relative to the beginning of the column, in
slot order. It is written for reading; the CPU and GPU kernels are compared with it bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from manyhop.sampling.random import U64, below, below_with_fraction, draw, unit

Positions = npt.NDArray[np.int64]
Find = Callable[[U64], int]

MAX_REPEATS = 16
"""Draws a slot of weighted sampling without replacement makes before it falls back to a scan."""


def everything(d: int) -> Positions:
    """Return all d entries, in stored order; no draws."""
    return np.arange(d, dtype=np.int64)


def uniform(key: U64, d: int, k: int, *, replace: bool) -> Positions:
    """Pick k of d entries, each subset (or, with ``replace``, each sequence) equally likely.

    Without replacement: Robert Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 30(9), 1987).
    """
    if d == 0 or k == -1 or (not replace and k >= d):
        return everything(d)
    if replace:
        return below(draw(key, np.arange(k)), d)
    picked: dict[int, None] = {}
    for j in range(k):
        q = int(below(draw(key, j), d - k + j + 1))
        picked[d - k + j if q in picked else q] = None
    return np.array(list(picked), dtype=np.int64)


def by_alias(table: npt.NDArray[np.int64], first: int = 0) -> Find:
    """Return the entry of a column that a draw finds in its alias table ``[d]``, counted from entry ``first``."""

    def find(r: U64) -> int:
        entry, fraction = below_with_fraction(np.uint64(r), len(table))
        threshold, alias = divmod(int(table[entry].view(np.uint64)), 1 << 32)
        return (entry if fraction < threshold else alias) - first

    return find


def by_sums(cumw: npt.NDArray[np.float64]) -> Find:
    """Return the entry of a column that a draw finds in the running sums ``[d]`` of its weights."""

    def find(r: U64) -> int:
        last = int(np.flatnonzero(np.diff(cumw, prepend=0.0) > 0)[-1])
        return min(int(np.searchsorted(cumw, unit(r) * cumw[-1], side="right")), last)

    return find


def weighted(key: U64, weight: npt.NDArray[np.float64], find: Find, k: int, *, replace: bool) -> Positions:
    """Pick k entries of a range in proportion to weights ``[d]``; ``find`` returns the entry of a draw.

    Without replacement this is successive sampling: each slot draws in proportion to the remaining weights. A
    draw that hits a picked entry, or one of the column that is not in the range, is repeated; after ``MAX_REPEATS`` the
    slot scans the remaining entries (same distribution). Entries of weight zero are never picked.
    """
    positive = np.flatnonzero(weight > 0)
    if k == -1 or (not replace and k >= len(positive)) or len(positive) == 0:
        return positive.astype(np.int64)
    picked: list[int] = []
    t = 0  # draws used so far
    for _ in range(k):
        for _ in range(MAX_REPEATS):
            q = find(draw(key, t))
            t += 1
            if 0 <= q < len(weight) and (replace or q not in picked):
                break
        else:
            q = _scan(unit(draw(key, t)), weight, [int(p) for p in positive if replace or int(p) not in picked])
            t += 1
        picked.append(q)
    return np.array(picked, dtype=np.int64)


def _scan(u: npt.NDArray[np.float64], weight: npt.NDArray[np.float64], left: list[int]) -> int:
    """Return one entry of ``left`` in proportion to its weight; sums run from left to right, one addition at a time."""
    total = 0.0
    for p in left:
        total += weight[p]
    target, running = u * total, 0.0
    for p in left:
        running += weight[p]
        if running > target:
            return p
    return left[-1]


def temporal(time: npt.NDArray[np.int64], t_min: int | None, t_max: int) -> tuple[int, int]:
    """Return the entries ``[begin, end)`` of a column, sorted by time, whose time is in ``[t_min, t_max]``."""
    begin = 0 if t_min is None else int(np.searchsorted(time, t_min, side="left"))
    return begin, max(begin, int(np.searchsorted(time, t_max, side="right")))


def last(d: int, k: int) -> Positions:
    """Return the last k of d entries, in stored order (all for k = -1 or k >= d); no draws."""
    return everything(d) if k == -1 or k >= d else np.arange(d - k, d, dtype=np.int64)


# The alias table of one column, in plain Python: the reference for ``manyhop.graph.column_kernels``.
#
# The sweep over light and heavy entries follows Hübschle-Schneider and Sanders, "Parallel weighted random sampling"
# (2019); alias tables are due to Walker (1977).

FULL = 1 << 32
"""Weight of an entry of a table: its threshold is its own part, its alias has the rest."""


def alias_table(weight: Sequence[float]) -> npt.NDArray[np.int64]:
    """Return ``[d]`` entries ``threshold * 2^32 + alias``, for ``d`` weights that are finite and not negative."""
    d, positive = len(weight), [q for q, w in enumerate(weight) if w > 0]
    if not positive:
        return np.zeros(d, np.int64)
    total = 0.0
    for w in weight:  # from left to right, one addition at a time
        total += w
    share = [int(w / total * (d * 2.0**32) + 0.5) for w in weight]
    light = deque(q for q in range(d) if share[q] < FULL)
    heavy = deque(q for q in range(d) if share[q] >= FULL)
    # An entry without a threshold is full: its own alias. Entries of weight zero never are, for any rounding.
    table = [(0, q if weight[q] > 0 else positive[0]) for q in range(d)]
    left = share[heavy[0]] if heavy else FULL  # the rest of the first heavy entry
    while heavy:
        if left >= FULL and light:
            q = light.popleft()
            table[q] = share[q], heavy[0]
            left -= FULL - share[q]
        elif left < FULL and len(heavy) > 1:  # it has become light: the next heavy one fills it up
            q = heavy.popleft()
            table[q] = left, heavy[0]
            left = share[heavy[0]] - (FULL - left)
        else:
            break
    return np.array([threshold << 32 | alias for threshold, alias in table], np.uint64).view(np.int64)
