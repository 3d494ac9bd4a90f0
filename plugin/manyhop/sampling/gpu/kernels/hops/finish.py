"""The last kernel of a launch: write the results."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.hash import KNOWN, SLOT
from manyhop.sampling.gpu.kernels.primitives.memory import load_ids

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
