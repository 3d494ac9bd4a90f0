"""Kernels of attention: softmax over the edges of each segment, one program per segment, with all heads."""

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


# Kernels of graph attention: scores of edges from a number per head at both ends, normalized over each segment.
#
# A program takes one segment, with all heads. Neither scores nor their activations are written.


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
