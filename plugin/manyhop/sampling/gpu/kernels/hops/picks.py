"""Picks of uniform sampling, and the range of eligible entries."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives import below, draw

# Pick entries of columns without weights.
#
# Each function works on a tile of B frontier nodes, whose fanouts may differ. It returns positions ``[KP, B] int64``,
# relative to the start of each node's range and in slot order; ``K`` is the largest fanout of the tile, ``KP`` the next
# power of two. ``count`` is the number of picks of a node; its remaining slots are undefined. ``wide.py`` has fanouts
# of -1 and those too large for registers.
#
# Slots are the first dimension so that one thread has all slots of a node, if a tile has as many nodes as its program
# has threads: ``shown`` costs nothing then.

UNROLLED = tl.constexpr(32)  # larger loops over slots would take seconds to compile


@triton.jit
def count(d, k, REPLACE: tl.constexpr):
    """Return how many of ``d`` entries a fanout of ``k`` picks (``[B] int32``); ``k = -1``: all."""
    taken = tl.where(d > 0, k, 0) if REPLACE else tl.minimum(d, k)
    return tl.where(k < 0, d, taken).to(tl.int32)


@triton.jit
def shown(x, s):
    """Broadcast slot ``s`` of ``x [KP, B]`` to all slots."""
    slot = tl.arange(0, x.shape[0])[:, None]
    return tl.sum(tl.where(slot == s, x, 0), 0).to(x.dtype)[None, :]


@triton.jit
def last(d, k, KP: tl.constexpr):
    """Pick the last ``k`` entries, in stored order; all if there are at most ``k``."""
    return tl.maximum(d - k, 0)[None, :] + tl.arange(0, KP)[:, None].to(tl.int64)


@triton.jit
def with_replacement(key, d, KP: tl.constexpr):
    """Draw uniformly with replacement."""
    slot = tl.arange(0, KP)[:, None]
    return below(draw(key[None, :], slot), d[None, :]).to(tl.int64)


@triton.jit
def without_replacement(key, d, k, K: tl.constexpr, KP: tl.constexpr):
    """Pick uniformly by Robert Floyd's algorithm; all entries, in stored order, if there are at most ``k``.

    All slots draw at once. Then each slot in turn is broadcast to the later ones, which move if they drew the same.
    """
    slot = tl.arange(0, KP)[:, None].to(tl.uint32)
    spare = (d - k).to(tl.uint32)[None, :] + slot
    pick = below(draw(key[None, :], slot), spare + 1)
    if K <= UNROLLED:
        for s in tl.static_range(K - 1):
            pick = tl.where((pick == shown(pick, s)) & (slot > s), spare, pick)
    else:
        for s in range(0, K - 1):
            pick = tl.where((pick == shown(pick, s)) & (slot > s), spare, pick)
    return tl.where((d > k)[None, :], pick, slot).to(tl.int64)


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
