"""Kernels of the softmax over the edges of each segment: a program takes one segment, with all heads."""

import triton
import triton.language as tl


@triton.jit
def entries(table, edge, at, end, DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr,
             NUMBERED: tl.constexpr, BLOCK: tl.constexpr, other):  # fmt: skip
    """Load ``[edges, heads]`` entries of a table for edges at these positions; also return offsets and a mask."""
    head = tl.arange(0, BLOCK)
    number = at
    if NUMBERED:
        number = tl.load(edge.to(tl.pointer_type(tl.int64)) + at, mask=at < end, other=0)
    use = (at < end)[:, None] & (head < HEADS)[None, :]
    place = number[:, None] * HEADS + head[None, :]
    return tl.load(table.to(tl.pointer_type(DTYPE)) + place, mask=use, other=other).to(ACC), place, use


@triton.jit
def own_entries(table, segment, other, DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Load the entries ``[heads]`` of a segment."""
    head = tl.arange(0, BLOCK)
    return tl.load(table.to(tl.pointer_type(DTYPE)) + segment * HEADS + head, mask=head < HEADS, other=other).to(ACC)


@triton.jit
def store_own(table, segment, value, DTYPE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Store the entries of a segment."""
    head = tl.arange(0, BLOCK)
    tl.store(table.to(tl.pointer_type(DTYPE)) + segment * HEADS + head, value.to(DTYPE), mask=head < HEADS)


@triton.jit
def softmax_segments(
    scores, own, out, own_out, ptr, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr, OWN: tl.constexpr,
    BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Normalize scores per segment and head.

    scores, out: addresses of ``[num_edges, HEADS] DTYPE``, by number of edge. own, own_out: of ``[num_segments,
    HEADS]``: one score more of each segment (OWN). ptr, edge: of an Order.
    """
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    mine = tl.full([BLOCK], float("-inf"), ACC)
    if OWN:
        mine = own_entries(own, segment, float("-inf"), DTYPE, ACC, HEADS, BLOCK)
    best = mine
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        value, _, _ = entries(scores, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, float("-inf"))
        best = tl.maximum(best, tl.max(value, 0))
        begin += EDGES
    best = tl.where(best == float("-inf"), 0.0, best)
    total = tl.exp(mine - best)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        value, _, use = entries(scores, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, float("-inf"))
        total += tl.sum(tl.where(use, tl.exp(value - best[None, :]), 0.0), 0)
        begin += EDGES
    total = tl.where(total > 0, total, 1.0)
    if OWN:
        store_own(own_out, segment, tl.exp(mine - best) / total, DTYPE, HEADS, BLOCK)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        value, place, use = entries(scores, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, float("-inf"))
        share = tl.exp(value - best[None, :]) / total[None, :]
        tl.store(out.to(tl.pointer_type(DTYPE)) + place, share.to(DTYPE), mask=use)
        begin += EDGES


@triton.jit
def softmax_gradients(
    out, own_out, grad, own_grad, result, own_result, ptr, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr, OWN: tl.constexpr,
    BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of scores: ``out * (grad - sum(out * grad))``; shapes as in ``softmax_segments``."""
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    total = tl.zeros([BLOCK], ACC)
    if OWN:
        total += own_entries(own_out, segment, 0.0, DTYPE, ACC, HEADS, BLOCK) * own_entries(
            own_grad, segment, 0.0, DTYPE, ACC, HEADS, BLOCK
        )
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        share, _, _ = entries(out, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        value, _, _ = entries(grad, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        total += tl.sum(share * value, 0)
        begin += EDGES
    if OWN:
        mine = own_entries(own_grad, segment, 0.0, DTYPE, ACC, HEADS, BLOCK) - total
        mine = mine * own_entries(own_out, segment, 0.0, DTYPE, ACC, HEADS, BLOCK)
        store_own(own_result, segment, mine, DTYPE, HEADS, BLOCK)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        share, place, use = entries(out, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        value, _, _ = entries(grad, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        tl.store(result.to(tl.pointer_type(DTYPE)) + place, (share * (value - total[None, :])).to(DTYPE), mask=use)
        begin += EDGES
