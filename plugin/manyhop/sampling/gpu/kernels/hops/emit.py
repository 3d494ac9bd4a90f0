"""Number the new nodes of a hop, in the order of their first edges."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.count import finish_count, limits, measure
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.hash import KNOWN, SLOT
from manyhop.sampling.gpu.kernels.primitives.scan import exclusive_sums

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
