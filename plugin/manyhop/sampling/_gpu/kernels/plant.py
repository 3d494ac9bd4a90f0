"""The first kernel of a launch: seeds become nodes; where that can be, their edges are taken, too."""

import triton
import triton.language as tl

from . import tables as t
from .count import finish_count, measure
from .hash import find, insert
from .keys import batch_key
from .launch import follow
from .random import fold
from .scan import announce, complete, forget
from .take import enter_taken, neighbors

COMPARED = tl.constexpr(64)  # seeds at a time


@triton.jit(do_not_specialize=["num_hops", "num_regions", "num_rows", "num_batches", "num_types", "pitch"])
def plant(
    head, regions, rows, nodes, tree, time_max, time_min, first_tree, excluded, keys, stamps, table, mask, bits,
    counts, told, fanouts, edges, edges_told, edge_cap, count_state, emit_state, item_start, item_d, item_off,
    position, column, slots, failed, num_hops, num_regions, num_rows, num_batches, num_types, pitch,
    NEXT: tl.constexpr, TAKE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, LAST: tl.constexpr,
    DISJOINT: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr,
    WINDOW: tl.constexpr, EXCLUDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Write the seeds of all regions, one program for ``B`` of a region; one more writes what the host told.

    Args:
        NEXT: regions are rows: count the items of the first hop here.
        TAKE: take the edges of the first hop (:mod:`take`), ``K`` for each item, in ``KP`` slots.
    """
    follow()
    region, p = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    for r in range(region, num_rows, num_regions):
        for turn in tl.static_range(2):
            forget(emit_state, turn * num_rows + r, pitch, p, tl.num_programs(0).to(tl.int64), B)
    about = regions + region * t.REGION_COLUMNS
    base, node_type = tl.load(about + t.NODE_BASE), tl.load(about + t.NODE_TYPE)
    seeds = head + t.BATCHES + num_batches * t.BATCH_COLUMNS + region * t.SEED_COLUMNS
    n = tl.load(seeds + t.NUM_SEEDS)
    begin = tl.load(seeds + t.FIRST_SEED)
    given = tl.load(seeds + t.SEEDS).to(tl.pointer_type(tl.int64))
    stamp = tl.load(head + t.STAMP)
    i = p * B + tl.arange(0, B)
    last = tl.num_programs(0) - 1
    if (p < last) & ((p * B < n) | (p == 0)):
        act = i < n
        node = tl.load(given + i, mask=act, other=0)
        good = act & (node >= 0) & (node < tl.load(about + t.NUM_NODES))
        if tl.max((act & (good == 0)).to(tl.int32), 0) > 0:
            tl.store(failed + t.BAD_SEED, 1)
        node = tl.where(good, node, 0)
        tl.store(nodes + base + i, node, mask=act)
        scope = tl.zeros_like(i) + region
        if DISJOINT:
            tl.store(tree + base + i, (begin + i).to(tl.int32), mask=act)
            scope = (begin + i) * num_types + node_type
        latest, earliest = i, i
        if TIMED:
            latest = tl.load(tl.load(seeds + t.TIME_MAX).to(tl.pointer_type(tl.int64)) + i, mask=act, other=0)
            tl.store(time_max + begin + i, latest, mask=act)
        if WINDOW:
            earliest = tl.load(tl.load(seeds + t.TIME_MIN).to(tl.pointer_type(tl.int64)) + i, mask=act, other=0)
            tl.store(time_min + begin + i, earliest, mask=act)
        node_bits, pos_bits, key_bits = tl.load(bits), tl.load(bits + 1), tl.load(bits + 2)
        name = (scope << node_bits) | node
        insert(table, mask, stamp, name, i, good, pos_bits, key_bits, failed + t.TABLE_FULL, True)
        if NEXT:
            row = rows + region * t.ROW_COLUMNS
            k = tl.load(fanouts + region)
            start, d, size = measure(row, node, good, k, latest, earliest, REPLACE, WEIGHTED, TIMED, WINDOW)
            size = tl.where(good, size, 0)
            total = tl.sum(size, 0)
            announce(count_state + region * pitch, p * 0, p, total * 0, total, TAKE)
            _, before = complete(count_state + region * pitch, p * 0, p, total * 0, total, 128, TAKE)
            off = before + tl.cumsum(size, 0) - size
            if TAKE:
                batch = tl.load(about + t.OF_BATCH)
                key = batch_key(head + t.BATCHES + batch * t.BATCH_COLUMNS, 0)
                key = fold(fold(key, p * 0), tl.load(row + t.EDGE_TYPE))
                if DISJOINT:
                    trees = tl.load(head + t.BATCHES + batch * t.BATCH_COLUMNS + t.FIRST_TREE)
                    of_node = fold(fold(key, begin + i - trees), node)
                else:
                    key = fold(key, p * 0)
                    of_node = _key_of_copy(
                        fold(key, node), given, n, i, node, good, name, table, mask, stamp, pos_bits, key_bits
                    )  # fmt: skip
                edge, neighbor, taken = neighbors(row, of_node, node, start, d, size, good, k, K, KP, REPLACE, LAST)
                enter_taken(
                    row, edge, neighbor, taken, i, scope, off, size, p * 0, tl.load(edge_cap + num_rows + region),
                    position, column, slots, table, mask, stamp, bits, failed + t.TABLE_FULL, False,
                )  # fmt: skip
            else:
                at = tl.load(row + t.ITEM_BASE) + i
                tl.store(item_start + at, start, mask=act)
                tl.store(item_d + at, d, mask=act)
                tl.store(item_off + at, off, mask=act)
            if p == tl.maximum(tl.cdiv(n, B) - 1, 0):
                finish_count(edges, edges_told, edge_cap, failed, 0, num_rows, region, p * 0, before + total)

    if p == last:
        batch = tl.load(about + t.OF_BATCH)
        trees = head + t.BATCHES + batch * t.BATCH_COLUMNS + t.FIRST_TREE
        tl.store(first_tree + batch, tl.load(trees))
        for hop in range(num_hops + 1):
            tl.store(counts + hop * num_regions + region, n)
            tl.store(told + hop * num_regions + region, n)
        if region == 0:
            tl.store(stamps, stamp)
            _keys(head, rows, keys, edges, edges_told, num_hops, num_rows, DISJOINT, B)
            if EXCLUDE:
                told_ids = head + t.BATCHES + num_batches * t.BATCH_COLUMNS + num_regions * t.SEED_COLUMNS
                for at in range(0, 2 * num_rows, B):
                    j = at + tl.arange(0, B)
                    of_row = tl.load(told_ids + j, mask=j < 2 * num_rows, other=0)
                    tl.store(excluded + j, of_row, mask=j < 2 * num_rows)


@triton.jit
def _key_of_copy(key, given, n, i, node, act, name, table, mask, stamp, pos_bits, key_bits):
    """The keys of seeds; a further copy of a seed has one of its own. All seeds before are in the table."""
    copy = act & (find(table, mask, stamp, name, act, pos_bits, key_bits) != i)
    if tl.max(copy.to(tl.int32), 0) > 0:
        earlier = tl.zeros_like(i)
        for first in range(0, tl.max(tl.where(copy, i, 0), 0), COMPARED):
            other = first + tl.arange(0, COMPARED)
            seed = tl.load(given + other, mask=other < n, other=-1)
            same = (seed[:, None] == node[None, :]) & (other[:, None] < i[None, :])
            earlier += tl.sum(same.to(tl.int64), 0)
        key = tl.where(copy & (earlier > 0), fold(key, earlier), key)
    return key


@triton.jit
def _keys(head, rows, keys, edges, edges_told, num_hops, num_rows, DISJOINT: tl.constexpr, B: tl.constexpr):
    """The keys of all hops and rows, up to the edge type (or up to the tree, which is 0 if not disjoint)."""
    for at in range(0, num_rows, B):
        r = at + tl.arange(0, B).to(tl.int64)
        act = r < num_rows
        about = rows + r * t.ROW_COLUMNS
        batch = tl.load(about + t.BATCH, mask=act, other=0)
        told = head + t.BATCHES + batch * t.BATCH_COLUMNS
        edge_type = tl.load(about + t.EDGE_TYPE, mask=act, other=0)
        key = fold(tl.zeros([B], tl.uint64), tl.zeros([B], tl.int64))  # of the use "neighbours"
        key = fold(key, tl.load(told + t.SEED_KEY, mask=act, other=0))
        key = fold(key, tl.load(told + t.EPOCH_KEY, mask=act, other=0))
        key = fold(key, tl.load(told + t.BATCH_KEY, mask=act, other=0))
        for hop in range(num_hops):
            of_hop = fold(fold(key, tl.zeros([B], tl.int64) + hop), edge_type)
            if not DISJOINT:
                of_hop = fold(of_hop, tl.zeros([B], tl.int64))
            tl.store(keys + hop * num_rows + r, of_hop.to(tl.int64, bitcast=True), mask=act)
        tl.store(edges + r, tl.zeros([B], tl.int64), mask=act)
        tl.store(edges_told + r, tl.zeros([B], tl.int64), mask=act)
