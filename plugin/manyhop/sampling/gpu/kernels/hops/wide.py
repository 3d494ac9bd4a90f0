"""Pick for fanouts that do not fit into registers, and for -1.

A frontier node is *whole* if it picks its entire range: ``spread`` writes these edges, one per thread, so that hubs are
shared by many programs. ``pick_wide`` has one program per remaining node, with tiles of slots.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.edges import MOST, columns, frontier_of, node_keys, num_positive
from manyhop.sampling.gpu.kernels.hops.weighted import AHEAD, CHUNK, MAX_REPEATS, find_one, prefetch
from manyhop.sampling.gpu.kernels.primitives import below, draw, first_above, unit
from manyhop.sampling.gpu.kernels.tables import follow

NONE = tl.constexpr(0xFFFFFFFF)  # no entry: columns have less than 2^32
LOOK = tl.constexpr(32)  # nodes that a program checks at once: most are whole


@triton.jit
def _is_whole(segment, d, p, k, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, LAST: tl.constexpr):
    """Return whether nodes take a contiguous part of their range: all ``d`` entries, or the last ones."""
    if LAST:
        whole = d >= 0
    else:
        whole = (k < 0) & (d >= 0)
        if not REPLACE:
            whole = whole | (k >= p)
        if WEIGHTED:
            whole = whole & (p == d)
    return whole


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def spread(
    tables, nodes, frontier, edges, hop, num_type_ranges, num_segments,
    REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr, LAST: tl.constexpr, EXPAND_ALL: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Write the edges of whole nodes, and the columns of all; programs loop over tiles of ``T`` edges."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    more = tl.load(edges.counts + (hop + 1) * num_segments + r) - done
    k = tl.load(tables.fanouts + hop * num_segments + r)
    if (more > 0) & ((k < 0) | (k > MOST)):
        dst = tl.load(segment + t.DST)
        begin, n = frontier_of(nodes.counts, hop, num_type_ranges, dst, EXPAND_ALL)
        edge_base = tl.load(segment + t.EDGE_BASE) + done
        entry_base = tl.load(segment + t.FRONTIER_BASE)
        for at in range(tl.program_id(0) * T, more, tl.num_programs(0) * T):
            e = at + tl.arange(0, T).to(tl.int64)
            act = e < more
            i = first_above(frontier.offset + entry_base, tl.zeros_like(e), tl.where(act, n, 0), e) - 1
            d = tl.load(frontier.degree + entry_base + i, mask=act, other=0)
            v = tl.load(nodes.ids + tl.load(segment + t.DST_BASE) + begin + i, mask=act, other=0)
            if WEIGHTED and TIMED:  # the number of edges of the node: equals `p` if it is whole, and costs no count
                end = tl.load(frontier.offset + entry_base + i + 1, mask=act & (i + 1 < n), other=0)
                p = tl.where(i + 1 < n, end, more) - tl.load(frontier.offset + entry_base + i, mask=act, other=0)
            else:
                p = num_positive(segment, v, act, d, d, WEIGHTED, False)
            whole = act & _is_whole(segment, d, p, k, REPLACE, WEIGHTED, LAST)
            start = tl.load(frontier.start + entry_base + i, mask=whole, other=0)
            skipped = tl.zeros_like(d)
            if LAST:
                skipped = tl.where(k < 0, 0, tl.maximum(d - k, 0))
            slot = e - tl.load(frontier.offset + entry_base + i, mask=whole, other=0)
            tl.store(edges.position + edge_base + e, start + skipped + slot, mask=whole)
            tl.store(edges.column + edge_base + e, (begin + i).to(tl.int32), mask=act)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def pick_wide(
    tables, seeds, nodes, frontier, edges, hash_table, mask, hop, num_type_ranges, num_segments,
    REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr, DISJOINT: tl.constexpr,
    EXPAND_ALL: tl.constexpr, COPIES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Pick for the nodes of a segment that are not whole. ``spread`` writes their columns."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    k = tl.load(tables.fanouts + hop * num_segments + r)
    if (tl.load(edges.counts + (hop + 1) * num_segments + r) > done) & ((k < 0) | (k > MOST)):
        dst, base = tl.load(segment + t.DST), tl.load(segment + t.DST_BASE)
        begin, n = frontier_of(nodes.counts, hop, num_type_ranges, dst, EXPAND_ALL)
        node_bits, pos_bits, key_bits = tl.load(tables.bits), tl.load(tables.bits + 1), tl.load(tables.bits + 2)
        entry_base = tl.load(segment + t.FRONTIER_BASE)
        share = tl.minimum(tl.cdiv(n, tl.num_programs(0)), LOOK)
        lane = tl.arange(0, LOOK).to(tl.int64)
        for at in range(tl.program_id(0) * share, n, tl.num_programs(0) * share):
            i = at + lane
            act = (lane < share) & (i < n)
            d = tl.load(frontier.degree + entry_base + i, mask=act, other=0)
            node = tl.load(nodes.ids + base + begin + i, mask=act, other=0)
            starts = tl.load(frontier.start + entry_base + i, mask=act, other=0)
            p = num_positive(segment, node, act, starts, d, WEIGHTED, TIMED)
            some = act & (p > 0) & (_is_whole(segment, d, p, k, REPLACE, WEIGHTED, False) == 0)
            while tl.max(some.to(tl.int32), 0) > 0:
                index = tl.min(tl.where(some, i, n), 0)
                this = i == index
                some = some & (this == 0)
                local = begin + index + tl.zeros([1], tl.int64)  # `node_keys` reads tiles: a tile of one node
                v = tl.load(nodes.ids + base + local)
                of_tree = tl.zeros_like(v)
                if DISJOINT:
                    of_tree = tl.load(nodes.tree + base + local).to(tl.int64)
                key = node_keys(
                    segment, seeds.keys, hop * num_segments + r, v, local, v >= 0, of_tree,
                    tl.load(seeds.first_tree + tl.load(segment + t.BATCH)), nodes.ids, tl.load(nodes.counts + dst),
                    hash_table, mask, tl.load(seeds.stamps), node_bits, pos_bits, key_bits, DISJOINT, COPIES,
                )  # fmt: skip
                out = (
                    edges.position
                    + tl.load(segment + t.EDGE_BASE)
                    + done
                    + tl.load(frontier.offset + entry_base + index)
                )
                column, length = v, v
                if TIMED:
                    column, length = columns(segment, v, v >= 0)
                _pick_for_node(
                    segment, out, tl.load(frontier.start + entry_base + index),
                    tl.max(key.to(tl.int64), 0).to(tl.uint64), tl.sum(tl.where(this, d, 0), 0),
                    tl.sum(tl.where(this, p, 0), 0), k, tl.max(column, 0), tl.max(length, 0),
                    REPLACE, WEIGHTED, TIMED, T,
                )  # fmt: skip


@triton.jit
def _pick_for_node(
    segment, out, start, key, d, p, k, begin, length,
    REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Write the picks of a node that is not whole, as stored positions; all arguments are scalars.

    Args:
        begin, length: of the column, which contains the range, if ``TIMED``.
    """
    if WEIGHTED:
        alias = tl.load(segment + t.ALIAS)
        if alias != 0:
            table = alias.to(tl.pointer_type(tl.int64))
            weight = tl.load(segment + t.WEIGHT).to(tl.pointer_type(tl.float64)) + start
            if k < 0:
                _positive(weight, out, start, d, 16 * T)
            elif REPLACE:
                if TIMED:
                    _successive(table + begin, weight, out, start, key, d, k, start - begin, length, True, True, T)
                else:
                    _weighted_draws(table + start, out, start, key, d, k, T)
            elif k >= p:
                _positive(weight, out, start, d, 16 * T)
            elif TIMED:
                _successive(table + begin, weight, out, start, key, d, k, start - begin, length, False, True, T)
            else:
                _successive(table + start, weight, out, start, key, d, k, 0, d, False, False, T)
        else:
            _uniform(out, start, key, d, k, REPLACE, T)
    else:
        _uniform(out, start, key, d, k, REPLACE, T)


