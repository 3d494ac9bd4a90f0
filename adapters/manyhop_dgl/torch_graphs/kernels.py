"""The kernels of message passing, on plain tensors of any device: what a fused GPU kernel would replace.

They are made of torch's ``embedding_bag``, a gather fused with a segmented reduction, without atomics and without a
tensor of ``[num_edges, num_features]``. Sums of half precision are accumulated in float32. None is differentiable:
DGL's autograd functions call them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SUM, _MAX = 0, 2


def segment_sum(table: Tensor, indptr: Tensor, rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum rows of a table per segment.

    Args:
        table: ``[num_rows, num_heads, num_features]``.
        indptr: ``[num_segments + 1]``: where each segment begins.
        rows: ``[num_edges]``: which row of the table each edge takes.
        weights: ``[num_edges, num_heads]``: what rows are multiplied by.

    Returns:
        ``[num_segments, num_heads, num_features]``.
    """
    num_rows, heads, features = table.shape
    num_segments = indptr.numel() - 1
    if table.numel() == 0 or rows.numel() == 0:
        return table.new_zeros(num_segments, heads, features)
    if weights is None or heads == 1:
        scale = None if weights is None else weights.reshape(-1)
        return _bag(table.reshape(num_rows, heads * features), indptr, rows, _SUM, scale)[0].view(
            num_segments, heads, features
        )
    # A segment per head and node, head by head: one launch, and the table is not copied.
    head = torch.arange(heads, device=rows.device).unsqueeze(1)
    by_head = (rows.long() * heads + head).view(-1)
    ends = (indptr[1:].long() + rows.numel() * head).view(-1)
    bounds = torch.cat([indptr[:1].long(), ends])
    sums = _bag(table.reshape(num_rows * heads, features), bounds, by_head, _SUM, weights.t().reshape(-1))[0]
    return sums.view(heads, num_segments, features).transpose(0, 1).contiguous()


def segment_max(table: Tensor, indptr: Tensor, rows: Tensor, *, last: bool) -> tuple[Tensor, Tensor]:
    """Find the maximum per segment and feature, and the row that it came from.

    Args:
        table: ``[num_rows, ...]``.
        indptr: ``[num_segments + 1]``: where each segment begins.
        rows: ``[num_edges]``: which row of the table each edge takes.
        last: of equal maxima, name the row of the last edge; ``False``: of the first.

    Returns:
        ``[num_segments, ...]`` maxima, minus infinity in empty segments, and rows, 0 in empty segments.
    """
    shape = indptr.numel() - 1, *table.shape[1:]
    if rows.numel() == 0 or table.numel() == 0:
        return table.new_full(shape, -torch.inf), rows.new_zeros(shape)
    flat = table.reshape(table.shape[0], table.shape[1:].numel())
    if last:  # embedding_bag names the first
        values, found = _bag(flat, rows.numel() - indptr.flip(0), rows.flip(0), _MAX)
        values, found = values.flip(0), found.flip(0)
    else:
        values, found = _bag(flat, indptr, rows, _MAX)
    empty = (indptr.diff() == 0).unsqueeze(1)
    # In empty segments embedding_bag gives 0 on the CPU and -1 on CUDA.
    return values.masked_fill_(empty, -torch.inf).view(shape), found.masked_fill_(empty, 0).view(shape)


def edge_dot(left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
    """Multiply rows of two tables per edge and head: dot products.

    Args:
        left: ``[num_left, num_heads, num_features]``.
        right: ``[num_right, num_heads, num_features]``.
        left_rows: ``[num_edges]``: which row of ``left`` each edge takes.
        right_rows: ``[num_edges]``: which row of ``right``.

    Returns:
        ``[num_edges, num_heads]``.
    """
    heads, features = left.shape[1:]
    if left_rows.numel() == 0 or left.numel() == 0 or right.numel() == 0:
        return left.new_zeros(left_rows.numel(), heads)
    head = torch.arange(heads, device=left.device)
    at_left, at_right = (
        rows if heads == 1 else (rows.long().unsqueeze(1) * heads + head).view(-1) for rows in (left_rows, right_rows)
    )
    # The gradient of embedding_bag by its weights is a fused gather and dot product.
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        right.reshape(-1, features), left.reshape(-1, features), at_left, at_left[:0], at_right, _SUM
    )
    return dots.view(-1, heads)


def _bag(
    table: Tensor, indptr: Tensor, rows: Tensor, mode: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``embedding_bag``: values, and the rows of maxima."""
    out, _, _, found = torch.embedding_bag(table, rows, indptr, False, mode, False, weights, True)
    return out, found
