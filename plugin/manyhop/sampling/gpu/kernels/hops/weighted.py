"""Pick entries of columns in proportion to their weights; see ``picks.py`` for tiles, slots and results.

``alias`` and ``weight`` are ``[B]`` pointers to the alias table (int64) and the weights (float64) of each node's
column, ``p [B]`` is the number of its entries of positive weight. ``picks.count`` of ``p`` is the number of picks.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.hops.picks import shown
from manyhop.sampling.gpu.kernels.primitives import INTERPRETED, below_with_fraction, draw, unit

MAX_REPEATS = tl.constexpr(16)
CHUNK = tl.constexpr(16)  # entries of a column that a scan reads at once
AHEAD = tl.constexpr(128)  # entries between a scan and its prefetches
AT_ONCE = tl.constexpr(8)  # draws of a node at once, after the first K


@triton.jit
def with_replacement(alias, key, d, p, K: tl.constexpr, KP: tl.constexpr):
    """Draw for every slot independently."""
    slot = tl.arange(0, KP)[:, None]
    return _find(alias, draw(key[None, :], slot), d, p > 0, K).to(tl.int64)


@triton.jit
def without_replacement(alias, weight, key, d, p, k, K: tl.constexpr, KP: tl.constexpr):
    """Draw successively; all entries of positive weight, in stored order, if there are at most ``k``."""
    return in_range(alias, d, tl.zeros_like(d), weight, key, d, p, k, False, False, K, KP)


@triton.jit
def in_range(
    alias, length, first, weight, key, d, p, k,
    REPLACE: tl.constexpr, PART: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """Draw from ranges of ``d`` entries that start at entry ``first`` of columns of ``length`` entries.

    Args:
        alias: alias tables of the columns.
        weight: weights of the ranges.
        REPLACE: draw with replacement.
        PART: whether ranges may be parts of columns: draws that leave them are repeated.
    """
    k = k + tl.zeros_like(d).to(tl.int32)
    slot = tl.arange(0, KP)[:, None].to(tl.uint32) + tl.zeros_like(d)[None, :].to(tl.uint32)
    pick = slot
    choose = (p > (0 if REPLACE else k)) & (k > 0)
    if tl.max(choose.to(tl.int32), 0) > 0:
        drawn = _successive(alias, length, first, weight, key, d, k, choose, slot, REPLACE, PART, K, KP)
        pick = tl.where(choose[None, :], drawn, pick)
    some = (choose == 0) & (p < d)
    if tl.max(some.to(tl.int32), 0) > 0:
        pick = tl.where(some[None, :], _positive(weight, tl.where(some, d, 0), p, slot), pick)
    return pick.to(tl.int64)


@triton.jit
def _find(alias, r, d, act, DRAWS: tl.constexpr):
    """Look up draws ``r [.., B]`` in the alias tables of columns; return uint32 entries, in the first ``DRAWS`` rows.

    Rows are loaded one by one: triton would load a tile in another layout, with slots in different threads.
    """
    entry, fraction = below_with_fraction(r, d[None, :])
    slot = tl.arange(0, r.shape[0])[:, None]
    found = tl.zeros_like(r).to(tl.int64)
    for s in tl.static_range(DRAWS):
        at = tl.sum(tl.where(slot == s, entry, 0), 0).to(tl.int64)
        found = tl.where(slot == s, tl.load(alias + at, mask=act, other=0)[None, :], found)
    threshold = (found >> 32).to(tl.uint32)
    return tl.where(fraction < threshold, entry, found.to(tl.uint32))


@triton.jit
def find_one(table, r, d, act):
    """Look up draws ``r [T]`` in the alias table of one column; return entries as uint32."""
    entry, fraction = below_with_fraction(r, d)
    found = tl.load(table + entry.to(tl.int64), mask=act, other=0)
    return tl.where(fraction < (found >> 32).to(tl.uint32), entry, found.to(tl.uint32))


@triton.jit
def count_positive(weight, d):
    """Count the entries of positive weight among ``d``."""
    p, longest = tl.zeros_like(d), tl.max(d, 0)
    first = longest * 0
    while first < longest:
        for s in tl.static_range(CHUNK):
            p += (tl.load(weight + first + s, mask=first + s < d, other=0.0) > 0.0).to(tl.int64)
        first += CHUNK
    return p


@triton.jit
def _successive(
    alias, length, begin, weight, key, d, k, act, slot,
    REPLACE: tl.constexpr, PART: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """Draw successively for nodes that ``act``; these have more than ``k`` entries of positive weight.

    Every node makes K draws at once. New entries fill slots in order; further draws fill the remaining slots.
    """
    none = tl.zeros_like(k)
    first = _find(alias, draw(key[None, :], slot), length, act, K)
    if PART:
        first -= begin[None, :].to(tl.uint32)  # entries before the range wrap around to large numbers
    pick, have, failed, used = _fill(slot, none, none, tl.zeros_like(d), d, k, act, first, slot, REPLACE, PART, K)
    more = tl.arange(0, AT_ONCE)[:, None].to(tl.int64)
    left = act & (have < k)
    while tl.max(left.to(tl.int32), 0) > 0:
        stuck = left & (failed >= MAX_REPEATS)
        if tl.max(stuck.to(tl.int32), 0) > 0:
            taken = have * 0 if REPLACE else have
            found = _scan(weight, tl.where(stuck, d, 0), unit(draw(key, used)), pick, taken, slot)
            pick = tl.where(stuck[None, :] & (slot == have[None, :].to(tl.uint32)), found[None, :], pick)
            have += stuck.to(tl.int32)
            used += stuck.to(tl.int64)
            failed = tl.where(stuck, 0, failed)
            left = left & (have < k)
        q = _find(alias, draw(key[None, :], used[None, :] + more), length, left, AT_ONCE)
        if PART:
            q -= begin[None, :].to(tl.uint32)
        pick, have, failed, used = _fill(pick, have, failed, used, d, k, left, q, slot, REPLACE, PART, AT_ONCE)
        left = left & (have < k)
    return pick


@triton.jit
def _fill(pick, have, failed, used, d, k, act, q, slot, REPLACE: tl.constexpr, PART: tl.constexpr, DRAWS: tl.constexpr):
    """Use draws ``q`` one by one, until all slots are filled or a slot has exhausted its repeats.

    ``have`` slots are filled; ``used`` counts draws, ``failed`` those since the last one that filled a slot. The loop
    is not unrolled: that would take seconds to compile.
    """
    for s in range(0, DRAWS):
        on = act & (have < k) & (failed < MAX_REPEATS)
        drawn = shown(q, s)
        take = on
        if not REPLACE:
            seen = tl.sum(((pick == drawn) & (slot < have[None, :].to(tl.uint32))).to(tl.int32), 0) > 0
            take = take & (seen == 0)
        if PART:
            take = take & (tl.sum((drawn < d[None, :].to(tl.uint32)).to(tl.int32), 0) > 0)
        pick = tl.where(take[None, :] & (slot == have[None, :].to(tl.uint32)), drawn, pick)
        have += take.to(tl.int32)
        used += on.to(tl.int64)
        failed = tl.where(take, 0, failed + on.to(tl.int32))
    return pick, have, failed, used


@triton.jit
def _left(d, pick, have, slot, first):
    """Return which of the entries ``first, first + 1, ...`` exist and are not picked yet: ``CHUNK`` bits per column."""
    at = pick - first.to(tl.uint32)
    inside = (at < CHUNK) & (slot < have[None, :].to(tl.uint32))
    picked = tl.sum(tl.where(inside, 1 << (at & (CHUNK - 1)), 0).to(tl.int32), 0)
    there = tl.minimum(tl.maximum(d - first, 0), CHUNK).to(tl.int32)
    return ((1 << there) - 1) & (picked ^ -1)


@triton.jit
def prefetch(address, act):
    """Prefetch the cache lines at addresses ``[B]`` where ``act``."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L1 [$1]; mov.u32 $0, 0; }",
            "=r,l,r",
            [address, act.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _scan(weight, d, drawn, pick, have, slot):
    """Draw one of the entries left by weight; additions are in stored order (adding 0.0 changes nothing).

    A thread has a column, and prefetches weights some chunks ahead.
    """
    longest = tl.max(d, 0)
    total = tl.zeros_like(drawn)
    first = longest * 0
    while first < longest:
        prefetch(weight + first + AHEAD, first + AHEAD < d)
        left = _left(d, pick, have, slot, first)
        for s in tl.static_range(CHUNK):
            total += tl.load(weight + first + s, mask=(left & (1 << s)) != 0, other=0.0)
        first += CHUNK
    target = drawn * total
    running, found, latest = tl.zeros_like(drawn), tl.zeros_like(d) - 1, tl.zeros_like(d)
    first = longest * 0
    while first < longest:
        prefetch(weight + first + AHEAD, first + AHEAD < d)
        left = _left(d, pick, have, slot, first)
        hit, last = left * 0 - 1, left * 0 - 1
        for s in tl.static_range(CHUNK):
            w = tl.load(weight + first + s, mask=(left & (1 << s)) != 0, other=0.0)
            running += w
            last = tl.where(w > 0.0, s, last)
            hit = tl.where((hit < 0) & (w > 0.0) & (running > target), s, hit)
        latest = tl.where(last >= 0, first + last, latest)
        found = tl.where((found < 0) & (hit >= 0), first + hit, found)
        first += CHUNK
        if tl.min(tl.where(d > 0, found, 0), 0) >= 0:
            first = longest
    return tl.where(found < 0, latest, found).to(tl.uint32)


@triton.jit
def _positive(weight, d, p, slot):
    """Pick the entries of positive weight, in stored order; they fit into the slots."""
    pick, have = slot, tl.zeros_like(p)
    first = tl.max(d, 0) * 0
    while tl.max((first < tl.where(have < p, d, 0)).to(tl.int32), 0) > 0:
        positive = tl.zeros_like(p)
        for s in tl.static_range(CHUNK):
            w = tl.load(weight + first + s, mask=first + s < d, other=0.0)
            positive |= tl.where(w > 0.0, 1 << s, 0)
        if tl.max(positive, 0) > 0:
            for at in range(0, CHUNK):
                take = ((positive >> at) & 1) > 0
                pick = tl.where(take[None, :] & (slot == have[None, :].to(tl.uint32)), (first + at).to(tl.uint32), pick)
                have += take.to(tl.int64)
        first += CHUNK
    return pick
