"""Kernels of attention: softmax over the edges of each segment, one program per segment, with all heads.

Scores are given by edge. With ENDS, they are leaky ReLUs of sums of numbers at both ends of edges, and not written.
"""

import triton
import triton.language as tl


@triton.jit
def _places(edge, at, end, HEADS: tl.constexpr, NUMBERED: tl.constexpr, BLOCK: tl.constexpr):
    """Return offsets ``[edges, heads]`` in tables by number of edge, for edges at these positions, and a mask."""
    head = tl.arange(0, BLOCK)
    number = at
    if NUMBERED:
        number = tl.load(edge.to(tl.pointer_type(tl.int64)) + at, mask=at < end, other=0)
    return number[:, None] * HEADS + head[None, :], (at < end)[:, None] & (head < HEADS)[None, :]


@triton.jit
def _load(table, place, use, DTYPE: tl.constexpr, ACC: tl.constexpr, other):
    """Load entries of a table."""
    return tl.load(table.to(tl.pointer_type(DTYPE)) + place, mask=use, other=other).to(ACC)


@triton.jit
def _end_sums(left, mine, other, at, end, use, DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
              HEADS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Load ``[edges, heads]`` numbers at the other ends of edges at these positions, and add those of the segment."""
    node = tl.load(other.to(tl.pointer_type(INDEX)) + at, mask=at < end, other=0).to(tl.int64)
    place = node[:, None] * HEADS + tl.arange(0, BLOCK)[None, :]
    return _load(left, place, use, DTYPE, ACC, 0.0) + mine[None, :]


@triton.jit
def _scores(
    scores, mine, other, edge, at, end,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr,
    ENDS: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return ``[edges, heads]`` scores of edges at these positions, minus infinity for others; offsets and a mask."""
    place, use = _places(edge, at, end, HEADS, NUMBERED, BLOCK)
    if ENDS:
        value = _end_sums(scores, mine, other, at, end, use, DTYPE, ACC, INDEX, HEADS, BLOCK)
        value = tl.where(use, tl.where(value > 0, value, value * SLOPE), float("-inf"))
    else:
        value = _load(scores, place, use, DTYPE, ACC, float("-inf"))
    return value, place, use


@triton.jit
def softmax_segments(
    scores, right, other, own, out, own_out, ptr, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr,
    OWN: tl.constexpr, ENDS: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Normalize scores per segment and head.

    scores, out: addresses of ``[num_edges, HEADS] DTYPE``, by number of edge. own, own_out: of ``[num_segments,
    HEADS]``: one score more of each segment (OWN). With ENDS, scores is of ``[num_rows, HEADS]``: numbers at the other
    ends, and right of ``[num_segments, HEADS]``. ptr, other, edge: of an Order.
    """
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    head = tl.arange(0, BLOCK)
    of_segment = segment * HEADS + head
    mine = tl.zeros([BLOCK], ACC)
    if ENDS:
        mine = _load(right, of_segment, head < HEADS, DTYPE, ACC, 0.0)
    extra = tl.full([BLOCK], float("-inf"), ACC)
    if OWN:
        extra = _load(own, of_segment, head < HEADS, DTYPE, ACC, float("-inf"))
    best = extra
    begin = first
    while begin < end:
        value, _, _ = _scores(scores, mine, other, edge, begin + tl.arange(0, EDGES), end,
                              DTYPE, ACC, INDEX, HEADS, NUMBERED, ENDS, SLOPE, BLOCK)  # fmt: skip
        best = tl.maximum(best, tl.max(value, 0))
        begin += EDGES
    best = tl.where(best == float("-inf"), 0.0, best)
    total = tl.exp(extra - best)
    begin = first
    while begin < end:
        value, _, use = _scores(scores, mine, other, edge, begin + tl.arange(0, EDGES), end,
                                DTYPE, ACC, INDEX, HEADS, NUMBERED, ENDS, SLOPE, BLOCK)  # fmt: skip
        total += tl.sum(tl.where(use, tl.exp(value - best[None, :]), 0.0), 0)
        begin += EDGES
    total = tl.where(total > 0, total, 1.0)
    if OWN:
        share = tl.exp(extra - best) / total
        tl.store(own_out.to(tl.pointer_type(DTYPE)) + of_segment, share.to(DTYPE), mask=head < HEADS)
    begin = first
    while begin < end:
        value, place, use = _scores(scores, mine, other, edge, begin + tl.arange(0, EDGES), end,
                                    DTYPE, ACC, INDEX, HEADS, NUMBERED, ENDS, SLOPE, BLOCK)  # fmt: skip
        shares = tl.exp(value - best[None, :]) / total[None, :]
        tl.store(out.to(tl.pointer_type(DTYPE)) + place, shares.to(DTYPE), mask=use)
        begin += EDGES


@triton.jit
def softmax_gradients(
    scores, right, other, out, own_out, grad, own_grad, result, of_segments, ptr, edge,
    DTYPE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, HEADS: tl.constexpr, NUMBERED: tl.constexpr,
    OWN: tl.constexpr, ENDS: tl.constexpr, SLOPE: tl.constexpr, BLOCK: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of scores, ``out * (grad - sum(out * grad))``; with ENDS, of the sums of both ends.

    Shapes as in ``softmax_segments``; grad, own_grad: gradients of out and own_out. result: gets those of the scores.
    of_segments: gets those of own (OWN), or of right (ENDS).
    """
    segment = tl.program_id(0).to(tl.int64)
    first = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment)
    end = tl.load(ptr.to(tl.pointer_type(tl.int64)) + segment + 1)
    head = tl.arange(0, BLOCK)
    of_segment = segment * HEADS + head
    total = tl.zeros([BLOCK], ACC)
    if OWN:
        extra = _load(own_out, of_segment, head < HEADS, DTYPE, ACC, 0.0)
        of_extra = _load(own_grad, of_segment, head < HEADS, DTYPE, ACC, 0.0)
        total += extra * of_extra
    begin = first
    while begin < end:
        place, use = _places(edge, begin + tl.arange(0, EDGES), end, HEADS, NUMBERED, BLOCK)
        total += tl.sum(_load(out, place, use, DTYPE, ACC, 0.0) * _load(grad, place, use, DTYPE, ACC, 0.0), 0)
        begin += EDGES
    sums = tl.zeros([BLOCK], ACC)
    mine = tl.zeros([BLOCK], ACC)
    if ENDS:
        mine = _load(right, of_segment, head < HEADS, DTYPE, ACC, 0.0)
    begin = first
    while begin < end:
        at = begin + tl.arange(0, EDGES)
        place, use = _places(edge, at, end, HEADS, NUMBERED, BLOCK)
        value = _load(grad, place, use, DTYPE, ACC, 0.0) - total[None, :]
        value = _load(out, place, use, DTYPE, ACC, 0.0) * value
        if ENDS:
            score = _end_sums(scores, mine, other, at, end, use, DTYPE, ACC, INDEX, HEADS, BLOCK)
            value = tl.where(score > 0, value, value * SLOPE)
            sums += tl.sum(value, 0)
        tl.store(result.to(tl.pointer_type(DTYPE)) + place, value.to(DTYPE), mask=use)
        begin += EDGES
    if OWN:
        sums = (of_extra - total) * extra
    if OWN or ENDS:
        tl.store(of_segments.to(tl.pointer_type(DTYPE)) + of_segment, sums.to(DTYPE), mask=head < HEADS)
