"""Endpoints of seed edges: the given ones and those of negatives, then their sorted unique ids.

A batch has a row of the int64 table ``batches``; the endpoints of one type of a batch have one of the table ``rows``.
"""

import triton
import triton.language as tl

from .random import below, draw, unit
from .search import first_above, first_not_below

# Columns of `batches`.
NUM_POS = tl.constexpr(0)
NUM_NEG = tl.constexpr(1)
FIRST = tl.constexpr(2)  # where the batch begins in the arrays of all seed edges
SRC_KEY = tl.constexpr(3)
DST_KEY = tl.constexpr(4)
SRC_AT = tl.constexpr(5)  # where its sources go
DST_AT = tl.constexpr(6)
SRC_LOCAL = tl.constexpr(7)  # number of endpoints of the same type before its sources: 0
DST_LOCAL = tl.constexpr(8)
BATCH_COLUMNS = tl.constexpr(9)

# Columns of `rows`.
LENGTH = tl.constexpr(0)
DRAWN_FROM = tl.constexpr(1)  # the first endpoint that is a drawn destination of a triplet; else the length
ROW_POS = tl.constexpr(2)  # seed edges of the batch
ROW_COLUMNS = tl.constexpr(3)

# Entries of `state`.
NUM_BAD = tl.constexpr(0)  # ids that are no nodes
NUM_LEFT = tl.constexpr(1)  # negatives that are true edges after all attempts
STATE_COUNTS = tl.constexpr(2)  # unique endpoints of each row

ATTEMPTS = tl.constexpr(16)


@triton.jit
def _eligible(limit, act, time, num_nodes, first_positive, TIMES: tl.constexpr):
    """How many candidates, from the first on, a draw chooses from."""
    n = tl.zeros_like(limit) + num_nodes
    if TIMES:
        n = first_above(time, tl.zeros_like(limit), tl.where(act, n, 0), limit)
        n = tl.maximum(n, first_positive + 1)
    return n


@triton.jit
def _draw(key, index, n, act, node, cumw, last_positive, SORTED: tl.constexpr, WEIGHTED: tl.constexpr):
    """A node for every draw number, among the first ``n`` candidates."""
    r = draw(key, index)
    if WEIGHTED:
        target = unit(r) * tl.load(cumw + n - 1, mask=act, other=0.0)
        at = first_above(cumw, tl.zeros_like(n), tl.where(act, n, 0), target)
        at = tl.minimum(at, tl.load(last_positive + n - 1, mask=act, other=0))
    else:
        at = below(r, n).to(tl.int64)
    if SORTED:
        at = tl.load(node + at, mask=act, other=0)
    return at


@triton.jit
def _is_edge(src, dst, act, begin, destination):
    """Whether there is an edge, from the sorted destinations of all sources."""
    low = tl.load(begin + src, mask=act, other=0)
    end = tl.load(begin + src + 1, mask=act, other=0)
    at = first_not_below(destination, low, end, dst)
    inside = act & (at < end)
    return inside & (tl.load(destination + at, mask=inside, other=0) == dst)


