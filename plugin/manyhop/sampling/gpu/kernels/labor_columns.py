"""LABOR: parameters of columns before picking, and weights of edges after picking.

Each kernel is launched once per class of column lengths: a program has ``B`` short columns, in rows of ``W`` = SHORT
entries, or ``B`` medium ones, in rows of MEDIUM, or one long column, in blocks of ``W`` = BLOCK.
Launch them without fused multiply-add (``enable_fp_fusion=False``): results are exact to the last bit.
"""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.edges import frontier_of
from manyhop.sampling.gpu.kernels.labor import SMALLEST_BY_WEIGHT, rank_key, share, variate
from manyhop.sampling.gpu.kernels.primitives import first_not_below, load_ids
from manyhop.sampling.gpu.kernels.tables import follow

SHORT = tl.constexpr(32)  # entries of a short column
MEDIUM = tl.constexpr(256)
BLOCK = tl.constexpr(1024)  # numbers that are added as a tree; part of the contract
ROUNDS = tl.constexpr(32)  # part of the contract


@triton.jit
def _halve(x):
    """Add the second half of each row to the first: ``[B, W]`` to ``[B, W / 2]``."""
    return tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), 1)


@triton.jit
def tree_sum(x):
    """Return the sums of the rows of ``x [B, W]``: add halves until one number is left."""
    if x.shape[1] == BLOCK:
        x = _halve(_halve(x))
    if x.shape[1] == MEDIUM:
        x = _halve(_halve(_halve(x)))
    return tl.reshape(_halve(_halve(_halve(_halve(_halve(x))))), [x.shape[0]])


@triton.jit
def _mine(at, n, degree, B: tl.constexpr, LONGER: tl.constexpr, W: tl.constexpr):
    """Select from ``B`` frontier nodes those of this launch: degree above LONGER and, unless rows are blocks, up to W.

    Return their indices, the selection, their degrees, and the largest degree.
    """
    i = at + tl.arange(0, B).to(tl.int64)
    d = tl.load(degree + i, mask=i < n, other=0)
    mine = (i < n) & (d > LONGER) & ((d <= W) | (W == BLOCK))
    d = tl.where(mine, d, 0)
    return i, mine, d, tl.max(d, 0)


