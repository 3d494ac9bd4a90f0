"""Small kernels around the functions that pick: one tile of items, one result each. For tests on any device."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import primitives
from manyhop.sampling.gpu.kernels.hops import picks


@triton.jit
def numbers(key, x, n, out, B: tl.constexpr):
    """``out [7, B] int64``: what each function of the generator makes of a key, a number and a bound."""
    i = tl.arange(0, B)
    k = tl.load(key + i).to(tl.uint64)
    r = primitives.draw(k, i)
    entry, fraction = primitives.below_with_fraction(r, tl.load(n + i))
    tl.store(out + i, primitives.mix(k).to(tl.int64))
    tl.store(out + B + i, primitives.fold(k, tl.load(x + i)).to(tl.int64))
    tl.store(out + 2 * B + i, r.to(tl.int64))
    tl.store(out + 3 * B + i, primitives.below(r, tl.load(n + i)).to(tl.int64))
    tl.store(out + 4 * B + i, entry.to(tl.int64))
    tl.store(out + 5 * B + i, fraction.to(tl.int64))
    tl.store(out + 6 * B + i, primitives.unit(r).to(tl.int64, bitcast=True))


@triton.jit
def unweighted(key, d, k, out, taken, n, MODE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, B: tl.constexpr):
    """``out [n, KP] int64``, ``taken [n] int32``: the picks of each item and their number; ``KP`` >= ``K`` >= ``k``."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    there = i < n
    keys = tl.load(key + i, mask=there, other=0).to(tl.uint64)
    entries = tl.load(d + i, mask=there, other=0)
    fanout = tl.load(k + i, mask=there, other=0)
    if MODE == "replace":
        pick = picks.with_replacement(keys, entries, KP)
    elif MODE == "last":
        pick = picks.last(entries, fanout, KP)
    else:
        pick = picks.without_replacement(keys, entries, fanout, K, KP)
    tl.store(out + i[None, :] * KP + tl.arange(0, KP)[:, None], pick, mask=there[None, :])
    tl.store(taken + i, picks.count(entries, fanout, MODE == "replace"), mask=there)


@triton.jit
def inserted(table, mask, key, position, out, failed, n, BITS: tl.constexpr, B: tl.constexpr):
    """``out [n] int64``: the position that the table has for each key, after all were inserted."""
    i = tl.arange(0, B)
    there = i < n
    keys = tl.load(key + i, mask=there, other=0)
    one = tl.full([], 1, tl.int64)
    primitives.insert(table, mask, one, keys, tl.load(position + i, mask=there, other=0), there, BITS, BITS, failed)
    tl.store(out + i, primitives.find(table, mask, one, keys, there, BITS, BITS), mask=there)
