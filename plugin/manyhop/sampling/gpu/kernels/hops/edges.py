"""Edges of a hop: how many each frontier node picks, and their memory."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops import picks, weighted
from manyhop.sampling.gpu.kernels.hops.picks import eligible
from manyhop.sampling.gpu.kernels.primitives import KNOWN, SLOT, exclusive_sums, find, fold
from manyhop.sampling.gpu.kernels.tables import follow

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
def frontier_of(counts, hop, num_type_ranges, dst, EXPAND_ALL: tl.constexpr):
    """Return the frontier of a type range: the local id of its first node, and the number of nodes."""
    begin = tl.zeros([], tl.int64)
    if not EXPAND_ALL:
        begin = tl.load(counts + (hop - 1) * num_type_ranges + dst, mask=hop > 0, other=0)
    return begin, tl.load(counts + hop * num_type_ranges + dst) - begin


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
    begin, n = frontier_of(nodes.counts, hop, num_type_ranges, dst, EXPAND_ALL)
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


ANY = tl.constexpr((1 << 31) - 1)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments", "num_types", "pitch", "programs"])
def emit(
    tables, seeds, nodes, frontier, edges, sums, reports, hash_table, hop, num_type_ranges, num_segments,
    num_types, pitch, programs,
    CHAIN: tl.constexpr, MORE: tl.constexpr, NEXT: tl.constexpr, DISJOINT: tl.constexpr, REPLACE: tl.constexpr,
    WEIGHTED: tl.constexpr, TIMED: tl.constexpr, WINDOW: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Assign local ids; one program per ``T`` edges of a segment.

    Programs wait for those of earlier segments of the chain.

    Args:
        programs: programs per segment; those of a segment precede those of the next.
        CHAIN: a power of two, at least the number of segments of any chain.
        MORE: another hop follows, which looks up nodes in the hash table.
        NEXT: the new nodes are the frontier of the next hop: count it here.
    """
    follow()
    r, p = tl.program_id(0).to(tl.int64) // programs, tl.program_id(0).to(tl.int64) % programs
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    after = tl.load(edges.counts + (hop + 1) * num_segments + r)
    n = after - done
    ends_chain = tl.load(segment + t.ENDS_CHAIN)
    if (p * T < n) | ((p == 0) & (ends_chain > 0)):
        node_bits, pos_bits, key_bits = tl.load(tables.bits), tl.load(tables.bits + 1), tl.load(tables.bits + 2)
        one = tl.full([], 1, tl.int64)
        src, base = tl.load(segment + t.SRC), tl.load(segment + t.SRC_BASE)
        known = tl.load(nodes.counts + hop * num_type_ranges + src)
        cap = tl.load(tables.node_cap + (hop + 1) * num_type_ranges + src)
        i = p * T + tl.arange(0, T)
        act = i < n
        at = tl.load(segment + t.EDGE_BASE) + done + i
        slot = tl.load(edges.slots + at, mask=act, other=0)
        maybe = act & (slot < 0)
        slot = slot & SLOT
        entry = tl.load(hash_table + slot, mask=maybe, other=0)
        unassigned = one << (pos_bits - 1)
        is_first = maybe & ((entry & ((one << pos_bits) - 1)) == (at | unassigned))
        name = entry >> pos_bits
        v = name & ((one << node_bits) - 1)
        of_tree = ((name >> node_bits) & ((one << (key_bits - node_bits)) - 1)) // num_types
        num_first = tl.sum(is_first.to(tl.int64), 0)
        num_picks = num_first * 0
        if NEXT:
            k = tl.load(tables.fanouts + (hop + 1) * num_segments + r)
            latest, earliest = limits(seeds.time_max, seeds.time_min, of_tree, is_first, TIMED, WINDOW)
            start, d, size = measure(segment, v, is_first, k, latest, earliest, REPLACE, WEIGHTED, TIMED, WINDOW)
            size = tl.where(is_first, size, 0)
            num_picks = tl.sum(size, 0)

        before, picks_before = exclusive_sums(sums.of_emit + r * pitch, p * 0, p, num_first, num_picks, 128)
        if CHAIN > 1:
            other = tl.load(segment + t.CHAIN) + tl.arange(0, CHAIN)
            inside = other < r
            size_of = tl.load(edges.counts + (hop + 1) * num_segments + other, mask=inside, other=0)
            size_of -= tl.load(edges.counts + hop * num_segments + other, mask=inside, other=0)
            inside = inside & (size_of > 0)
            last = other * pitch + (size_of + T - 1) // T - 1
            states = tl.load(sums.of_emit + last, mask=inside, other=-1, volatile=True)
            while tl.max((states >= 0).to(tl.int32), 0) > 0:
                states = tl.load(sums.of_emit + last, mask=inside, other=-1, volatile=True)
            before += tl.sum(tl.where(inside, (states >> 31) & ANY, 0), 0)
        ones = is_first.to(tl.int64)
        rank = known + before + tl.cumsum(ones, 0) - ones
        keep = is_first & (rank < cap)
        tl.store(nodes.ids + base + rank, v, mask=keep)
        tl.store(edges.slots + at, rank.to(tl.int32) | KNOWN, mask=keep)
        if MORE:
            tl.store(hash_table + slot, (name << pos_bits) | rank, mask=keep)
        if DISJOINT:
            tl.store(nodes.tree + base + rank, of_tree.to(tl.int32), mask=keep)
        if NEXT:
            entry_at = tl.load(segment + t.FRONTIER_BASE) + rank - known
            tl.store(frontier.start + entry_at, start, mask=keep)
            tl.store(frontier.degree + entry_at, d, mask=keep)
            tl.store(frontier.offset + entry_at, picks_before + tl.cumsum(size, 0) - size, mask=keep)
        if p == tl.maximum(tl.cdiv(n, T) - 1, 0):
            if NEXT:
                finish_count(tables, edges, reports, hop + 1, num_segments, r, after, picks_before + num_picks)
            if ends_chain > 0:
                total = known + before + num_first
                tl.store(reports.nodes + (hop + 1) * num_type_ranges + src, total)
                if total > cap:
                    tl.store(reports.failed + t.NODES_FULL, 1)
                tl.store(nodes.counts + (hop + 1) * num_type_ranges + src, tl.minimum(total, cap))


