"""The kernels of message passing, on plain tensors of any device. None is differentiable: autograd functions call them.

On a GPU they are the engine's kernels. Elsewhere, they are made of torch's ``embedding_bag``, a gather fused with a
segmented reduction, without atomics and without a tensor of ``[num_edges, num_features]``. Sums of half precision are
accumulated in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from manyhop.system import triton_compiler
from manyhop_train.aggregation import Order

# Rows over the same memory in a different shape, but not a view to torch: users may not change in place a view that an
# autograd function returns.
shaped: Callable[[Tensor, Sequence[int]], Tensor] = torch.ops.aten._unsafe_view.default

_SUM, _MAX = 0, 2
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def segment_sum(table: Tensor, order: Order, weights: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Sum rows of a table per segment.

    Args:
        table: ``[num_rows, ...]``.
        order: the edges; their other ends are rows of the table.
        weights: ``[num_edges, ...]``, by number of edge: factors of the rows; with multiple per edge (heads),
            each has an equal share of the row.
        scale: ``[num_rows]``, as :func:`segment_mean` returns it: a second factor of each row.

    Returns:
        ``[num_segments, ...]``.
    """
    num_segments, num_edges = order.ptr.numel() - 1, order.other.numel()
    if table.numel() == 0 or num_edges == 0:
        return table.new_zeros(num_segments, *table.shape[1:])
    if _has_kernels(table):
        return _add(table, order, "sum", weights, scale)[0]
    if scale is not None:
        table = scaled(table, scale)
    if weights is not None and order.edge is not None:
        weights = weights.index_select(0, order.edge)
    heads = 1 if weights is None else weights[0].numel()
    if weights is None or heads == 1:
        factors = None if weights is None else weights.reshape(-1)
        sums, _ = _bag(table.flatten(1) if table.dim() > 1 else table.unsqueeze(1), order, _SUM, factors)
    else:  # A segment per head and node, head by head: one launch, and the table is not copied.
        head = torch.arange(heads, device=table.device).unsqueeze(1)
        by_head = (order.other.long() * heads + head).view(-1)
        ends = (order.ptr[1:] + num_edges * head).view(-1)
        bounds = torch.cat([order.ptr[:1], ends])
        parts = table.reshape(table.shape[0] * heads, -1)
        sums, _ = _bag(parts, Order(bounds, by_head, None), _SUM, weights.flatten(1).t().reshape(-1))
        sums = sums.view(heads, num_segments, -1).transpose(0, 1)
    return shaped(sums.contiguous(), (num_segments, *table.shape[1:]))


def scaled(rows: Tensor, scale: Tensor) -> Tensor:
    """Multiply rows ``[num_rows, ...]`` by a factor each, ``[num_rows]`` of any dtype."""
    return rows * scale.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


