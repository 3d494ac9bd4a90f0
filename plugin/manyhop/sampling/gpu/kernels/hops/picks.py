"""Which entries of a column are picked, without weights.

Each function works on a tile of B items (nodes that ask, each with an edge type), which may differ in fan-out. It
returns positions ``[KP, B] int64``, relative to the beginning of the column's range and in slot order; ``K`` is the
largest fan-out of the tile, ``KP`` the next power of two. Item ``b`` has as many picks as ``count`` says; what is in
the slots behind means nothing. Fan-outs of -1 and those too large for registers are the business of ``wide.py``.

Slots come first so that one thread has all slots of an item, if a tile has as many items as its program has threads:
``shown`` costs nothing then.
"""

import triton
import triton.language as tl

from ..primitives.random import below, draw

UNROLLED = tl.constexpr(32)  # larger loops over slots would take seconds to compile


@triton.jit
def count(d, k, REPLACE: tl.constexpr):
    """How many of ``d`` entries a fan-out of ``k`` takes (``[B] int32``); ``k = -1`` takes all."""
    taken = tl.where(d > 0, k, 0) if REPLACE else tl.minimum(d, k)
    return tl.where(k < 0, d, taken).to(tl.int32)


@triton.jit
def shown(x, s):
    """Slot ``s`` of ``x [KP, B]``, in all slots."""
    slot = tl.arange(0, x.shape[0])[:, None]
    return tl.sum(tl.where(slot == s, x, 0), 0).to(x.dtype)[None, :]


@triton.jit
def everything(d, KP: tl.constexpr):
    """All entries, in stored order."""
    return tl.zeros_like(d)[None, :] + tl.arange(0, KP)[:, None].to(tl.int64)


@triton.jit
def last(d, k, KP: tl.constexpr):
    """The last ``k`` entries, in stored order; all where there are no more."""
    return tl.maximum(d - k, 0)[None, :] + tl.arange(0, KP)[:, None].to(tl.int64)


@triton.jit
def with_replacement(key, d, KP: tl.constexpr):
    """Uniform draws, any number of times the same entry."""
    slot = tl.arange(0, KP)[:, None]
    return below(draw(key[None, :], slot), d[None, :]).to(tl.int64)


@triton.jit
def without_replacement(key, d, k, K: tl.constexpr, KP: tl.constexpr):
    """Uniform picks by Robert Floyd's algorithm; all entries, in stored order, where there are no more than ``k``.

    All slots draw at once. Then one slot after the other is shown to the later ones, which move if they drew the same.
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