@triton.jit
def _uniform(out, start, key, d, k, REPLACE: tl.constexpr, T: tl.constexpr):
    """Pick uniformly; without replacement, by Robert Floyd's algorithm.

    A slot depends on the earlier slots of its tile: all are computed again until none changes. The number of rounds is
    the length of the longest chain of colliding slots.
    """
    lane = tl.arange(0, T).to(tl.int64)
    for first in range(0, k, T):
        j = first + lane
        if REPLACE:
            pick = below(draw(key, j), d)
        else:
            spare = (d - k + j).to(tl.uint32)
            drawn = below(draw(key, j), spare + 1)
            before = _among(drawn, out, start, first, T)
            pick = drawn
            changed = 1
            while changed > 0:
                seen = before | _earlier(drawn, pick, lane)
                better = tl.where(seen, spare, drawn)
                changed = tl.max((better != pick).to(tl.int32), 0)
                pick = better
        tl.store(out + j, start + pick.to(tl.int64), mask=j < k)
        tl.debug_barrier()


@triton.jit
def _earlier(x, y, lane):
    """Return whether ``x[j]`` is among the ``y[i]`` with ``i < j``."""
    return tl.max(((x[:, None] == y[None, :]) & (lane[None, :] < lane[:, None])).to(tl.int32), 1) > 0


@triton.jit
def _among(x, out, start, n, T: tl.constexpr):
    """Return whether each ``x`` (uint32) is among the first ``n`` picks."""
    lane = tl.arange(0, T).to(tl.int64)
    found = lane < 0
    for first in range(0, n, T):
        i = first + lane
        pick = tl.where(i < n, (tl.load(out + i, mask=i < n, other=0) - start).to(tl.uint32), NONE)
        found = found | (tl.max((x[:, None] == pick[None, :]).to(tl.int32), 1) > 0)
    return found


