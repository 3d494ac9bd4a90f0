"""Which entries of a column are picked in proportion to their weights; see ``picks.py`` for tiles, slots and results.

``alias`` and ``weight`` are ``[B]`` pointers to the alias table (int64) and the weights (float64) of each item's
column, ``p [B]`` is the number of its entries of positive weight. ``picks.count`` of ``p`` is the number of picks.
"""

import triton
import triton.language as tl

from .random import below_with_fraction, draw, unit

MAX_REPEATS = tl.constexpr(16)


@triton.jit
def with_replacement(alias, key, d, p, KP: tl.constexpr):
    """Every slot draws by itself."""
    slot = tl.arange(0, KP)[None, :]
    return _find(alias, draw(key[:, None], slot), d, (p > 0)[:, None] & (slot >= 0)).to(tl.int64)


@triton.jit
def without_replacement(alias, weight, key, d, p, k, KP: tl.constexpr):
    """Successive sampling; all entries of positive weight, in stored order, where there are no more than ``k``."""
    slot = tl.arange(0, KP)[None, :].to(tl.uint32) + tl.zeros_like(d)[:, None].to(tl.uint32)
    k = k + tl.zeros_like(d).to(tl.int32)
    pick = slot
    if tl.max((p > k).to(tl.int32), 0) > 0:
        pick = tl.where((p > k)[:, None], _successive(alias, weight, key, d, k, p > k, slot, KP), pick)
    some = (p <= k) & (p < d)
    if tl.max(some.to(tl.int32), 0) > 0:
        pick = tl.where(some[:, None], _positive(weight, tl.where(some, d, 0), p, slot, KP), pick)
    return pick.to(tl.int64)


@triton.jit
def _find(alias, r, d, act):
    """The entries of columns that draws ``r [B, KP]`` find in the alias tables, as uint32."""
    entry, fraction = below_with_fraction(r, d[:, None])
    found = tl.load(alias[:, None] + entry.to(tl.int64), mask=act, other=0)
    threshold = (found >> 32).to(tl.uint32)
    return tl.where(fraction < threshold, entry, found.to(tl.uint32))


@triton.jit
def _successive(alias, weight, key, d, k, act, slot, KP: tl.constexpr):
    """Successive sampling of the items that ``act``; these have more than ``k`` entries of positive weight.

    A tile draws KP times per item at once. What is new among these draws fills slots, in order.
    """
    todo = act & (k > 0)
    pick = slot
    have, used, failed = tl.zeros_like(k), tl.zeros_like(d), tl.zeros_like(k)
    while tl.max(todo.to(tl.int32), 0) > 0:
        q = _find(alias, draw(key[:, None], used[:, None] + slot.to(tl.int64)), d, todo[:, None] & (slot >= 0))
        new = _is_new(q, pick, have, slot, KP)
        num_new = tl.sum(new.to(tl.int32), 1)
        stuck = tl.zeros_like(d) - 1
        if tl.max(tl.where(todo, failed + KP - num_new, 0), 0) >= MAX_REPEATS:
            stuck = _first_stuck(new, have, failed, k, slot, KP)
            new = new & ((stuck < 0)[:, None] | (slot.to(tl.int64) < stuck[:, None]))
            num_new = tl.sum(new.to(tl.int32), 1)
        rank = have[:, None] + tl.cumsum(new.to(tl.int32), 1)
        pick = tl.where(todo[:, None] & (slot >= have[:, None].to(tl.uint32)), _in_order(q, rank, slot, KP), pick)
        failed = _trailing(new, num_new, failed, slot, KP)
        have = tl.where(todo, tl.minimum(have + num_new, k), have)
        scan = todo & (stuck >= 0)
        used += tl.where(scan, stuck + 1, KP)
        if tl.max(scan.to(tl.int32), 0) > 0:
            drawn = unit(draw(key, used))
            found = _scan(weight, tl.where(scan, d, 0), drawn, pick, have, slot, KP)
            pick = tl.where(scan[:, None] & (slot == have[:, None].to(tl.uint32)), found, pick)
            have += scan.to(tl.int32)
            used += scan.to(tl.int64)
            failed = tl.where(scan, 0, failed)
        todo = todo & (have < k)
    return pick


