"""Bisection in sorted tables, every element of a tile on its own."""

import triton
import triton.language as tl


@triton.jit
def first_above(table, low, high, x):
    """The first position of ``[low, high)`` whose entry exceeds ``x``; ``high`` where none does. All are int64."""
    while tl.max((low < high).to(tl.int32), 0) > 0:
        open_ = low < high
        middle = (low + high) >> 1
        above = tl.load(table + middle, mask=open_, other=0) > x
        high = tl.where(open_ & above, middle, high)
        low = tl.where(open_ & (above == 0), middle + 1, low)
    return low


@triton.jit
def first_not_below(table, low, high, x):
    """The first position of ``[low, high)`` whose entry is ``x`` or more; ``high`` where none is."""
    while tl.max((low < high).to(tl.int32), 0) > 0:
        open_ = low < high
        middle = (low + high) >> 1
        below = tl.load(table + middle, mask=open_, other=0) < x
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & (below == 0), middle, high)
    return low


@triton.jit
def first_above_one(table, low, high, x):
    """``first_above`` for one ``x``; all are scalars."""
    while low < high:
        middle = (low + high) >> 1
        above = tl.load(table + middle) > x
        high = tl.where(above, middle, high)
        low = tl.where(above, low, middle + 1)
    return low


@triton.jit
def is_edge(begin, destination, src, dst, act):
    """Whether there is an edge, from the sorted ``destination`` of source ``s``, at ``[begin[s], begin[s + 1])``."""
    low = tl.load(begin + src, mask=act, other=0)
    end = tl.load(begin + src + 1, mask=act, other=0)
    at = first_not_below(destination, low, end, dst)
    inside = act & (at < end)
    return inside & (tl.load(destination + at, mask=inside, other=0) == dst)
