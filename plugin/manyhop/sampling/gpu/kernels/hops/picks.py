"""Pick entries of columns without weights.

Each function works on a tile of B frontier nodes, whose fanouts may differ. It returns positions ``[KP, B] int64``,
relative to the start of each node's range and in slot order; ``K`` is the largest fanout of the tile, ``KP`` the next
power of two. ``count`` gives the number of picks of a node; its further slots are undefined. ``wide.py`` has fanouts
of -1 and those too large for registers.

Slots are the first dimension so that one thread has all slots of a node, if a tile has as many nodes as its program has
threads: ``shown`` costs nothing then.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives.random import below, draw

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
def everything(d, KP: tl.constexpr):
    """Pick all entries, in stored order."""
    return tl.zeros_like(d)[None, :] + tl.arange(0, KP)[:, None].to(tl.int64)


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
