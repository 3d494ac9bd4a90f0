"""LABOR: pick entries from the columns of all frontier nodes.

Entries are numbered across the columns of a segment. A program has a *chunk* of them, in tiles, independent of columns.
It reads its chunk twice: to count the picked entries, and, when all chunks are counted, to write them.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.edges import finish_count, frontier_of
from manyhop.sampling.gpu.kernels.primitives import below, draw, first_above, first_above_one, fold, load_ids, unit
from manyhop.sampling.gpu.kernels.tables import follow

SMALLEST_SHARE = tl.constexpr(2.0**-512)

# How entries are picked.
EQUAL = tl.constexpr(0)  # each with the probability k / d
BY_SHARE = tl.constexpr(1)  # each with a probability in proportion to its weight
SMALLEST = tl.constexpr(2)  # entries of the smallest keys
SMALLEST_BY_WEIGHT = tl.constexpr(3)

# Keys of a segment and hop.
NOW = tl.constexpr(0)
NEXT = tl.constexpr(1)
SWITCH = tl.constexpr(2)
STEP = tl.constexpr(3)  # no key: the batch's number in its group of dependent batches
KEY_COLUMNS = tl.constexpr(4)


@triton.jit(do_not_specialize=["num_hops", "num_segments"])
def labor_keys(
    descriptor, segments, keys, num_hops, num_segments, DEPENDENCY: tl.constexpr, SAME: tl.constexpr, B: tl.constexpr
):
    """Compute the keys of all hops and segments; one program per ``B`` segments."""
    follow()
    r = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    act = r < num_segments
    about = segments + r * t.SEGMENT_COLUMNS
    of_batch = descriptor + t.BATCHES + tl.load(about + t.BATCH, mask=act, other=0) * t.BATCH_COLUMNS
    epoch = tl.load(of_batch + t.EPOCH_KEY, mask=act, other=0)
    batch = tl.load(of_batch + t.BATCH_KEY, mask=act, other=0)
    group, step = batch, batch * 0
    if DEPENDENCY > 1:
        group = batch // DEPENDENCY
        step = batch - group * DEPENDENCY
    if DEPENDENCY == 0:
        epoch, group = epoch * 0, batch * 0
    key = fold(tl.zeros([B], tl.uint64), tl.full([B], 6, tl.int64))  # of the use "LABOR"
    key = fold(fold(key, tl.load(of_batch + t.SEED_KEY, mask=act, other=0)), epoch)
    node_type = tl.load(about + t.SRC_TYPE, mask=act, other=0)
    now = fold(fold(key, group), node_type)
    later = fold(fold(key, group + 1), node_type)
    for hop in range(num_hops):
        now_here, later_here = now, later
        if not SAME:
            now_here = fold(now, tl.zeros([B], tl.int64) + hop)
            later_here = fold(later, tl.zeros([B], tl.int64) + hop)
        to = keys + (hop * num_segments + r) * KEY_COLUMNS
        tl.store(to + NOW, now_here.to(tl.int64, bitcast=True), mask=act)
        tl.store(to + NEXT, later_here.to(tl.int64, bitcast=True), mask=act)
        tl.store(to + SWITCH, fold(now_here, tl.full([B], -1, tl.int64)).to(tl.int64, bitcast=True), mask=act)
        tl.store(to + STEP, step, mask=act)


@triton.jit
def variate(key, node, DEPENDENCY: tl.constexpr):
    """Return the random number of each neighbour, identical for all frontier nodes (uint64)."""
    r = draw(tl.load(key + NOW).to(tl.uint64, bitcast=True), node)
    if DEPENDENCY > 1:
        step = tl.load(key + STEP)
        when = below(draw(tl.load(key + SWITCH).to(tl.uint64, bitcast=True), node), tl.full([], DEPENDENCY, tl.int64))
        later = draw(tl.load(key + NEXT).to(tl.uint64, bitcast=True), node)
        r = tl.where(when.to(tl.int64) < step, later, r)
    return r


@triton.jit
def share(weight, total):
    """Return the shares of entries in the weights of their columns; 0 for a weight of 0."""
    return tl.where(weight > 0, tl.maximum(weight / tl.where(total > 0, total, 1.0), SMALLEST_SHARE), 0.0)


@triton.jit
def rank_key(r, weight, KIND: tl.constexpr):
    """Return sort keys: the entries with the smallest are picked. Bits of nonnegative floats sort like the floats."""
    by_weight = unit(r) / tl.where(weight > 0, weight, 1.0)
    return by_weight.to(tl.uint64, bitcast=True) if KIND == SMALLEST_BY_WEIGHT else r


@triton.jit
def _tile(
    segment, key, k, frontier, labor, base, at, n, low, high, KIND: tl.constexpr, DEPENDENCY: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Return of ``T`` entries from ``at`` on: whether they are picked, stored position, frontier node, weight.

    Args:
        labor: parameters of the columns, from ``labor_scale`` or ``labor_rank``.
        base: offset of the frontier of the segment.
        low, high: range of the frontier nodes of the tile.
    """
    e = at + tl.arange(0, T)
    act = e < n
    zero = tl.zeros_like(e)
    i = first_above(frontier.offset + base, zero + low, tl.where(act, zero + high, zero + low), e) - 1
    i = tl.where(act, i, 0)
    d = tl.load(frontier.degree + base + i, mask=act, other=0)
    q = e - tl.load(frontier.offset + base + i, mask=act, other=0)
    edge = tl.load(frontier.start + base + i, mask=act, other=0) + q
    node = load_ids(tl.load(segment + t.ROW), tl.load(segment + t.ROW_WIDE), edge, act)
    r = variate(key, node, DEPENDENCY)
    counts = tl.zeros([T], tl.float64)
    if KIND == EQUAL:
        picked = act & ((k < 0) | (k >= d) | (below(r, d).to(tl.int64) < k))
    elif KIND == BY_SHARE:
        weight = tl.load(segment + t.WEIGHT).to(tl.pointer_type(tl.float64))
        total = tl.load(labor.param_a.to(tl.pointer_type(tl.float64)) + base + i, mask=act, other=1.0)
        c = tl.load(labor.param_b.to(tl.pointer_type(tl.float64)) + base + i, mask=act, other=0.0)
        a = share(tl.load(weight + edge, mask=act, other=0.0), total)
        chance = tl.where(a > 0, tl.minimum(c * tl.where(a > 0, a, 1.0), 1.0), 0.0)
        picked = act & (unit(r) < chance)
        counts = tl.where(picked, a / tl.where(picked, chance, 1.0), 0.0)
    else:
        limit = tl.load(labor.param_a + base + i, mask=act, other=0).to(tl.uint64, bitcast=True)
        last = tl.load(labor.param_b + base + i, mask=act, other=-1)
        weight = tl.full([T], 1.0, tl.float64)
        if KIND == SMALLEST_BY_WEIGHT:
            address = tl.load(segment + t.WEIGHT).to(tl.pointer_type(tl.float64))
            weight = tl.load(address + edge, mask=act, other=0.0)
        own = rank_key(r, weight, KIND)
        picked = act & (weight > 0) & ((own < limit) | ((own == limit) & (q <= last)))
    return picked, edge, i, counts