@triton.jit(do_not_specialize=["num_src", "num_dst", "src_first", "dst_first"])
def draw_endpoints(
    batches, src, dst, time_max, time_min, out, out_max, out_min, index, failed, failed_pitch, state,
    src_node, src_time, src_cumw, src_last, num_src, src_first,
    dst_node, dst_time, dst_cumw, dst_last, num_dst, dst_first,
    begin, destination,
    BINARY: tl.constexpr, TRIPLET: tl.constexpr, EXCLUDE: tl.constexpr,
    LIMITS: tl.constexpr, WINDOW: tl.constexpr, DISJOINT: tl.constexpr,
    SRC_SORTED: tl.constexpr, SRC_WEIGHTED: tl.constexpr, DST_SORTED: tl.constexpr, DST_WEIGHTED: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Write the endpoints of all batches, one program for ``T`` of the pairs of a batch; negatives are drawn here.

    Args:
        src, dst, time_max, time_min: seed edges of all batches, behind each other.
        out: endpoints; out_max, out_min: their times (only with ``LIMITS``, ``WINDOW``, and ``DISJOINT``).
        index: with ``DISJOINT``: where each endpoint lies among the nodes of the sample.
        failed: ``[num_batches, failed_pitch] int8``: whether a negative is a true edge after all attempts.
    """
    batch = batches + tl.program_id(1) * BATCH_COLUMNS
    num_pos, num_neg = tl.load(batch + NUM_POS), tl.load(batch + NUM_NEG)
    i = tl.program_id(0) * T + tl.arange(0, T).to(tl.int64)
    given = i < num_pos
    drawn = (i >= num_pos) & (i < num_pos + num_neg)
    j = tl.where(drawn, i - num_pos, 0)
    seed_edge = tl.load(batch + FIRST) + tl.where(drawn, j % tl.maximum(num_pos, 1), i)
    act = given | drawn
    s = tl.load(src + seed_edge, mask=act, other=0)
    d = tl.load(dst + seed_edge, mask=given, other=0)
    bad = act & ((s < 0) | (s >= num_src) | (d < 0) | (d >= num_dst))
    if tl.max(bad.to(tl.int32), 0) > 0:
        tl.atomic_add(state + NUM_BAD, tl.sum(bad.to(tl.int64), 0))
    s = tl.where(bad, 0, s)
    d = tl.where(bad, 0, d)
    limit = tl.zeros_like(i)
    if LIMITS:
        limit = tl.load(time_max + seed_edge, mask=act, other=0)

    if BINARY | TRIPLET:
        src_key = tl.load(batch + SRC_KEY).to(tl.uint64, bitcast=True)
        dst_key = tl.load(batch + DST_KEY).to(tl.uint64, bitcast=True)
        n_dst = _eligible(limit, drawn, dst_time, num_dst, dst_first, LIMITS & DST_SORTED)
        n_src = n_dst
        if BINARY:
            n_src = _eligible(limit, drawn, src_time, num_src, src_first, LIMITS & SRC_SORTED)
        todo = drawn
        attempt = 0
        while (attempt < ATTEMPTS) & (tl.max(todo.to(tl.int32), 0) > 0):
            number = j + attempt * num_neg
            if BINARY:
                at = _draw(src_key, number, n_src, todo, src_node, src_cumw, src_last, SRC_SORTED, SRC_WEIGHTED)
                s = tl.where(todo, at, s)
            at = _draw(dst_key, number, n_dst, todo, dst_node, dst_cumw, dst_last, DST_SORTED, DST_WEIGHTED)
            d = tl.where(todo, at, d)
            if EXCLUDE:
                todo = todo & _is_edge(s, d, todo, begin, destination)
            if not EXCLUDE:
                todo = todo & (i < 0)
            attempt += 1
        if EXCLUDE:
            tl.store(failed + tl.program_id(1) * failed_pitch + j, todo.to(tl.int8), mask=drawn)
            if tl.max(todo.to(tl.int32), 0) > 0:
                tl.atomic_add(state + NUM_LEFT, tl.sum(todo.to(tl.int64), 0))

    has_src = given
    if BINARY:
        has_src = act
    src_at, dst_at = tl.load(batch + SRC_AT) + i, tl.load(batch + DST_AT) + i
    tl.store(out + src_at, s, mask=has_src)
    tl.store(out + dst_at, d, mask=act)
    if DISJOINT:
        if LIMITS:
            tl.store(out_max + src_at, limit, mask=has_src)
            tl.store(out_max + dst_at, limit, mask=act)
        if WINDOW:
            earliest = tl.load(time_min + seed_edge, mask=act, other=0)
            tl.store(out_min + src_at, earliest, mask=has_src)
            tl.store(out_min + dst_at, earliest, mask=act)
        tl.store(index + src_at, tl.load(batch + SRC_LOCAL) + i, mask=has_src)
        dst_to = dst_at
        if TRIPLET:  # [num_pos, amount]
            amount = num_neg // tl.maximum(num_pos, 1)
            transposed = (j % tl.maximum(num_pos, 1)) * amount + j // tl.maximum(num_pos, 1)
            dst_to = tl.where(drawn, dst_at - j + transposed, dst_at)
        tl.store(index + dst_to, tl.load(batch + DST_LOCAL) + i, mask=act)


@triton.jit
def number_endpoints(rows, pitch, value, order, unique, index, state, TRIPLET: tl.constexpr, T: tl.constexpr):
    """The unique endpoints of a sorted row, and where each endpoint lies among them; one program for a row.

    Args:
        value, order: ``[num_rows, pitch]``: the sorted endpoints, and the places from which they came.
    """
    row = tl.program_id(0)
    start = row.to(tl.int64) * pitch
    length = tl.load(rows + row * ROW_COLUMNS + LENGTH)
    drawn_from = tl.load(rows + row * ROW_COLUMNS + DRAWN_FROM)
    num_pos = tl.maximum(tl.load(rows + row * ROW_COLUMNS + ROW_POS), 1)
    count = tl.zeros([], tl.int64)
    tile = tl.zeros([], tl.int64)
    while tile < length:
        x = tile + tl.arange(0, T)
        act = x < length
        v = tl.load(value + start + x, mask=act, other=0)
        before = tl.load(value + start + x - 1, mask=act & (x > 0), other=-1)
        first = (act & (v != before)).to(tl.int64)
        local = count + tl.cumsum(first, 0) - 1
        tl.store(unique + start + local, v, mask=first > 0)
        to = tl.load(order + start + x, mask=act, other=0)
        if TRIPLET:  # [num_pos, amount]
            j = to - drawn_from
            amount = (length - drawn_from) // num_pos
            to = tl.where(j >= 0, drawn_from + (j % num_pos) * amount + j // num_pos, to)
        tl.store(index + start + to, local, mask=act)
        count += tl.sum(first, 0)
        tile += T
    tl.store(state + STATE_COUNTS + row, count)