MOST = tl.constexpr(32)  # largest fanout of this kernel; `wide.py` has the others, and -1


@triton.jit
def node_keys(
    segment, keys, at, v, local, act, tree, first_tree, nodes, num_seeds, table, mask, stamp, node_bits, pos_bits,
    key_bits, DISJOINT: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Return the keys of frontier nodes; every further copy of a seed has its own."""
    key = tl.load(keys + at).to(tl.uint64, bitcast=True)
    if DISJOINT:
        key = fold(fold(key, tree - first_tree), v)
    else:
        key = fold(key, v)
        if COPIES:
            seed = act & (local < num_seeds)
            name = (tl.load(segment + t.DST) << node_bits) | v
            copy = seed & (find(table, mask, stamp, name, seed, pos_bits, key_bits) != local)
            if tl.max(copy.to(tl.int32), 0) > 0:
                base = tl.load(segment + t.DST_BASE)
                earlier = tl.zeros_like(local)
                last = tl.max(tl.where(copy, local, 0), 0)
                for at_seed in range(0, last):
                    same = tl.load(nodes + base + at_seed) == v
                    earlier += (same & (at_seed < local)).to(tl.int64)
                key = tl.where(copy & (earlier > 0), fold(key, earlier), key)
    return key


@triton.jit
def choose(
    segment, key, start, d, p, v, act, k,
    K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """Pick entries from the ranges of nodes: ``[KP, B] int64``; ``p`` of the ``d`` entries may be picked."""
    if LAST:
        choice = picks.last(d, k, KP)
    elif WEIGHTED:
        alias, weight = tl.load(segment + t.ALIAS), tl.load(segment + t.WEIGHT)
        if alias != 0:
            table = alias.to(tl.pointer_type(tl.int64))
            if TIMED:
                begin, length = columns(segment, v, act)
                column = weight.to(tl.pointer_type(tl.float64)) + start
                choice = weighted.in_range(
                    table + begin, length, start - begin, column, key, d, p, k, REPLACE, True, K, KP
                )
            elif REPLACE:
                table += start
                choice = weighted.with_replacement(table, key, d, p, K, KP)
            else:
                table += start
                column = weight.to(tl.pointer_type(tl.float64)) + start
                choice = weighted.without_replacement(table, column, key, d, p, k, K, KP)
        else:
            choice = _uniform(key, d, k, K, KP, REPLACE)
    else:
        choice = _uniform(key, d, k, K, KP, REPLACE)
    return choice


@triton.jit
def _uniform(key, d, k, K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr):
    return picks.with_replacement(key, d, KP) if REPLACE else picks.without_replacement(key, d, k, K, KP)


@triton.jit(do_not_specialize=["hop", "num_type_ranges", "num_segments"])
def pick(
    tables, seeds, nodes, frontier, edges, hash_table, mask, hop, num_type_ranges, num_segments,
    K: tl.constexpr, KP: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, TIMED: tl.constexpr,
    LAST: tl.constexpr, DISJOINT: tl.constexpr, EXPAND_ALL: tl.constexpr, COPIES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Pick for the frontier nodes of a segment, ``B`` at a time per program; a thread has all slots of a node."""
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    k = tl.load(tables.fanouts + hop * num_segments + r)
    if (tl.load(edges.counts + (hop + 1) * num_segments + r) > done) & (k > 0) & (k <= MOST):
        dst, base = tl.load(segment + t.DST), tl.load(segment + t.DST_BASE)
        begin, n = frontier_of(nodes.counts, hop, num_type_ranges, dst, EXPAND_ALL)
        node_bits, pos_bits, key_bits = tl.load(tables.bits), tl.load(tables.bits + 1), tl.load(tables.bits + 2)
        stamp = tl.load(seeds.stamps)
        edge_base = tl.load(segment + t.EDGE_BASE) + done
        entry_base = tl.load(segment + t.FRONTIER_BASE)
        j = tl.arange(0, KP).to(tl.int64)[:, None]
        for at in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
            i = at + tl.arange(0, B).to(tl.int64)
            act = i < n
            local = begin + i
            v = tl.load(nodes.ids + base + local, mask=act, other=0)
            start = tl.load(frontier.start + entry_base + i, mask=act, other=0)
            d = tl.load(frontier.degree + entry_base + i, mask=act, other=0)
            off = tl.load(frontier.offset + entry_base + i, mask=act, other=0)
            of_tree = tl.zeros_like(v)
            if DISJOINT:
                of_tree = tl.load(nodes.tree + base + local, mask=act, other=0).to(tl.int64)
            key = node_keys(
                segment, seeds.keys, hop * num_segments + r, v, local, act, of_tree,
                tl.load(seeds.first_tree + tl.load(segment + t.BATCH)), nodes.ids, tl.load(nodes.counts + dst),
                hash_table, mask, stamp, node_bits, pos_bits, key_bits, DISJOINT, COPIES,
            )  # fmt: skip

            p = num_positive(segment, v, act, start, d, WEIGHTED, TIMED)
            size = picks.count(p, k, REPLACE)
            choice = choose(segment, key, start, d, p, v, act, k, K, KP, REPLACE, WEIGHTED, TIMED, LAST)
            taken = act[None, :] & (j < size[None, :]) & (j < K)
            edge = start[None, :] + choice
            to = edge_base + off[None, :] + j
            tl.store(edges.position + to, edge, mask=taken)
            tl.store(edges.column + to, (local[None, :] + j * 0).to(tl.int32), mask=taken)


# Read neighbours from host memory, one window of the table after the other.
#
# A GPU translates host addresses through a small TLB. Random reads of a large table miss it almost always, which costs
# several times as much as the read itself; reads within a window hit it.

WINDOW_BITS = 24  # entries of a window: 64 MiB of int32


@triton.jit(do_not_specialize=["hop", "num_segments"])
def fetch(tables, edges, hop, num_segments, T: tl.constexpr):
    """Store the neighbours of a hop's edges in ``edges.slots``; programs loop over tiles of ``T`` edges per window.

    Programs do not synchronize: since all run at the same time, they are in the same window most of the time.
    """
    follow()
    r = tl.program_id(1).to(tl.int64)
    segment = tables.segments + r * t.SEGMENT_COLUMNS
    done = tl.load(edges.counts + hop * num_segments + r)
    n = tl.load(edges.counts + (hop + 1) * num_segments + r) - done
    source = tl.load(segment + t.ROW).to(tl.pointer_type(tl.int32))
    base = tl.load(segment + t.EDGE_BASE) + done
    window_bits = tl.load(tables.bits + 3)
    for window in range(0, tl.load(segment + t.WINDOWS)):
        for first in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = first + tl.arange(0, T).to(tl.int64)
            act = i < n
            at = tl.load(edges.position + base + i, mask=act, other=0)
            inside = act & ((at >> window_bits) == window)
            tl.store(edges.slots + base + i, tl.load(source + at, mask=inside, other=0), mask=inside)