@triton.jit
def _picks(
    segment, key, k, frontier, labor, base, at, n, num_frontier,
    KIND: tl.constexpr, KIND_WITHOUT: tl.constexpr, DEPENDENCY: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Return ``_tile`` of ``T`` entries from ``at`` on; ``KIND_WITHOUT`` is for edge types without weights."""
    low = first_above_one(frontier.offset + base, at * 0, num_frontier, at) - 1
    high = first_above_one(frontier.offset + base, low, num_frontier, tl.minimum(at + T, n) - 1)
    if (KIND != KIND_WITHOUT) & (tl.load(segment + t.WEIGHT) == 0):
        picked, edge, i, counted = _tile(
            segment, key, k, frontier, labor, base, at, n, low, high, KIND_WITHOUT, DEPENDENCY, T
        )
    else:
        picked, edge, i, counted = _tile(segment, key, k, frontier, labor, base, at, n, low, high, KIND, DEPENDENCY, T)
    return picked, edge, i, counted


@triton.jit
def _chunk(entries, hop, num_segments, r, T: tl.constexpr):
    """Return the number of entries of a segment in this hop, and start and end of the chunk of this program."""
    n = tl.load(entries + (hop + 1) * num_segments + r) - tl.load(entries + hop * num_segments + r)
    size = tl.cdiv(tl.cdiv(n, tl.num_programs(0)), T) * T
    begin = tl.minimum(tl.program_id(0).to(tl.int64) * size, n)
    return n, begin, tl.minimum(begin + size, n)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def labor_mark(
    tables, labor, nodes, frontier, hop, num_type_ranges, num_segments,
    KIND: tl.constexpr, KIND_WITHOUT: tl.constexpr, DEPENDENCY: tl.constexpr, EXPAND_ALL: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Count the picked entries of each chunk."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    n, begin, end = _chunk(labor.entries, hop, num_segments, r, T)
    picked_here = begin * 0
    if begin < end:
        k, key = tl.load(labor.wanted + hop * num_segments + r), labor.keys + (hop * num_segments + r) * 4
        base = tl.load(segment + t.FRONTIER_BASE)
        _first, num_frontier = frontier_of(nodes.counts, hop, num_type_ranges, tl.load(segment + t.DST), EXPAND_ALL)
        for at in range(begin, end, T):
            picked, _edge, _i, _counted = _picks(
                segment, key, k, frontier, labor, base, at, n, num_frontier, KIND, KIND_WITHOUT, DEPENDENCY, T
            )
            picked_here += tl.sum(picked.to(tl.int64), 0)
    tl.store(labor.chunk_count + r * tl.num_programs(0) + tl.program_id(0), picked_here)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def labor_place(
    tables, labor, nodes, frontier, edges, reports, hop, num_type_ranges, num_segments,
    KIND: tl.constexpr, KIND_WITHOUT: tl.constexpr, DEPENDENCY: tl.constexpr, EXPAND_ALL: tl.constexpr,
    CHUNKS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Write the picked entries of each chunk, after those of earlier chunks."""
    follow()
    r, p = tl.program_id(1).to(tl.int64), tl.program_id(0)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    chunk = tl.arange(0, CHUNKS)
    size = tl.load(labor.chunk_count + r * CHUNKS + chunk)
    total, before = tl.sum(size, 0), tl.sum(tl.where(chunk < p, size, 0), 0)
    done = tl.load(edges.counts + hop * num_segments + r)
    if p == 0:
        finish_count(tables, edges, reports, hop, num_segments, r, done, total)
    n, begin, end = _chunk(labor.entries, hop, num_segments, r, T)
    fits = done + total <= tl.load(tables.edge_cap + (hop + 1) * num_segments + r)
    if (begin < end) & fits:
        k, key = tl.load(labor.wanted + hop * num_segments + r), labor.keys + (hop * num_segments + r) * 4
        base = tl.load(segment + t.FRONTIER_BASE)
        first, num_frontier = frontier_of(nodes.counts, hop, num_type_ranges, tl.load(segment + t.DST), EXPAND_ALL)
        to = tl.load(segment + t.EDGE_BASE) + done + before
        for at in range(begin, end, T):
            picked, edge, i, counted = _picks(
                segment, key, k, frontier, labor, base, at, n, num_frontier, KIND, KIND_WITHOUT, DEPENDENCY, T
            )
            ones = picked.to(tl.int64)
            slot = to + tl.cumsum(ones, 0) - ones
            tl.store(edges.position + slot, edge, mask=picked)
            tl.store(edges.column + slot, (first + i).to(tl.int32), mask=picked)
            if KIND == BY_SHARE:
                tl.store(labor.value + slot, counted, mask=picked)
            to += tl.sum(ones, 0)
