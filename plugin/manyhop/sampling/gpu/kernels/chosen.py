"""Induced edges for HGT sampling: a choice of entries is taken from long columns."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.hops.picks import without_replacement
from manyhop.sampling.gpu.kernels.induced import NODES_AT, ROW, ROW_WIDE, SEGMENT_COLUMNS, keep_known, load_ids
from manyhop.sampling.gpu.kernels.primitives import batch_key, fold

HGT_EDGES = tl.constexpr(9)  # use of keys


@triton.jit(do_not_specialize=["num_columns", "num_batches", "mask", "edge_capacity"])
def find_chosen(
    segments, degree, begin, base, dst, num_columns, num_batches, node, copy, batches, keys, local, mask,
    tile_first, tile_count, found_row, found_dst, found_id, edge_capacity, state,
    LIMIT: tl.constexpr, SLOTS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Find edges like ``find_edges``, of up to ``LIMIT`` entries of each column; a tile has ``B`` whole columns.

    Args:
        degree, begin, base, dst: of columns, from ``measure_columns``.
        copy: which copy of a seed each node is.
        batches: ``[num_batches, 3]``: seed, epoch, batch.
    """
    tile = tl.program_id(0).to(tl.int64)
    column = tile * B + tl.arange(0, B)
    act = column < num_columns
    d = tl.load(degree + column, mask=act, other=0)
    of_dst = tl.load(dst + column, mask=act, other=0)
    segment = of_dst >> 32
    row = segments + segment * SEGMENT_COLUMNS
    slot = tl.arange(0, SLOTS)[:, None].to(tl.int64)
    pick = slot + tl.zeros_like(d)[None, :]
    if tl.max(d, 0) > LIMIT:
        at = tl.load(row + NODES_AT, mask=act, other=0) + (of_dst & 0xFFFFFFFF)
        c = tl.load(copy + at, mask=act, other=0)
        key = fold(batch_key(batches + segment % num_batches * 3, HGT_EDGES), segment // num_batches)
        key = fold(key, tl.load(node + at, mask=act, other=0))
        key = tl.where(c > 0, fold(key, c), key)
        pick = without_replacement(key, d, LIMIT, LIMIT, SLOTS)
    chosen = slot < tl.minimum(d, LIMIT)[None, :]
    position = tl.load(begin + column, mask=act, other=0)[None, :] + pick
    rows, wide = tl.load(row + ROW, mask=act, other=0), tl.load(row + ROW_WIDE, mask=act, other=0)
    source = tl.load(base + column, mask=act, other=0)[None, :]
    source += load_ids(rows[None, :], wide[None, :], position, chosen)
    # Edges are ordered by column, then by slot.
    T: tl.constexpr = B * SLOTS
    one = tl.load(dst + tile * B) >> 32
    last = tl.load(dst + tl.minimum(tile * B + B, num_columns) - 1) >> 32
    of_dst = of_dst[None, :] + tl.zeros_like(position)
    keep_known(
        segments, tl.reshape(tl.trans(source), [T]), tl.reshape(tl.trans(position), [T]),
        tl.reshape(tl.trans(of_dst), [T]), tl.reshape(tl.trans(chosen.to(tl.int32)), [T]) > 0, one == last, one,
        keys, local, mask, tile, tile_first, tile_count, found_row, found_dst, found_id, edge_capacity, state, T,
    )  # fmt: skip
