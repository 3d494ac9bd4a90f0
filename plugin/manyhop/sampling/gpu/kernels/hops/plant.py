"""The first kernel of a launch: seeds become nodes."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.count import finish_count, measure
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.hash import insert
from manyhop.sampling.gpu.kernels.primitives.random import fold
from manyhop.sampling.gpu.kernels.primitives.scan import exclusive_sums

LANES = tl.constexpr(8)  # a power of two, not below SEED_COLUMNS


@triton.jit
def _column(columns, c: tl.constexpr):
    """Return one of the columns."""
    return tl.sum(tl.where(tl.arange(0, LANES) == c, columns, 0), 0)


@triton.jit(
    do_not_specialize=[
        "num_hops", "num_type_ranges", "num_segments", "num_batches", "num_types", "pitch", "descriptor_size",
        "guessed", "num_out",
    ]
)  # fmt: skip
def plant(
    descriptor, out, tables, seeds, nodes, frontier, edges, sums, reports, hash_table, mask, num_hops, num_type_ranges,
    num_segments, num_batches, num_types, pitch, descriptor_size, guessed, num_out,
    NEXT: tl.constexpr, DISJOINT: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr,
    WINDOW: tl.constexpr, EXCLUDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Write the seeds of all type ranges, one program per ``B`` seeds of one; one more program copies the descriptor.

    The descriptor is in host memory: a read takes one or two microseconds, and reads of many programs are serialized.

    Args:
        out: memory for results, given by the host; the last kernel reads it from ``seeds.result_addresses``.
        guessed: number of seeds to read before it is known whether they follow the descriptor.
        NEXT: type_ranges are segments: count the frontier of the first hop here.
    """
    follow()
    type_range, p = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    about = tables.type_ranges + type_range * t.TYPE_RANGE_COLUMNS
    base, node_type = tl.load(about + t.NODE_BASE), tl.load(about + t.NODE_TYPE)
    of_range = descriptor + t.BATCHES + num_batches * t.BATCH_COLUMNS + type_range * t.SEED_COLUMNS
    i = p * B + tl.arange(0, B)
    last = tl.num_programs(0) - 1
    behind = tl.load(descriptor + descriptor_size + i, mask=(p < last) & (i < guessed), other=0)
    lane = tl.arange(0, LANES)
    columns = tl.load(of_range + lane, mask=lane < t.SEED_COLUMNS, other=0)
    stamp = tl.load(descriptor + t.STAMP)
    n, begin = _column(columns, t.NUM_SEEDS), _column(columns, t.FIRST_SEED)
    given = _column(columns, t.SEEDS)
    if (p < last) & ((p * B < n) | (p == 0)):
        act = i < n
        elsewhere = (guessed == 0) | (given != (descriptor + descriptor_size).to(tl.int64))
        node = tl.load(given.to(tl.pointer_type(tl.int64)) + i, mask=act & elsewhere, other=0)
        node = tl.where(elsewhere, node, behind)
        good = act & (node >= 0) & (node < tl.load(about + t.NUM_NODES))
        if tl.max((act & (good == 0)).to(tl.int32), 0) > 0:
            tl.store(reports.failed + t.BAD_SEED, 1)
        node = tl.where(good, node, 0)
        tl.store(nodes.ids + base + i, node, mask=act)
        scope = tl.zeros_like(i) + type_range
        if DISJOINT:
            tl.store(nodes.tree + base + i, (begin + i).to(tl.int32), mask=act)
            scope = (begin + i) * num_types + node_type
        latest, earliest = i, i
        if TIMED:
            latest = tl.load(_column(columns, t.TIME_MAX).to(tl.pointer_type(tl.int64)) + i, mask=act, other=0)
            tl.store(seeds.time_max + begin + i, latest, mask=act)
        if WINDOW:
            earliest = tl.load(_column(columns, t.TIME_MIN).to(tl.pointer_type(tl.int64)) + i, mask=act, other=0)
            tl.store(seeds.time_min + begin + i, earliest, mask=act)
        node_bits, pos_bits, key_bits = tl.load(tables.bits), tl.load(tables.bits + 1), tl.load(tables.bits + 2)
        insert(
            hash_table, mask, stamp, (scope << node_bits) | node, i, good, pos_bits, key_bits,
            reports.failed + t.TABLE_FULL,
        )  # fmt: skip
        if NEXT:
            segment = tables.segments + type_range * t.SEGMENT_COLUMNS
            k = tl.load(tables.fanouts + type_range)
            start, d, size = measure(segment, node, good, k, latest, earliest, REPLACE, WEIGHTED, TIMED, WINDOW)
            size = tl.where(good, size, 0)
            total = tl.sum(size, 0)
            _, before = exclusive_sums(sums.of_count + type_range * pitch, p * 0, p, total * 0, total, 128)
            at = tl.load(segment + t.FRONTIER_BASE) + i
            tl.store(frontier.start + at, start, mask=act)
            tl.store(frontier.degree + at, d, mask=act)
            tl.store(frontier.offset + at, before + tl.cumsum(size, 0) - size, mask=act)
            if p == tl.maximum(tl.cdiv(n, B) - 1, 0):
                finish_count(tables, edges, reports, 0, num_segments, type_range, p * 0, before + total)

    if p == last:
        batch = tl.load(about + t.OF_BATCH)
        trees = descriptor + t.BATCHES + batch * t.BATCH_COLUMNS + t.FIRST_TREE
        tl.store(seeds.first_tree + batch, tl.load(trees))
        for hop in range(num_hops + 1):
            tl.store(nodes.counts + hop * num_type_ranges + type_range, n)
            tl.store(reports.nodes + hop * num_type_ranges + type_range, n)
        if type_range == 0:
            tl.store(seeds.stamps, stamp)
            for at in range(0, num_out, B):
                j = at + tl.arange(0, B)
                tl.store(seeds.result_addresses + j, tl.load(out + j, mask=j < num_out, other=0), mask=j < num_out)
            _keys(descriptor, tables, seeds, edges, reports, num_hops, num_segments, DISJOINT, B)
            if EXCLUDE:
                excluded_ids = descriptor + t.BATCHES + num_batches * t.BATCH_COLUMNS + num_type_ranges * t.SEED_COLUMNS
                for at in range(0, 2 * num_segments, B):
                    j = at + tl.arange(0, B)
                    of_row = tl.load(excluded_ids + j, mask=j < 2 * num_segments, other=0)
                    tl.store(seeds.excluded + j, of_row, mask=j < 2 * num_segments)
        for first in range(type_range, num_segments, num_type_ranges):
            for at in range(0, pitch, B):
                j = at + tl.arange(0, B)
                tl.store(sums.of_emit + first * pitch + j, tl.zeros([B], tl.int64), mask=j < pitch)


