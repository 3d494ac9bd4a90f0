"""The last kernel: results in memory of their exact size."""

import triton
import triton.language as tl

from . import tables as t
from .hash import KNOWN, SLOT
from .launch import follow
from .memory import load_ids


@triton.jit(do_not_specialize=["num_hops", "num_regions", "num_rows"])
def finish(
    rows, regions, nodes, tree, counts, edges, position, column, slots, table, bits, first_tree, out,
    num_hops, num_regions, num_rows, DISJOINT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Rows, then regions: programs take turns at ``T`` edges (nodes) of each.

    Args:
        out: int64 addresses of the results of each row (row, column, edge id, one behind the other), then of each
            region (node, tree).
    """
    follow()
    r = tl.program_id(1).to(tl.int64)
    unassigned = tl.full([], 1, tl.int64) << (tl.load(bits + 1) - 1)
    if r < num_rows:
        row = rows + r * t.ROW_COLUMNS
        n = tl.load(edges + num_hops * num_rows + r)
        base = tl.load(row + t.EDGE_BASE)
        perm, wide, windows = tl.load(row + t.PERM), tl.load(row + t.PERM_WIDE), tl.load(row + t.WINDOWS)
        out_row = tl.load(out + r).to(tl.pointer_type(tl.int64))
        out_column = out_row + n
        out_id = out_column + n
        for at in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = at + tl.arange(0, T).to(tl.int64)
            act = i < n
            slot = tl.load(slots + base + i, mask=act, other=0)
            edge = tl.load(position + base + i, mask=act, other=0)
            asker = tl.load(column + base + i, mask=act, other=0)
            found = (slot & SLOT).to(tl.int64)
            asked = act & ((slot & KNOWN) == 0)
            entry = tl.load(table + found, mask=asked, other=0)
            first = asked & ((entry & unassigned) != 0)  # of the last hop: the edge that brought it knows
            brought = tl.load(slots + (entry & (unassigned - 1)), mask=first, other=0) & SLOT
            found = tl.where(asked, tl.where(first, brought.to(tl.int64), entry & (unassigned - 1)), found)
            if (perm != 0) & (windows == 0):
                edge = load_ids(perm, wide, edge, act)
            tl.store(out_row + i, found, mask=act)
            tl.store(out_column + i, asker.to(tl.int64), mask=act)
            tl.store(out_id + i, edge, mask=act)
        if (perm != 0) & (windows > 0):
            window_bits = tl.load(bits + 3)
            for window in range(0, windows):
                for at in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
                    i = at + tl.arange(0, T).to(tl.int64)
                    edge = tl.load(position + base + i, mask=i < n, other=0)
                    inside = (i < n) & ((edge >> window_bits) == window)
                    tl.store(out_id + i, load_ids(perm, wide, edge, inside), mask=inside)
    else:
        q = r - num_rows
        n = tl.load(counts + num_hops * num_regions + q)
        about = regions + q * t.REGION_COLUMNS
        base = tl.load(about + t.NODE_BASE)
        out_node = tl.load(out + r).to(tl.pointer_type(tl.int64))
        out_tree = out_node + n
        for at in range(tl.program_id(0) * T, n, tl.num_programs(0) * T):
            i = at + tl.arange(0, T).to(tl.int64)
            act = i < n
            tl.store(out_node + i, tl.load(nodes + base + i, mask=act, other=0), mask=act)
            if DISJOINT:
                of_tree = tl.load(tree + base + i, mask=act, other=0).to(tl.int64)
                tl.store(out_tree + i, of_tree - tl.load(first_tree + tl.load(about + t.OF_BATCH)), mask=act)