@triton.jit
def _is_new(q, pick, have, slot, KP: tl.constexpr):
    """Whether each of the draws ``q`` is neither picked nor drawn before, in its row."""
    seen = slot < 0
    for s in tl.static_range(KP - 1):
        seen = seen | ((q == _shown(q, s)) & (slot > s))
    most = tl.max(have, 0)
    for s in range(0, most):
        seen = seen | ((q == _shown(pick, s)) & (have[:, None] > s))
    return seen == 0


@triton.jit
def _shown(x, s):
    """Column ``s`` of ``x [B, KP]``, in all columns."""
    return tl.gather(x, tl.zeros(x.shape, tl.int32) + s, 1)


@triton.jit
def _in_order(q, rank, slot, KP: tl.constexpr):
    """In each slot, the draw at which ``rank``, the running number of picks, reaches that of the slot."""
    source = tl.zeros_like(rank)
    for s in tl.static_range(KP):
        source += (_shown(rank, s) <= slot.to(tl.int32)).to(tl.int32)
    return tl.gather(q, tl.minimum(source, KP - 1), 1)


@triton.jit
def _trailing(new, num_new, failed, slot, KP: tl.constexpr):
    """How many draws failed since the last one that was new."""
    latest = tl.max(tl.where(new, slot.to(tl.int32), -1), 1)
    return tl.where(num_new > 0, KP - 1 - latest, failed + KP)


@triton.jit
def _first_stuck(new, have, failed, k, slot, KP: tl.constexpr):
    """The first draw that fails as the last repeat of a slot; -1 if there is none before all slots are filled."""
    run, first = tl.zeros_like(slot).to(tl.int32) + failed[:, None], tl.zeros_like(slot).to(tl.int32) - 1
    filled = tl.zeros_like(run) + have[:, None]
    for s in tl.static_range(KP):
        is_new = _shown(new.to(tl.int32), s)
        filled += is_new
        run = tl.where(is_new > 0, 0, run + 1)
        first = tl.where((first < 0) & (run >= MAX_REPEATS) & (filled < k[:, None]), s, first)
    return tl.max(first, 1).to(tl.int64)


@triton.jit
def _left(weight, d, at, pick, have, slot):
    """The weights of entries ``at [B, KP]``; 0.0 for those that are picked, or behind the column."""
    w = tl.load(weight[:, None] + at, mask=at < d[:, None], other=0.0)
    for s in range(0, tl.max(have, 0)):
        w = tl.where((_shown(pick, s).to(tl.int64) == at) & (have[:, None] > s), 0.0, w)
    return tl.where(w > 0.0, w, 0.0)


@triton.jit
def _scan(weight, d, drawn, pick, have, slot, KP: tl.constexpr):
    """One of the entries left, in proportion to its weight; sums run one addition at a time (+ 0.0 is none)."""
    lane = slot.to(tl.int64)
    longest = tl.max(d, 0)
    total = tl.zeros_like(lane).to(tl.float64)
    for begin in range(0, longest, KP):
        w = _left(weight, d, begin + lane, pick, have, slot)
        for s in range(0, KP):
            total += _shown(w, s)
    target = drawn[:, None] * total
    running = tl.zeros_like(total)
    found, latest = tl.zeros_like(lane) - 1, tl.zeros_like(lane)
    for begin in range(0, longest, KP):
        w = _left(weight, d, begin + lane, pick, have, slot)
        for s in range(0, KP):
            here = _shown(w, s)
            running += here
            latest = tl.where(here > 0.0, begin + s, latest)
            found = tl.where((found < 0) & (here > 0.0) & (running > target), begin + s, found)
    return tl.where(found < 0, latest, found).to(tl.uint32)


@triton.jit
def _positive(weight, d, p, slot, KP: tl.constexpr):
    """The entries of positive weight, in stored order; there are ``p <= KP``."""
    pick = slot
    lane = slot.to(tl.int64)
    have = tl.zeros_like(d).to(tl.int32)
    begin = tl.zeros_like(d)
    while tl.max((begin < tl.where(have < p, d, 0)).to(tl.int32), 0) > 0:
        at = begin[:, None] + lane
        new = tl.load(weight[:, None] + at, mask=at < d[:, None], other=0.0) > 0.0
        rank = have[:, None] + tl.cumsum(new.to(tl.int32), 1)
        pick = tl.where(slot >= have[:, None].to(tl.uint32), _in_order(at.to(tl.uint32), rank, slot, KP), pick)
        have += tl.sum(new.to(tl.int32), 1)
        begin += KP
    return pick
