"""Drop excluded edges, after picking and before inserting their neighbours."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.primitives.memory import load_ids
from manyhop.sampling.gpu.kernels.primitives.scan import exclusive_sums
from manyhop.sampling.gpu.kernels.primitives.search import first_not_below


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
