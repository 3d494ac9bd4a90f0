"""The frontier of a hop: the range that each node picks from, and the offset of its edges."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops import picks, weighted
from manyhop.sampling.gpu.kernels.hops.range import eligible
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.scan import exclusive_sums

PROBES = tl.constexpr(4)


@triton.jit
def measure(
    segment, v, act, k, latest, earliest,
    REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the ranges that nodes ``v`` pick from (start and length), and their numbers of edges (all int64).

    Args:
        latest, earliest: limits of time; read only if ``TIMED``, ``WINDOW``.
    """
    start, d = columns(segment, v, act)
    if TIMED:
        time = tl.load(segment + t.TIME)
        if time != 0:
            first, d = eligible(time.to(tl.pointer_type(tl.int64)) + start, d, earliest, latest, WINDOW, PROBES)
            start += first
    n = picks.count(num_positive(segment, v, act, start, d, WEIGHTED, TIMED), k, REPLACE).to(tl.int64)
    return start, d, n


@triton.jit
def columns(segment, v, act):
    """Return start and length of the columns of nodes."""
    colptr = tl.load(segment + t.COLPTR).to(tl.pointer_type(tl.int64))
    start = tl.load(colptr + v, mask=act, other=0)
    return start, tl.load(colptr + v + 1, mask=act, other=0) - start


@triton.jit
def limits(time_max, time_min, tree, act, TIMED: tl.constexpr, WINDOW: tl.constexpr):
    """Return the limits of time of trees."""
    latest, earliest = tree, tree
    if TIMED:
        latest = tl.load(time_max + tree, mask=act, other=0)
    if WINDOW:
        earliest = tl.load(time_min + tree, mask=act, other=0)
    return latest, earliest


@triton.jit
def num_positive(segment, v, act, start, d, WEIGHTED: tl.constexpr, TIMED: tl.constexpr):
    """Return how many of the ``d`` entries from ``start`` have a positive weight; ``TIMED``: in a part of a column."""
    p = d
    if WEIGHTED:
        positive = tl.load(segment + t.POSITIVE)
        if positive != 0:
            if TIMED:
                p = weighted.count_positive(tl.load(segment + t.WEIGHT).to(tl.pointer_type(tl.float64)) + start, d)
            else:
                p = tl.load(positive.to(tl.pointer_type(tl.int64)) + v, mask=act, other=0)
    return p


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments", "pitch"])
def count(
    tables, seeds, nodes, frontier, edges, sums, reports, hop, num_type_ranges, num_segments, pitch,
    EXPAND_ALL: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr, WINDOW: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """Measure the frontier; one program per ``B`` nodes of a segment."""
    follow()
    r, p = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    k = tl.load(tables.fanouts + hop * num_segments + r)
    dst, base = tl.load(segment + t.DST), tl.load(segment + t.DST_BASE)
    begin = tl.zeros([], tl.int64)
    if not EXPAND_ALL:
        begin = tl.load(nodes.counts + (hop - 1) * num_type_ranges + dst, mask=hop > 0, other=0)
    n = tl.load(nodes.counts + hop * num_type_ranges + dst) - begin
    if k == 0:
        n = n * 0
    done = tl.load(edges.counts + hop * num_segments + r)
    if (p * B < n) | (p == 0):
        i = p * B + tl.arange(0, B)
        act = i < n
        v = tl.load(nodes.ids + base + begin + i, mask=act, other=0)
        of_tree = i * 0
        if TIMED:
            of_tree = tl.load(nodes.tree + base + begin + i, mask=act, other=0).to(tl.int64)
        latest, earliest = limits(seeds.time_max, seeds.time_min, of_tree, act, TIMED, WINDOW)
        start, d, size = measure(segment, v, act, k, latest, earliest, REPLACE, WEIGHTED, TIMED, WINDOW)
        size = tl.where(act, size, 0)
        total = tl.sum(size, 0)
        _, before = exclusive_sums(sums.of_count + r * pitch, p * 0, p, total * 0, total, 128)
        at = tl.load(segment + t.FRONTIER_BASE) + i
        tl.store(frontier.start + at, start, mask=act)
        tl.store(frontier.degree + at, d, mask=act)
        tl.store(frontier.offset + at, before + tl.cumsum(size, 0) - size, mask=act)
        if p == tl.maximum(tl.cdiv(n, B) - 1, 0):
            finish_count(tables, edges, reports, hop, num_segments, r, done, before + total)


@triton.jit
def finish_count(tables, edges, reports, hop, num_segments, r, done, more):
    """Report the number of edges of a segment after a hop; drop the edges of this hop if they do not fit."""
    at = (hop + 1) * num_segments + r
    tl.store(reports.edges + at, done + more)
    if done + more > tl.load(tables.edge_cap + at):
        tl.store(reports.failed + t.EDGES_FULL, 1)
        more = more * 0
    tl.store(edges.counts + at, done + more)
