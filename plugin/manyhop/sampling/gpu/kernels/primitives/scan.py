"""Running sums over the programs of a kernel, in one pass (Merrill and Garland, "Single-pass parallel prefix scan with
decoupled look-back", 2016): a program tells its sum, then adds up what the programs before it told. None waits for a
later one.

What a program tells is one int64: two sums of 31 bits, which saturate, and two bits: nothing yet, its own sum, or the
sum of all programs up to it.
"""

import triton
import triton.language as tl

OWN = tl.constexpr(1 << 62)
UP_TO_HERE = tl.constexpr(-(1 << 62))
SUMS = tl.constexpr((1 << 62) - 1)
MOST = tl.constexpr((1 << 31) - 1)


@triton.jit
def tell(state, index, kind, a, b):
    """Say what the sums of a program are."""
    a, b = tl.minimum(a, MOST), tl.minimum(b, MOST)
    tl.atomic_xchg(state + index, (a << 31) | b | kind, sem="relaxed")


@triton.jit
def add_up(state, first, index, W: tl.constexpr):
    """The sums of the programs ``[first, index)``; all numbers are int64."""
    a, b, end = first * 0, first * 0, index
    lane = tl.arange(0, W)
    while end > first:
        at = end - W + lane
        told = tl.load(state + at, mask=at >= first, other=OWN, volatile=True)
        nearest = tl.max(tl.where(told < 0, at, first - 1), 0)
        missing = tl.sum(((told == 0) & (at > nearest)).to(tl.int32), 0)
        if missing == 0:
            sums = tl.where(at >= nearest, told & SUMS, 0)
            a += tl.sum(sums >> 31, 0)
            b += tl.sum(sums & MOST, 0)
            end = tl.where(nearest >= first, first, end - W)
    return a, b


@triton.jit
def running(state, first, index, a, b, W: tl.constexpr):
    """Tell ``a`` and ``b``; the sums of the programs from ``first`` on, without this one."""
    if index > first:
        tell(state, index, OWN, a, b)
    before_a, before_b = add_up(state, first, index, W)
    tell(state, index, UP_TO_HERE, before_a + a, before_b + b)
    return before_a, before_b


@triton.jit
def forget(state, pitch, B: tl.constexpr):
    """Clear the states of the present row, which nobody reads now, for the next kernel that scans."""
    begin = tl.program_id(1).to(tl.int64) * pitch
    for at in range(tl.program_id(0) * B, pitch, tl.num_programs(0) * B):
        i = at + tl.arange(0, B)
        tl.store(state + begin + i, tl.zeros([B], tl.int64), mask=i < pitch)