@triton.jit
def _weights(column, begin, d, W: tl.constexpr):
    """Load a block of the weights of columns, 0 past their ends (float64 ``[B, W]``)."""
    q = begin + tl.arange(0, W)[None, :]
    return tl.load(column[:, None] + q, mask=q < d[:, None], other=0.0)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def labor_scale(
    tables, labor, nodes, frontier, hop, num_type_ranges, num_segments,
    EXPAND_ALL: tl.constexpr, B: tl.constexpr, LONGER: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Compute the sum of weights of each column, and the scale of their probabilities: infinite if all are picked."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    k, weight = tl.load(labor.wanted + hop * num_segments + r), tl.load(segment + t.WEIGHT)
    if (k != 0) & (weight != 0):
        base = tl.load(segment + t.FRONTIER_BASE)
        _first, n = frontier_of(nodes.counts, hop, num_type_ranges, tl.load(segment + t.DST), EXPAND_ALL)
        for at in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
            i, mine, d, longest = _mine(at, n, frontier.degree + base, B, LONGER, W)
            if longest > 0:
                start = tl.load(frontier.start + base + i, mask=mine, other=0)
                column = weight.to(tl.pointer_type(tl.float64)) + start
                total, positive = tl.zeros([B], tl.float64), tl.zeros([B], tl.int64)
                for begin in range(0, longest, W):
                    w = _weights(column, begin, d, W)
                    total += tree_sum(w)
                    positive += tl.sum((w > 0).to(tl.int64), 1)
                # Columns whose entries are all picked, or cannot be picked, are done.
                open_ = mine & (k > 0) & (positive > k)
                spare = (positive - k).to(tl.float64) / (tl.zeros([B], tl.float64) + k.to(tl.float64)
                    * tl.maximum(positive, 1).to(tl.float64))  # fmt: skip
                c, before, turn = tl.zeros([B], tl.float64), positive * 0, 0
                while tl.max(open_.to(tl.int32), 0) > 0:
                    linear, square = tl.zeros([B], tl.float64), tl.zeros([B], tl.float64)
                    uncertain = positive * 0
                    for begin in range(0, longest, W):
                        a = share(_weights(column, begin, d, W), total[:, None])
                        counts_here = (a > 0) & ((turn == 0) | (c[:, None] * a < 1.0))
                        squared = a * a
                        linear += tree_sum(tl.where(counts_here, squared / tl.where(counts_here, a, 1.0), 0.0))
                        square += tree_sum(tl.where(counts_here, squared, 0.0))
                        uncertain += tl.sum(counts_here.to(tl.int64), 1)
                    ends = (turn > 0) & ((uncertain == 0) | (uncertain == before))
                    open_ = open_ & (ends == 0) & (turn < ROUNDS)
                    c = tl.where(open_, linear / tl.where(open_, spare + square, 1.0), c)
                    before = tl.where(open_, uncertain, before)
                    turn += 1
                c = tl.where((k > 0) & (positive > k), c, float("inf"))
                tl.store(labor.param_a.to(tl.pointer_type(tl.float64)) + base + i, total, mask=mine)
                tl.store(labor.param_b.to(tl.pointer_type(tl.float64)) + base + i, c, mask=mine)


@triton.jit
def _ranked(segment, key, start, begin, d, W: tl.constexpr, KIND: tl.constexpr, DEPENDENCY: tl.constexpr):
    """Return a block of the keys of columns (uint64 ``[B, W]``), and which of them are eligible."""
    q = begin + tl.arange(0, W)[None, :].to(tl.int64)
    inside = q < d[:, None]
    edge = start[:, None] + q
    r = variate(key, load_ids(tl.load(segment + t.ROW), tl.load(segment + t.ROW_WIDE), edge, inside), DEPENDENCY)
    weight = tl.zeros_like(edge).to(tl.float64) + 1.0
    if KIND == SMALLEST_BY_WEIGHT:
        address = tl.load(segment + t.WEIGHT)
        if address != 0:
            weight = tl.load(address.to(tl.pointer_type(tl.float64)) + edge, mask=inside, other=0.0)
            r = rank_key(r, weight, KIND)
    return r, inside & (weight > 0), q


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def labor_rank(
    tables, labor, nodes, frontier, hop, num_type_ranges, num_segments,
    KIND: tl.constexpr, DEPENDENCY: tl.constexpr, EXPAND_ALL: tl.constexpr, B: tl.constexpr, LONGER: tl.constexpr,
    W: tl.constexpr,
):  # fmt: skip
    """Find the smallest keys of each column: those below a limit, and those equal to it up to a last entry.

    If all entries are picked, limit and last entry are the largest.
    """
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    k, key = tl.load(labor.wanted + hop * num_segments + r), labor.keys + (hop * num_segments + r) * 4
    if k != 0:
        base = tl.load(segment + t.FRONTIER_BASE)
        _first, n = frontier_of(nodes.counts, hop, num_type_ranges, tl.load(segment + t.DST), EXPAND_ALL)
        for at in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
            i, mine, d, longest = _mine(at, n, frontier.degree + base, B, LONGER, W)
            if longest > 0:
                start = tl.load(frontier.start + base + i, mask=mine, other=0)
                positive = tl.zeros([B], tl.int64)
                for begin in range(0, longest, W):
                    _, able, _ = _ranked(segment, key, start, begin, d, W, KIND, DEPENDENCY)
                    positive += tl.sum(able.to(tl.int64), 1)
                chooses = mine & (k > 0) & (positive > k)
                # Find, bit by bit, a number with k keys below it or, if ties prevent that, the k-th key.
                limit, bit, todo = tl.zeros([B], tl.uint64), 63, chooses
                while (bit >= 0) & (tl.max(todo.to(tl.int32), 0) > 0):
                    higher = limit | (tl.full([B], 1, tl.uint64) << bit)
                    below = tl.zeros([B], tl.int64)
                    for begin in range(0, longest, W):
                        own, able, _ = _ranked(segment, key, start, begin, d, W, KIND, DEPENDENCY)
                        below += tl.sum((able & (own < higher[:, None])).to(tl.int64), 1)
                    limit = tl.where(todo & (below <= k), higher, limit)
                    todo = todo & (below != k)
                    bit -= 1
                smaller = tl.zeros([B], tl.int64)
                for begin in range(0, longest, W):
                    own, able, _ = _ranked(segment, key, start, begin, d, W, KIND, DEPENDENCY)
                    smaller += tl.sum((able & (own < limit[:, None])).to(tl.int64), 1)
                left, last = k - smaller, tl.zeros([B], tl.int64) - 1
                for begin in range(0, longest, W):
                    own, able, q = _ranked(segment, key, start, begin, d, W, KIND, DEPENDENCY)
                    equal = able & (own == limit[:, None])
                    rank = tl.cumsum(equal.to(tl.int64), 1)
                    taken = equal & (rank <= left[:, None])
                    last = tl.maximum(last, tl.max(tl.where(taken, q, -1), 1))
                    left -= tl.sum(taken.to(tl.int64), 1)
                limit = tl.where(chooses, limit.to(tl.int64, bitcast=True), -1)
                last = tl.where(chooses, last, d)
                tl.store(labor.param_a + base + i, limit, mask=mine)
                tl.store(labor.param_b + base + i, last, mask=mine)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def labor_weigh(
    tables, labor, nodes, edges, hop, num_type_ranges, num_segments,
    EXPAND_ALL: tl.constexpr, B: tl.constexpr, LONGER: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Compute the weights of picked edges in the mean over the edges of a node (float32)."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    num_edges = tl.load(edges.counts + (hop + 1) * num_segments + r) - done
    weighted = tl.load(segment + t.WEIGHT) != 0
    if num_edges > 0:
        edge_base = tl.load(segment + t.EDGE_BASE) + done
        local, n = frontier_of(nodes.counts, hop, num_type_ranges, tl.load(segment + t.DST), EXPAND_ALL)
        x = labor.value + edge_base
        for at in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
            i = at + tl.arange(0, B).to(tl.int64)
            zero = tl.zeros([B], tl.int64)
            first = first_not_below(edges.column + edge_base, zero, tl.where(i < n, zero + num_edges, 0), local + i)
            end = first_not_below(edges.column + edge_base, first, tl.where(i < n, zero + num_edges, 0), local + i + 1)
            m = end - first
            m = tl.where((m > LONGER) & ((m <= W) | (W == BLOCK)), m, 0)
            longest = tl.max(m, 0)
            total = tl.zeros([B], tl.float64)
            for begin in range(0, longest, W):
                j = begin + tl.arange(0, W)[None, :]
                total += tree_sum(tl.load(x + first[:, None] + j, mask=weighted & (j < m[:, None]), other=0.0))
            for begin in range(0, longest, W):
                j = begin + tl.arange(0, W)[None, :]
                inside = j < m[:, None]
                own = tl.load(x + first[:, None] + j, mask=weighted & inside, other=0.0)
                mean = own * m.to(tl.float64)[:, None] / tl.where(total > 0, total, 1.0)[:, None]
                counted = tl.where(weighted, mean, 1.0)
                tl.store(edges.weight + edge_base + first[:, None] + j, counted.to(tl.float32), mask=inside)
