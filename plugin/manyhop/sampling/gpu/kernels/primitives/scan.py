"""Prefix sums over the programs of a kernel in one pass (Merrill and Garland, "Single-pass parallel prefix scan with
decoupled look-back", 2016): a program publishes its sum, then adds up the sums that earlier programs have published. No
program waits for a later one.

The state of a program is one int64: two saturating sums of 31 bits, and two bits of status: empty, aggregate (its own
sum), or inclusive prefix (the sum of all programs up to it).
"""

import triton
import triton.language as tl

AGGREGATE = tl.constexpr(1 << 62)
INCLUSIVE = tl.constexpr(-(1 << 62))
SUMS = tl.constexpr((1 << 62) - 1)
MOST = tl.constexpr((1 << 31) - 1)


@triton.jit
def publish(state, index, kind, a, b):
    """Publish the sums of a program."""
    a, b = tl.minimum(a, MOST), tl.minimum(b, MOST)
    tl.atomic_xchg(state + index, (a << 31) | b | kind, sem="relaxed")


@triton.jit
def look_back(state, first, index, W: tl.constexpr):
    """Return the sums of the programs ``[first, index)``; all numbers are int64."""
    a, b, end = first * 0, first * 0, index
    lane = tl.arange(0, W)
    while end > first:
        at = end - W + lane
        states = tl.load(state + at, mask=at >= first, other=AGGREGATE, volatile=True)
        nearest = tl.max(tl.where(states < 0, at, first - 1), 0)
        missing = tl.sum(((states == 0) & (at > nearest)).to(tl.int32), 0)
        if missing == 0:
            sums = tl.where(at >= nearest, states & SUMS, 0)
            a += tl.sum(sums >> 31, 0)
            b += tl.sum(sums & MOST, 0)
            end = tl.where(nearest >= first, first, end - W)
    return a, b


@triton.jit
def exclusive_sums(state, first, index, a, b, W: tl.constexpr):
    """Publish ``a`` and ``b``. Return the sums of the programs from ``first`` on, without this one."""
    if index > first:
        publish(state, index, AGGREGATE, a, b)
    before_a, before_b = look_back(state, first, index, W)
    publish(state, index, INCLUSIVE, before_a + a, before_b + b)
    return before_a, before_b


@triton.jit
def clear_states(state, pitch, B: tl.constexpr):
    """Clear the states of the row of this program for the next kernel that scans; no program may be reading them."""
    begin = tl.program_id(1).to(tl.int64) * pitch
    for at in range(tl.program_id(0) * B, pitch, tl.num_programs(0) * B):
        i = at + tl.arange(0, B)
        tl.store(state + begin + i, tl.zeros([B], tl.int64), mask=i < pitch)