@triton.jit
def _positive(weight, out, start, d, T: tl.constexpr):
    """Pick all entries of positive weight, in stored order."""
    lane = tl.arange(0, T).to(tl.int64)
    have = d * 0
    for first in range(0, d, T):
        q = first + lane
        take = tl.load(weight + q, mask=q < d, other=0.0) > 0.0
        rank = have + tl.cumsum(take.to(tl.int64), 0) - 1
        tl.store(out + rank, start + q, mask=take)
        have += tl.sum(take.to(tl.int64), 0)


@triton.jit
def _weighted_draws(table, out, start, key, d, k, T: tl.constexpr):
    """Draw by weight, with replacement."""
    lane = tl.arange(0, T).to(tl.int64)
    for first in range(0, k, T):
        j = first + lane
        pick = find_one(table, draw(key, j), d, j < k)
        tl.store(out + j, start + pick.to(tl.int64), mask=j < k)


@triton.jit
def _successive(
    table, weight, out, start, key, d, k, begin, length, REPLACE: tl.constexpr, PART: tl.constexpr, T: tl.constexpr
):
    """Draw by weight, successively; more than ``k`` entries have a positive weight. See ``weighted.in_range``.

    A tile draws at once: new entries fill slots in order, up to the first slot that has exhausted its repeats; a scan
    then fills that slot.
    """
    lane = tl.arange(0, T).to(tl.int64)
    have, used, failed = k * 0, k * 0, k * 0
    while have < k:
        q = find_one(table, draw(key, used + lane), length, lane >= 0)
        new = lane >= 0
        if PART:
            q -= begin.to(tl.uint32)  # entries before the range wrap around to large numbers
            new = q < d.to(tl.uint32)
        if not REPLACE:
            new = new & ((_among(q, out, start, have, T) | _earlier(q, q, lane)) == 0)
        latest = tl.max(tl.where(new[None, :] & (lane[None, :] <= lane[:, None]), lane[None, :], -1 - failed), 1)
        stuck = tl.min(tl.where(lane - latest >= MAX_REPEATS, lane, T), 0)
        new = new & (lane < stuck)
        rank = have + tl.cumsum(new.to(tl.int64), 0) - 1
        tl.store(out + rank, start + q.to(tl.int64), mask=new & (rank < k))
        tl.debug_barrier()
        have += tl.sum(new.to(tl.int64), 0)
        used += tl.minimum(stuck + 1, T)
        failed = T - 1 - tl.max(tl.where(lane == T - 1, latest, -T), 0)
        if (have < k) & (stuck < T):
            found = _scan(weight, out, start, d, unit(draw(key, used)), have * 0 if REPLACE else have, T)
            tl.store(out + have, start + found)
            tl.debug_barrier()
            have += 1
            used += 1
            failed = failed * 0


@triton.jit
def _left(out, start, d, first, have, T: tl.constexpr):
    """Return which of the entries ``first, first + 1, ...`` exist and are not picked yet: ``CHUNK`` bits."""
    lane = tl.arange(0, T).to(tl.int64)
    picked = (have * 0).to(tl.int32)
    for begin in range(0, have, T):
        at = tl.load(out + begin + lane, mask=begin + lane < have, other=0) - start - first
        inside = (begin + lane < have) & (at >= 0) & (at < CHUNK)
        picked |= tl.sum(tl.where(inside, 1 << (at & (CHUNK - 1)).to(tl.int32), 0), 0)
    there = tl.minimum(d - first, CHUNK).to(tl.int32)
    return ((1 << there) - 1) & (picked ^ -1)


@triton.jit
def _scan(weight, out, start, d, drawn, have, T: tl.constexpr):
    """Draw one of the entries left by weight; additions are in stored order (adding 0.0 changes nothing)."""
    total, one = drawn * 0.0, tl.zeros([1], tl.int64)
    for first in range(0, d, CHUNK):
        prefetch(weight + first + AHEAD + one, one + first + AHEAD < d)
        left = _left(out, start, d, first, have, T)
        for s in tl.static_range(CHUNK):
            total += tl.load(weight + first + s, mask=(left & (1 << s)) != 0, other=0.0)
    target = drawn * total
    running, found, latest = drawn * 0.0, d * 0 - 1, d * 0
    first = d * 0
    while (first < d) & (found < 0):
        prefetch(weight + first + AHEAD + one, one + first + AHEAD < d)
        left = _left(out, start, d, first, have, T)
        for s in tl.static_range(CHUNK):
            w = tl.load(weight + first + s, mask=(left & (1 << s)) != 0, other=0.0)
            running += w
            latest = tl.where(w > 0.0, first + s, latest)
            found = tl.where((found < 0) & (w > 0.0) & (running > target), first + s, found)
        first += CHUNK
    return tl.where(found < 0, latest, found)
