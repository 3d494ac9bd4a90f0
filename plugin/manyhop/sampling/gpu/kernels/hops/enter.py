"""Insert the neighbours of picked edges into the hash table: one edge per thread, whatever the degrees."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.hash import insert
from manyhop.sampling.gpu.kernels.primitives.memory import load_ids
from manyhop.sampling.gpu.kernels.primitives.scan import clear_states


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
