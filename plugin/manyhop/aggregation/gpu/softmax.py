"""Kernels of the softmax over the edges of each segment: a program takes one segment, with all heads."""

import triton
import triton.language as tl


@triton.jit
def entries(table, edge, at, end, DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr,
             NUMBERED: tl.constexpr, BLOCK: tl.constexpr, other):  # fmt: skip
    """``[edges, heads]``: what a table has for the edges at these positions; where that is; and which of it counts."""
    head = tl.arange(0, BLOCK)
    number = at
    if NUMBERED:
        number = tl.load(edge.to(tl.pointer_type(tl.int64)) + at, mask=at < end, other=0)
    use = (at < end)[:, None] & (head < HEADS)[None, :]
    place = number[:, None] * HEADS + head[None, :]
    return tl.load(table.to(tl.pointer_type(DTYPE)) + place, mask=use, other=other).to(ACC), place, use


@triton.jit
def softmax_segments(
    scores, out, ptr, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr, BLOCK: tl.constexpr,
    EDGES: tl.constexpr,
):  # fmt: skip
    """Normalize scores per segment and head.

    scores, out: addresses of ``[num_edges, HEADS] DTYPE``, by number of edge. ptr, edge: of an Order.
    """
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    best = tl.full([BLOCK], float("-inf"), ACC)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        value, _, _ = entries(scores, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, float("-inf"))
        best = tl.maximum(best, tl.max(value, 0))
        begin += EDGES
    best = tl.where(tl.arange(0, BLOCK) < HEADS, best, 0.0)
    total = tl.zeros([BLOCK], ACC)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        value, _, use = entries(scores, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, float("-inf"))
        total += tl.sum(tl.where(use, tl.exp(value - best[None, :]), 0.0), 0)
        begin += EDGES
    total = tl.where(tl.arange(0, BLOCK) < HEADS, total, 1.0)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        value, place, use = entries(scores, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, float("-inf"))
        share = tl.exp(value - best[None, :]) / total[None, :]
        tl.store(out.to(tl.pointer_type(DTYPE)) + place, share.to(DTYPE), mask=use)
        begin += EDGES


@triton.jit
def softmax_gradients(
    out, grad, result, ptr, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr, BLOCK: tl.constexpr,
    EDGES: tl.constexpr,
):  # fmt: skip
    """Give the gradients of scores: ``out * (grad - sum(out * grad))``; all of ``[num_edges, HEADS]``."""
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    total = tl.zeros([BLOCK], ACC)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        share, _, _ = entries(out, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        value, _, _ = entries(grad, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        total += tl.sum(share * value, 0)
        begin += EDGES
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        share, place, use = entries(out, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        value, _, _ = entries(grad, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        tl.store(result.to(tl.pointer_type(DTYPE)) + place, (share * (value - total[None, :])).to(DTYPE), mask=use)
        begin += EDGES
