"""Message passing as functions of an adjacency and tensors, differentiable any number of times.

Each is one kernel forward and one or two backward. A gradient that is not to be differentiated again calls the kernels
at once: a call of an autograd function costs the host as much as a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from manyhop_dgl_cuda.adjacency import Adjacency
from manyhop_dgl_cuda.kernels import (
    attention_gradients,
    attention_shares,
    edge_dot,
    scaled,
    segment_mean,
    segment_softmax,
    segment_sum,
    softmax_gradient,
)


class _Context(Protocol):
    """The context that autograd passes to the functions below."""

    adjacency: Adjacency
    slope: float
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Any, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward pass."""


class _Sum(torch.autograd.Function):
    """``[num_dst, ...]`` sums of rows of a table ``[num_src, ...]``.

    Weights are ``[num_edges, ...]``, one for each head; a row has the features of the first head, then of the next.
    """

    @staticmethod
    def forward(ctx: _Context, adjacency: Adjacency, table: Tensor, weights: Tensor | None) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(table if ctx.needs_input_grad[2] else None, weights, None)
        return segment_sum(table, adjacency.csc.order, weights)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        adjacency = ctx.adjacency
        table, weights, shares = ctx.saved_tensors
        again, grad = torch.is_grad_enabled(), grads[0]
        if shares is not None and (again or ctx.needs_input_grad[2]):
            grad, shares = scaled(grad, shares), None
        of_table: Tensor | None = None
        of_weights: Tensor | None = None
        if ctx.needs_input_grad[1]:
            of_table = (
                weighted_sums(adjacency.reverse, grad, weights)
                if again
                else segment_sum(grad, adjacency.csr.order, weights, shares)
            )
        if ctx.needs_input_grad[2]:
            heads = weights.shape[1:].numel()
            left, right = (t.reshape(t.shape[0], heads, t.shape[1:].numel() // heads) for t in (table, grad))
            products = (
                edge_products(adjacency, left, right) if again else edge_dot(left, right, adjacency.src, adjacency.dst)
            )
            of_weights = products.view(weights.shape)
        return None, of_table, of_weights


class _Mean(_Sum):
    """The same over the number of edges."""

    @staticmethod
    def forward(ctx: _Context, adjacency: Adjacency, table: Tensor, weights: Tensor | None) -> Tensor:
        ctx.adjacency = adjacency
        means, shares = segment_mean(table, adjacency.csc.order, weights)
        ctx.save_for_backward(table if ctx.needs_input_grad[2] else None, weights, shares)
        return means


class _Dots(torch.autograd.Function):
    """``[num_edges, num_heads]`` dot products of the rows ``[num_nodes, num_heads, num_features]`` at both ends."""

    @staticmethod
    def forward(ctx: _Context, adjacency: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        ctx.save_for_backward(sources, targets)
        return edge_dot(sources, targets, adjacency.src, adjacency.dst)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sources, targets = ctx.saved_tensors
        of_sources = weighted_sums(ctx.adjacency.reverse, targets, grads[0]) if ctx.needs_input_grad[1] else None
        of_targets = weighted_sums(ctx.adjacency, sources, grads[0]) if ctx.needs_input_grad[2] else None
        return None, of_sources, of_targets


class _Softmax(torch.autograd.Function):
    """Scores ``[num_edges, ...]``, normalized over the edges of each destination."""

    @staticmethod
    def forward(ctx: _Context, adjacency: Adjacency, scores: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        out = segment_softmax(scores, adjacency.csc.order)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, softmax_gradient(out, grads[0], ctx.adjacency.csc.order)
        dst, product = ctx.adjacency.dst, out * grads[0]
        sums = product.new_zeros(ctx.adjacency.num_dst, *out.shape[1:]).index_add(0, dst, product)
        return None, product - out * sums.index_select(0, dst)


class _AddEnds(torch.autograd.Function):
    """``[num_edges, ...]`` sums of the rows at both ends."""

    @staticmethod
    def forward(ctx: _Context, adjacency: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        return sources.index_select(0, adjacency.src).add_(targets.index_select(0, adjacency.dst))

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        adjacency = ctx.adjacency
        add = edge_sums if torch.is_grad_enabled() else _edge_sums
        of_sources = add(adjacency.reverse, grads[0]) if ctx.needs_input_grad[1] else None
        of_targets = add(adjacency, grads[0]) if ctx.needs_input_grad[2] else None
        return None, of_sources, of_targets


class _SumEdges(torch.autograd.Function):
    """``[num_dst, ...]`` sums of rows of edges ``[num_edges, ...]``."""

    @staticmethod
    def forward(ctx: _Context, adjacency: Adjacency, rows: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        return _edge_sums(adjacency, rows)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, grads[0].index_select(0, ctx.adjacency.dst)


class _Attention(torch.autograd.Function):
    """``[num_dst, num_heads, num_features]`` sums of rows ``[num_src, ...]``, weighted by attention.

    The scores of edges are leaky ReLUs of the sums of numbers at both ends, ``[num_src, num_heads]`` and
    ``[num_dst, num_heads]``: graph attention networks, https://arxiv.org/abs/1710.10903.
    """

    @staticmethod
    def forward(
        ctx: _Context, adjacency: Adjacency, table: Tensor, left: Tensor, right: Tensor, slope: float
    ) -> Tensor:
        order = adjacency.csc.order
        shares = attention_shares(left, right, order, slope)
        ctx.adjacency, ctx.slope = adjacency, slope
        ctx.save_for_backward(table, left, right, shares)
        return segment_sum(table, order, shares)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        adjacency = ctx.adjacency
        table, left, right, shares = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:4]
        if torch.is_grad_enabled():
            inputs = [t.view_as(t) for t in (table, left, right)]  # gradients end here: both ends are rows of the table
            again = normalized(adjacency, leaky_relu(end_sums(adjacency, *inputs[1:]), ctx.slope))
            learnt = [t for t, need in zip(inputs, needed, strict=True) if need]
            found = iter(
                torch.autograd.grad(weighted_sums(adjacency, inputs[0], again), learnt, grads[0], create_graph=True)
            )
            return None, *(next(found) if need else None for need in needed), None
        of_table = segment_sum(grads[0], adjacency.csr.order, shares) if needed[0] else None
        if not any(needed[1:]):
            return None, of_table, None, None, None
        of_shares = edge_dot(table, grads[0], adjacency.src, adjacency.dst)
        of_sums, of_right = attention_gradients(shares, of_shares, left, right, adjacency.csc.order, ctx.slope)
        of_left = _edge_sums(adjacency.reverse, of_sums) if needed[1] else None
        return None, of_table, of_left, of_right, None


def weighted_means(adjacency: Adjacency, table: Tensor, weights: Tensor | None) -> Tensor:
    """Average rows, weighted; see :class:`_Mean`."""
    learnt = table.requires_grad or (weights is not None and weights.requires_grad)
    if learnt and torch.is_grad_enabled():
        return _mean(adjacency, table, weights)
    return segment_mean(table, adjacency.csc.order, weights)[0]  # as in a first layer


def _edge_sums(adjacency: Adjacency, rows: Tensor) -> Tensor:
    return segment_sum(rows, adjacency.csc.by_id)


_mean: Callable[[Adjacency, Tensor, Tensor | None], Tensor] = _Mean.apply
weighted_sums: Callable[[Adjacency, Tensor, Tensor | None], Tensor] = _Sum.apply
edge_products: Callable[[Adjacency, Tensor, Tensor], Tensor] = _Dots.apply
normalized: Callable[[Adjacency, Tensor], Tensor] = _Softmax.apply
end_sums: Callable[[Adjacency, Tensor, Tensor], Tensor] = _AddEnds.apply
edge_sums: Callable[[Adjacency, Tensor], Tensor] = _SumEdges.apply
attention: Callable[[Adjacency, Tensor, Tensor, Tensor, float], Tensor] = _Attention.apply
