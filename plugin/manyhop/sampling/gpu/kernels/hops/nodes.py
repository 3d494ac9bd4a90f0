"""Nodes of a hop: seeds and neighbours enter the hash table, and get their local ids."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.edges import finish_count, measure
from manyhop.sampling.gpu.kernels.primitives import (
    KNOWN,
    SLOT,
    clear_states,
    exclusive_sums,
    first_not_below,
    fold,
    insert,
    load_ids,
)
from manyhop.sampling.gpu.kernels.tables import follow

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
    """Store the keys of all hops and segments, up to the edge type (or up to the tree, 0 if not disjoint)."""
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


@triton.jit(do_not_specialize=["hop", "num_segments", "num_types", "pitch"])
def enter(
    tables, seeds, nodes, edges, sums, reports, hash_table, mask, hop, num_segments, num_types, pitch,
    DISJOINT: tl.constexpr, EXCLUDE: tl.constexpr, FETCHED: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Insert the neighbours of a segment; programs loop over tiles of ``T`` edges.

    Args:
        FETCHED: ``edges.slots`` has the neighbours of tables with windows, from ``fetch``.
    """
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    clear_states(sums.of_count, pitch, 128)
    clear_states(sums.of_emit, pitch, 128)
    if EXCLUDE:
        clear_states(sums.of_drop, pitch, 128)
    done = tl.load(edges.counts + hop * num_segments + r)
    n = tl.load(edges.counts + (hop + 1) * num_segments + r) - done
    if n > 0:
        node_bits, pos_bits, key_bits = tl.load(tables.bits), tl.load(tables.bits + 1), tl.load(tables.bits + 2)
        stamp = tl.load(seeds.stamps)
        unassigned = tl.full([], 1, tl.int64) << (pos_bits - 1)
        source, wide = tl.load(segment + t.ROW), tl.load(segment + t.ROW_WIDE)
        base = tl.load(segment + t.EDGE_BASE) + done
        for first in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = first + tl.arange(0, T).to(tl.int64)
            act = i < n
            to = base + i
            if FETCHED:
                known = act & (tl.load(segment + t.WINDOWS) > 0)
                unknown = act & (tl.load(segment + t.WINDOWS) == 0)
                u = load_ids(source, wide, tl.load(edges.position + to, mask=unknown, other=0), unknown)
                u = tl.where(known, tl.load(edges.slots + to, mask=known, other=0).to(tl.int64), u)
            else:
                u = load_ids(source, wide, tl.load(edges.position + to, mask=act, other=0), act)
            scope = tl.zeros_like(u) + tl.load(segment + t.SRC)
            if DISJOINT:
                dst = tl.load(segment + t.DST_BASE) + tl.load(edges.column + to, mask=act, other=0)
                of_tree = tl.load(nodes.tree + dst, mask=act, other=0).to(tl.int64)
                scope = of_tree * num_types + tl.load(segment + t.SRC_TYPE)
            slot = insert(
                hash_table, mask, stamp, (scope << node_bits) | u, unassigned | to, act, pos_bits, key_bits,
                reports.failed + t.TABLE_FULL,
            )  # fmt: skip
            tl.store(edges.slots + to, slot, mask=act)


