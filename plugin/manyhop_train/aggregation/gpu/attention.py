"""Kernels of graph attention: scores of edges from a number per head at both ends, normalized over each segment.

A program takes one segment, with all heads. Neither scores nor their activations are written.
"""

import triton
import triton.language as tl

from manyhop_train.aggregation.gpu.softmax import entries


@triton.jit
def _scores(
    left, own, other, at, end,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Load ``[edges, heads]`` sums of the numbers at both ends of edges at these positions, and a mask."""
    head = tl.arange(0, BLOCK)
    use = (at < end)[:, None] & (head < HEADS)[None, :]
    node = tl.load(other.to(tl.pointer_type(INDEX)) + at, mask=at < end, other=0).to(tl.int64)
    place = left.to(tl.pointer_type(DTYPE)) + node[:, None] * HEADS + head[None, :]
    return tl.load(place, mask=use, other=0.0).to(ACC) + own[None, :], use


@triton.jit
def attention_segments(
    left, right, out, ptr, other, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Normalize the leaky ReLUs of scores per segment and head.

    left, right: addresses of ``[num_rows, HEADS]`` and ``[num_segments, HEADS] DTYPE``. out: of ``[num_edges, HEADS]
    DTYPE``, by number of edge. ptr, other, edge: of an Order.
    """
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    head = tl.arange(0, BLOCK)
    own = tl.load(right.to(tl.pointer_type(DTYPE)) + segment * HEADS + head, mask=head < HEADS, other=0.0).to(ACC)
    best = tl.full([BLOCK], float("-inf"), ACC)
    begin = first
    while begin < end:
        score, use = _scores(left, own, other, begin + tl.arange(0, EDGES), end, DTYPE, ACC, INDEX, HEADS, BLOCK)
        score = tl.where(score > 0, score, score * SLOPE)
        best = tl.maximum(best, tl.max(tl.where(use, score, float("-inf")), 0))
        begin += EDGES
    best = tl.where(head < HEADS, best, 0.0)
    total = tl.zeros([BLOCK], ACC)
    begin = first
    while begin < end:
        score, use = _scores(left, own, other, begin + tl.arange(0, EDGES), end, DTYPE, ACC, INDEX, HEADS, BLOCK)
        score = tl.where(score > 0, score, score * SLOPE)
        total += tl.sum(tl.where(use, tl.exp(score - best[None, :]), 0.0), 0)
        begin += EDGES
    total = tl.where(head < HEADS, total, 1.0)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        score, use = _scores(left, own, other, at, end, DTYPE, ACC, INDEX, HEADS, BLOCK)
        score = tl.where(score > 0, score, score * SLOPE)
        number = at
        if NUMBERED:
            number = tl.load(edge.to(tl.pointer_type(tl.int64)) + at, mask=at < end, other=0)
        place = out.to(tl.pointer_type(DTYPE)) + number[:, None] * HEADS + head[None, :]
        tl.store(place, (tl.exp(score - best[None, :]) / total[None, :]).to(DTYPE), mask=use)
        begin += EDGES


@triton.jit
def attention_gradients(
    left, right, out, grad, result, of_right, ptr, other, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the scores, and their sums per segment.

    Other arguments as in ``attention_segments``; grad: address of the gradient of out. result: of ``[num_edges,
    HEADS]``, by number of edge. of_right: of ``[num_segments, HEADS]``.
    """
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    head = tl.arange(0, BLOCK)
    own = tl.load(right.to(tl.pointer_type(DTYPE)) + segment * HEADS + head, mask=head < HEADS, other=0.0).to(ACC)
    total = tl.zeros([BLOCK], ACC)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        share, _, _ = entries(out, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        value, _, _ = entries(grad, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        total += tl.sum(share * value, 0)
        begin += EDGES
    sums = tl.zeros([BLOCK], ACC)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        share, place, use = entries(out, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        value, _, _ = entries(grad, edge, at, end, DTYPE, ACC, HEADS, NUMBERED, BLOCK, 0.0)
        score, _ = _scores(left, own, other, at, end, DTYPE, ACC, INDEX, HEADS, BLOCK)
        of_score = share * (value - total[None, :])
        of_score = tl.where(score > 0, of_score, of_score * SLOPE)
        tl.store(result.to(tl.pointer_type(DTYPE)) + place, of_score.to(DTYPE), mask=use)
        sums += tl.sum(of_score, 0)
        begin += EDGES
    place = of_right.to(tl.pointer_type(DTYPE)) + segment * HEADS + head
    tl.store(place, sums.to(DTYPE), mask=head < HEADS)
