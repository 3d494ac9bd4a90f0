"""Message passing as functions of an adjacency and tensors, differentiable any number of times.

Each is one kernel forward and one or two backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyhop_dgl.torch_graphs.adjacency import Adjacency
from manyhop_dgl.torch_graphs.kernels import edge_dot, segment_mean, segment_softmax, segment_sum, softmax_gradient


class _Sum(torch.autograd.Function):
    """``[num_dst, num_heads, num_features]`` sums of rows of a table, maybe weighted by ``[num_edges, num_heads]``."""

    @staticmethod
    def forward(ctx: Any, adjacency: Adjacency, table: Tensor, weights: Tensor | None) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(table if ctx.needs_input_grad[2] else None, weights)
        return segment_sum(table, adjacency.csc.order, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        table, weights = ctx.saved_tensors
        of_table = weighted_sums(ctx.adjacency.reverse, grads[0], weights) if ctx.needs_input_grad[1] else None
        of_weights = edge_products(ctx.adjacency, table, grads[0]) if ctx.needs_input_grad[2] else None
        return None, of_table, of_weights


class _Mean(torch.autograd.Function):
    """The same over the number of edges."""

    @staticmethod
    def forward(ctx: Any, adjacency: Adjacency, table: Tensor, weights: Tensor | None) -> Tensor:
        ctx.adjacency = adjacency
        means, shares = segment_mean(table, adjacency.csc.order, weights)
        ctx.save_for_backward(table if ctx.needs_input_grad[2] else None, weights, shares)
        return means

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        table, weights, shares = ctx.saved_tensors
        grad = grads[0] * shares.view(-1, 1, 1).to(grads[0].dtype)
        of_table = weighted_sums(ctx.adjacency.reverse, grad, weights) if ctx.needs_input_grad[1] else None
        of_weights = edge_products(ctx.adjacency, table, grad) if ctx.needs_input_grad[2] else None
        return None, of_table, of_weights


class _Dots(torch.autograd.Function):
    """``[num_edges, num_heads]`` dot products of the rows ``[num_nodes, num_heads, num_features]`` at both ends."""

    @staticmethod
    def forward(ctx: Any, adjacency: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(sources, targets)
        return edge_dot(sources, targets, adjacency.src, adjacency.dst)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sources, targets = ctx.saved_tensors
        of_sources = weighted_sums(ctx.adjacency.reverse, targets, grads[0]) if ctx.needs_input_grad[1] else None
        of_targets = weighted_sums(ctx.adjacency, sources, grads[0]) if ctx.needs_input_grad[2] else None
        return None, of_sources, of_targets


class _Softmax(torch.autograd.Function):
    """Scores ``[num_edges, num_heads]``, normalized over the edges of each destination."""

    @staticmethod
    def forward(ctx: Any, adjacency: Adjacency, scores: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        out = segment_softmax(scores, adjacency.csc.order)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, softmax_gradient(out, grads[0], ctx.adjacency.csc.order)
        dst, product = ctx.adjacency.dst, out * grads[0]  # differentiable once more
        sums = product.new_zeros(ctx.adjacency.num_dst, out.size(1)).index_add(0, dst, product)
        return None, product - out * sums.index_select(0, dst)


class _AddEnds(torch.autograd.Function):
    """``[num_edges, ...]`` sums of the rows at both ends."""

    @staticmethod
    def forward(ctx: Any, adjacency: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        return sources.index_select(0, adjacency.src) + targets.index_select(0, adjacency.dst)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_sources = edge_sums(ctx.adjacency.reverse, grads[0]) if ctx.needs_input_grad[1] else None
        of_targets = edge_sums(ctx.adjacency, grads[0]) if ctx.needs_input_grad[2] else None
        return None, of_sources, of_targets


class _SumEdges(torch.autograd.Function):
    """``[num_dst, ...]`` sums of rows of edges ``[num_edges, ...]``."""

    @staticmethod
    def forward(ctx: Any, adjacency: Adjacency, rows: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        table = rows.reshape(rows.shape[0], 1, rows.shape[1:].numel())
        return segment_sum(table, adjacency.csc.by_id).view(adjacency.num_dst, *rows.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, grads[0].index_select(0, ctx.adjacency.dst)


weighted_sums: Callable[[Adjacency, Tensor, Tensor | None], Tensor] = _Sum.apply
weighted_means: Callable[[Adjacency, Tensor, Tensor | None], Tensor] = _Mean.apply
edge_products: Callable[[Adjacency, Tensor, Tensor], Tensor] = _Dots.apply
normalized: Callable[[Adjacency, Tensor], Tensor] = _Softmax.apply
end_sums: Callable[[Adjacency, Tensor, Tensor], Tensor] = _AddEnds.apply
edge_sums: Callable[[Adjacency, Tensor], Tensor] = _SumEdges.apply