@triton.jit(do_not_specialize=["hop", "num_segments", "pitch"])
def drop(
    tables, seeds, edges, sums, reports, hop, num_segments, pitch,
    WEIGHTS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Compact the edges of a segment in order; one program per ``T`` edges.

    A program writes only where earlier programs have read: they publish how many edges they keep after reading.

    Args:
        WEIGHTS: edges have weights.
    """
    follow()
    r, p = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    n = tl.load(edges.counts + (hop + 1) * num_segments + r) - done
    ids = tl.load(seeds.excluded + 2 * r).to(tl.pointer_type(tl.int64))
    num_ids = tl.load(seeds.excluded + 2 * r + 1)
    if (p == 0) & ((n == 0) | (num_ids == 0)):
        tl.store(reports.kept + (hop + 1) * num_segments + r, done + n)
    if (p * T < n) & (num_ids > 0):
        i = p * T + tl.arange(0, T)
        act = i < n
        base = tl.load(segment + t.EDGE_BASE) + done
        edge = tl.load(edges.position + base + i, mask=act, other=0)
        column = tl.load(edges.column + base + i, mask=act, other=0)
        edge_id = edge
        perm, wide = tl.load(segment + t.PERM), tl.load(segment + t.PERM_WIDE)
        if perm != 0:
            edge_id = load_ids(perm, wide, edge, act)
        end = tl.where(act, tl.zeros_like(i) + num_ids, 0)
        at = first_not_below(ids, tl.zeros_like(i), end, edge_id)
        hit = (at < end) & (tl.load(ids + at, mask=at < end, other=0) == edge_id)
        read = column >= 0
        if WEIGHTS:
            counts = tl.load(edges.weight + base + i, mask=act, other=1.0)
            read = read & (counts >= 0)
        left = (act & (hit == 0) & read).to(tl.int64)  # `read` is always true: it makes the sum depend on all reads
        total = tl.sum(left, 0)
        _, before = exclusive_sums(sums.of_drop + r * pitch, p * 0, p, total * 0, total, 128)
        to = base + before + tl.cumsum(left, 0) - left
        tl.store(edges.position + to, edge, mask=left > 0)
        tl.store(edges.column + to, column, mask=left > 0)
        if WEIGHTS:
            tl.store(edges.weight + to, counts, mask=left > 0)
        if p == tl.cdiv(n, T) - 1:
            tl.store(edges.counts + (hop + 1) * num_segments + r, done + before + total)
            tl.store(reports.kept + (hop + 1) * num_segments + r, done + before + total)


SHARING = tl.constexpr(4)  # batches per allocation: one per batch would cost the host as much as all its other work
SUMMED = tl.constexpr(32)


@triton.jit
def _sum(numbers, begin, end):
    """Return the sum of ``numbers[begin:end]``."""
    total = tl.zeros([], tl.int64)
    for at in range(begin, end, SUMMED):
        i = at + tl.arange(0, SUMMED)
        total += tl.sum(tl.load(numbers + i, mask=i < end, other=0), 0)
    return total


@triton.jit(do_not_specialize=["num_hops", "num_type_ranges", "num_segments", "num_batches"])
def finish(
    out, tables, seeds, nodes, edges, hash_table, num_hops, num_type_ranges, num_segments, num_batches,
    DISJOINT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Write segments, then type ranges; programs loop over tiles of ``T`` edges (nodes).

    Args:
        out: int64 addresses of allocations for ``SHARING`` batches each. A batch has its rows (row, column, edge id),
            then its type ranges (node, tree), contiguously.
    """
    follow()
    r = tl.program_id(1).to(tl.int64)
    unassigned = tl.full([], 1, tl.int64) << (tl.load(tables.bits + 1) - 1)
    num_edges, num_nodes = edges.counts + num_hops * num_segments, nodes.counts + num_hops * num_type_ranges
    edge_types, node_types = num_segments // num_batches, num_type_ranges // num_batches
    if r < num_segments:
        batch = tl.program_id(1) // edge_types
        last_segment, last_range = tl.program_id(1), batch * node_types
    else:
        batch = (tl.program_id(1) - num_segments) // node_types
        last_segment, last_range = (batch + 1) * edge_types, tl.program_id(1) - num_segments
    memory = tl.load(out + batch // SHARING).to(tl.pointer_type(tl.int64))
    sharing = batch // SHARING * SHARING  # first batch of the allocation
    result = memory + 3 * _sum(num_edges, sharing * edge_types, last_segment)
    result += (2 if DISJOINT else 1) * _sum(num_nodes, sharing * node_types, last_range)
    if r < num_segments:
        segment = tables.segments + r * t.SEGMENT_COLUMNS
        n = tl.load(num_edges + r)
        base = tl.load(segment + t.EDGE_BASE)
        perm, wide, windows = tl.load(segment + t.PERM), tl.load(segment + t.PERM_WIDE), tl.load(segment + t.WINDOWS)
        out_row, out_column, out_id = result, result + n, result + 2 * n
        for at in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = at + tl.arange(0, T).to(tl.int64)
            act = i < n
            slot = tl.load(edges.slots + base + i, mask=act, other=0)
            edge = tl.load(edges.position + base + i, mask=act, other=0)
            column = tl.load(edges.column + base + i, mask=act, other=0)
            found = (slot & SLOT).to(tl.int64)
            unresolved = act & ((slot & KNOWN) == 0)
            entry = tl.load(hash_table + found, mask=unresolved, other=0)
            first = unresolved & ((entry & unassigned) != 0)  # a node of the last hop: its first edge has the local id
            brought = tl.load(edges.slots + (entry & (unassigned - 1)), mask=first, other=0) & SLOT
            found = tl.where(unresolved, tl.where(first, brought.to(tl.int64), entry & (unassigned - 1)), found)
            if (perm != 0) & (windows == 0):
                edge = load_ids(perm, wide, edge, act)
            tl.store(out_row + i, found, mask=act)
            tl.store(out_column + i, column.to(tl.int64), mask=act)
            tl.store(out_id + i, edge, mask=act)
        if (perm != 0) & (windows > 0):
            window_bits = tl.load(tables.bits + 3)
            for window in range(0, windows):
                for at in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
                    i = at + tl.arange(0, T).to(tl.int64)
                    edge = tl.load(edges.position + base + i, mask=i < n, other=0)
                    inside = (i < n) & ((edge >> window_bits) == window)
                    tl.store(out_id + i, load_ids(perm, wide, edge, inside), mask=inside)
    else:
        q = r - num_segments
        n = tl.load(num_nodes + q)
        about = tables.type_ranges + q * t.TYPE_RANGE_COLUMNS
        base = tl.load(about + t.NODE_BASE)
        out_node, out_tree = result, result + n
        for at in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = at + tl.arange(0, T).to(tl.int64)
            act = i < n
            tl.store(out_node + i, tl.load(nodes.ids + base + i, mask=act, other=0), mask=act)
            if DISJOINT:
                of_tree = tl.load(nodes.tree + base + i, mask=act, other=0).to(tl.int64)
                tl.store(out_tree + i, of_tree - tl.load(seeds.first_tree + tl.load(about + t.OF_BATCH)), mask=act)