def segment_mean(table: Tensor, order: Order, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Average rows of a table per segment: see :func:`segment_sum`.

    Returns:
        ``[num_segments, ...]``, and ``[num_segments]``: one over the number of edges, 1 without edges.
    """
    if table.numel() and order.other.numel() and _has_kernels(table):
        return _add(table, order, "mean", weights)
    shares = 1 / order.ptr.diff().clamp_(min=1).to(torch.float64 if table.dtype == torch.float64 else torch.float32)
    return scaled(segment_sum(table, order, weights), shares), shares


def segment_softmax(scores: Tensor, order: Order) -> Tensor:
    """Normalize scores ``[num_edges, ...]``, by number of edge, over the edges of each segment."""
    if scores.numel() == 0:
        return torch.empty_like(scores)
    flat = scores.reshape(scores.shape[0], -1)
    if _has_kernels(scores):
        normalized: Tensor = _launch().softmax(flat, order)[0]
        return shaped(normalized, scores.shape)
    segment = _segment_of(order)
    index = segment.unsqueeze(1).expand_as(flat)
    top = flat.new_full((order.ptr.numel() - 1, flat.size(1)), -torch.inf)
    top.scatter_reduce_(0, index, flat, "amax")
    shares = (flat - top.index_select(0, segment)).exp()
    sums = torch.zeros_like(top).scatter_add_(0, index, shares)
    return shaped(shares / sums.index_select(0, segment), scores.shape)


def softmax_gradient(out: Tensor, grad: Tensor, order: Order) -> Tensor:
    """Return the gradient of the scores of :func:`segment_softmax`, all of ``[num_edges, ...]``."""
    if out.numel() == 0:
        return torch.empty_like(out)
    if _has_kernels(out):
        rows = out.shape[0], -1
        gradient: Tensor = _launch().softmax_gradient(out.reshape(rows), grad.reshape(rows), order)[0]
        return gradient.view(out.shape)
    segment, product = _segment_of(order), out * grad
    sums = product.new_zeros(order.ptr.numel() - 1, *out.shape[1:]).index_add_(0, segment, product)
    return product - out * sums.index_select(0, segment)


def attention_shares(left: Tensor, right: Tensor, order: Order, slope: float) -> Tensor:
    """Normalize leaky ReLUs of the sums of numbers at both ends of edges, ``[num_edges, num_heads]`` by edge number.

    ``left [num_rows, num_heads]`` is at the other ends, ``right [num_segments, num_heads]`` at the segments.
    """
    if left.numel() and order.other.numel() and _has_kernels(left):
        shares: Tensor = _launch().softmax(_launch().Ends(left, right, slope), order)[0]
        return shares
    return segment_softmax(leaky_relu(_end_sums(left, right, order), slope), order)


def attention_gradients(
    shares: Tensor, grad: Tensor, left: Tensor, right: Tensor, order: Order, slope: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the sums of :func:`attention_shares`, ``[num_edges, num_heads]``, and of ``right``."""
    if shares.numel() and _has_kernels(shares):
        ends = _launch().Ends(left, right, slope)
        found: tuple[Tensor, Tensor] = _launch().softmax_gradient(shares, grad, order, ends=ends)
        return found
    of_scores = softmax_gradient(shares, grad, order)
    of_sums = torch.ops.aten.leaky_relu_backward(of_scores, _end_sums(left, right, order), slope, False)
    return of_sums, torch.zeros_like(right).index_add_(0, _segment_of(order), of_sums)


def segment_max(table: Tensor, indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Find the maximum of ``table[rows]`` per segment and feature, and its row: of equal ones, that of the first edge.

    Empty segments have minus infinity, and row 0.
    """
    shape = indptr.numel() - 1, *table.shape[1:]
    if rows.numel() == 0 or table.numel() == 0:
        return table.new_full(shape, -torch.inf), rows.new_zeros(shape)
    flat = table.reshape(table.shape[0], table.shape[1:].numel())
    if _has_kernels(table):
        order = Order(indptr.long().contiguous(), rows.contiguous(), None)
        values, found = _launch().maxima(flat, order, shape[0], rows.numel(), rows=True)
        return shaped(values, shape), found.view(shape)
    values, found = _bag(flat, Order(indptr, rows, None), _MAX)
    empty = (indptr.diff() == 0).unsqueeze(1)
    # In empty segments embedding_bag returns 0 on the CPU and -1 on CUDA.
    return shaped(values.masked_fill_(empty, -torch.inf), shape), found.masked_fill_(empty, 0).view(shape)


def edge_dot(left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
    """Multiply rows ``[num_heads, num_features]`` of two tables per edge and head: ``[num_edges, num_heads]``."""
    heads, features = left.shape[1:]
    if left_rows.numel() == 0 or left.numel() == 0 or right.numel() == 0:
        return left.new_zeros(left_rows.numel(), heads)
    if _has_kernels(left):
        products: Tensor = _launch().dots(left, right, left_rows, right_rows, left_rows.numel(), None)
        return products
    head = torch.arange(heads, device=left.device)
    at_left, at_right = (
        rows.contiguous() if heads == 1 else (rows.long().unsqueeze(1) * heads + head).view(-1)
        for rows in (left_rows, right_rows)
    )
    # The gradient of embedding_bag by its weights is a fused gather and dot product.
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        right.reshape(-1, features), left.reshape(-1, features), at_left, at_left[:0], at_right, _SUM
    )
    return shaped(dots, (left_rows.numel(), heads))


def _bag(table: Tensor, order: Order, mode: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Call ``embedding_bag``; return values, and the rows of maxima."""
    rows, ptr = order.other.to(order.ptr.dtype).contiguous(), order.ptr.contiguous()
    out, _, _, found = torch.embedding_bag(table, rows, ptr, False, mode, False, weights, True)
    return out, found


def _has_kernels(table: Tensor) -> bool:
    return table.is_cuda and table.dtype in _FLOATS and triton_compiler.usable()


def _add(
    table: Tensor, order: Order, mode: str, weights: Tensor | None, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_segments, num_edges = order.ptr.numel() - 1, order.other.numel()
    flat = table if table.dim() == 2 else table.reshape(table.shape[0], -1)
    if weights is not None and weights.dim() != 2:
        weights = weights.reshape(num_edges, -1)
    out, shares = _launch().add(flat, order, num_segments, num_edges, mode, weights, scale)
    return out if table.dim() == 2 else shaped(out, (num_segments, *table.shape[1:])), shares


@functools.cache
def _launch() -> ModuleType:
    from manyhop_train.aggregation.gpu import launch  # imports triton

    return launch


def _end_sums(left: Tensor, right: Tensor, order: Order) -> Tensor:
    """Sums of the numbers at both ends of edges, by number of edge."""
    other = order.other
    if order.edge is not None:
        other = torch.empty_like(other).index_copy_(0, order.edge, other)
    return left.index_select(0, other) + right.index_select(0, _segment_of(order))


def _segment_of(order: Order) -> Tensor:
    """Return ``[num_edges]``: the segment of each edge, by number."""
    segments = torch.arange(order.ptr.numel() - 1, device=order.ptr.device)
    in_order = torch.repeat_interleave(segments, order.ptr.diff(), output_size=order.other.numel())
    return in_order if order.edge is None else torch.empty_like(in_order).index_copy_(0, order.edge, in_order)