@triton.jit
def _keys(descriptor, tables, seeds, edges, reports, num_hops, num_segments, DISJOINT: tl.constexpr, B: tl.constexpr):
    """The keys of all hops and segments, up to the edge type (or up to the tree, which is 0 if not disjoint)."""
    for at in range(0, num_segments, B):
        r = at + tl.arange(0, B).to(tl.int64)
        act = r < num_segments
        about = tables.segments + r * t.SEGMENT_COLUMNS
        batch = tl.load(about + t.BATCH, mask=act, other=0)
        of_batch = descriptor + t.BATCHES + batch * t.BATCH_COLUMNS
        edge_type = tl.load(about + t.EDGE_TYPE, mask=act, other=0)
        key = fold(tl.zeros([B], tl.uint64), tl.zeros([B], tl.int64))  # of the use "neighbours"
        key = fold(key, tl.load(of_batch + t.SEED_KEY, mask=act, other=0))
        key = fold(key, tl.load(of_batch + t.EPOCH_KEY, mask=act, other=0))
        key = fold(key, tl.load(of_batch + t.BATCH_KEY, mask=act, other=0))
        for hop in range(num_hops):
            of_hop = fold(fold(key, tl.zeros([B], tl.int64) + hop), edge_type)
            if not DISJOINT:
                of_hop = fold(of_hop, tl.zeros([B], tl.int64))
            tl.store(seeds.keys + hop * num_segments + r, of_hop.to(tl.int64, bitcast=True), mask=act)
        tl.store(edges.counts + r, tl.zeros([B], tl.int64), mask=act)
        tl.store(reports.edges + r, tl.zeros([B], tl.int64), mask=act)
