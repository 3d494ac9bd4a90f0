"""The range of a column that a node may pick from: the entries within its limits of time."""

import triton
import triton.language as tl


@triton.jit
def eligible(time, d, time_min, time_max, WINDOW: tl.constexpr, PROBES: tl.constexpr):
    """Find the entries of columns, sorted by time, with ``time_min <= time <= time_max``.

    Args:
        time: ``[B]`` pointers to the int64 times of each node's column.
        d: ``[B] int64``: lengths of the columns (0: none to search).
        time_min: ``[B] int64``; read only with ``WINDOW``.
        time_max: ``[B] int64``.
        PROBES: number of times of a column to read at once, a power of two, at least 2.

    Returns:
        ``first [B] int64`` and ``d [B] int64``: start, relative to the column, and length of the range.
    """
    end = _find(time, d, time_max, False, PROBES)
    first = tl.zeros_like(d)
    if WINDOW:
        first = tl.minimum(_find(time, d, time_min, True, PROBES), end)
    return first, end - first


@triton.jit
def _find(time, d, limit, BEFORE: tl.constexpr, PROBES: tl.constexpr):
    """Count the entries of each column below the limit (``BEFORE``), or up to it."""
    probe = tl.arange(0, PROBES)[None, :].to(tl.int64) + 1
    begin, left = tl.zeros_like(d), d
    while tl.max(left, 0) > 0:
        step = left // PROBES + 1
        at = probe * step[:, None] - 1
        inside = at < left[:, None]
        seen = tl.load(time[:, None] + begin[:, None] + at, mask=inside, other=0)
        is_before = (seen < limit[:, None]) if BEFORE else (seen <= limit[:, None])
        passed = tl.sum((inside & is_before).to(tl.int32), 1) * step
        begin += passed
        left = tl.minimum(left - passed, step - 1)
    return begin
