"""The generator of ``manyhop.sampling.random``, operation by operation. Keys and random numbers are uint64."""

import triton
import triton.language as tl

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def mix(z):
    """The finaliser of splitmix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def draw(key, j):
    """The j-th random number of a key; ``key`` and ``j`` (tensor, at least 0) have the same shape, or broadcast."""
    return mix(key + (j + 1).to(tl.uint64) * GAMMA)


@triton.jit
def fold(key, x):
    """The key of a key and a tensor of integers."""
    return mix(key + (x.to(tl.uint64) + 1) * GAMMA)


@triton.jit
def _product(r, n):
    """``floor(r * n / 2^32)`` for ``n < 2^32``, from two products of 32-bit numbers."""
    wide = n.to(tl.uint32).to(tl.uint64)
    high = (r >> 32).to(tl.uint32).to(tl.uint64)
    low = r.to(tl.uint32).to(tl.uint64)
    return high * wide + ((low * wide) >> 32)


@triton.jit
def below(r, n):
    """``floor(r * n / 2^64)`` as uint32, for integers ``n < 2^32``."""
    return (_product(r, n) >> 32).to(tl.uint32)


@triton.jit
def below_with_fraction(r, n):
    """What ``below`` gives, and the 32 bits that follow; both uint32."""
    s = _product(r, n)
    return (s >> 32).to(tl.uint32), s.to(tl.uint32)


@triton.jit
def unit(r):
    """A float64 in [0, 1) with 53 random bits."""
    return (r >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
