"""Aggregation and attention for autograd: kernels, and their gradients by kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyhop_train.aggregation.edges import Edges, Order, Reduction
from manyhop_train.aggregation.gpu import launch


def aggregate(x: Tensor, weight: Tensor | None, edges: Edges, size: int, limit: int, reduce: Reduction) -> Tensor:
    """Compute :func:`manyhop_train.aggregation.aggregate` for checked arguments."""
    incoming, outgoing = edges.incoming(size), None
    if learns := torch.is_grad_enabled() and x.requires_grad:
        outgoing = edges.outgoing(x.size(0), limit)
    if learns or (torch.is_grad_enabled() and weight is not None and weight.requires_grad):
        ends = None if weight is None else edges.edge_index
        out: Tensor = _Aggregation.apply(x, weight, incoming, outgoing, ends, size, limit, reduce)  # type: ignore[no-untyped-call]
        return out
    return _aggregate(x, weight, incoming, size, limit, reduce)[0]  # as in a first layer


def _aggregate(
    x: Tensor, weight: Tensor | None, order: Order, size: int, limit: int, reduce: Reduction, *, ties: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return ``[size, num_channels]``, and a tensor for the gradient."""
    if reduce == "max":
        return launch.maxima(x, order, size, limit, ties=ties)
    return launch.add(x, order, size, limit, reduce, weight)


class _Aggregation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, incoming: Order, outgoing: Order | None,
                edge_index: Tensor | None, size: int, limit: int, reduce: Reduction) -> Tensor:  # fmt: skip
        out, extra = _aggregate(x, weight, incoming, size, limit, reduce, ties=outgoing is not None)
        is_max = reduce == "max"
        ctx.limit, ctx.reduce, ctx.num_src = limit, reduce, x.size(0)
        rows = x if is_max or weight is not None else None
        order = outgoing or (None, None, None)
        ctx.save_for_backward(rows, weight, *order, edge_index, out if is_max else None, extra)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *order, edge_index, out, extra = ctx.saved_tensors
        of_x: Tensor | None = None
        of_weight: Tensor | None = None
        scale = extra if ctx.reduce == "mean" else None
        if ctx.needs_input_grad[0] and ctx.reduce == "max":
            share = grad / extra.clamp(min=1)
            of_x, _ = launch.add(share, Order(*order), ctx.num_src, ctx.limit, "sum", chosen=(out, x))
        elif ctx.needs_input_grad[0]:
            of_x, _ = launch.add(grad, Order(*order), ctx.num_src, ctx.limit, "sum", weight, scale)
        if ctx.needs_input_grad[1]:
            heads = weight.shape[1:]
            left, right = (t.view(t.size(0), *heads, t.size(1) // heads.numel()) for t in (x, grad.contiguous()))
            of_weight = launch.dots(left, right, edge_index[0], edge_index[1], ctx.limit, scale)
        return of_x, of_weight, *[None] * 6


class AddEnds(torch.autograd.Function):
    """Sums of the rows at both ends of edges."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, edges: Edges, limit: int) -> Tensor:
        """Add rows."""
        row, col = edges.edge_index[:, :limit]
        ctx.edges, ctx.limit, ctx.sizes = edges, limit, (left.size(0), right.size(0))
        return launch.add_ends(left.flatten(1), right.flatten(1), row, col).view(limit, *left.shape[1:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients of edges per node."""
        edges: Edges = ctx.edges
        num_src, num_dst = ctx.sizes
        orders = (
            edges.outgoing(num_src, ctx.limit) if ctx.needs_input_grad[0] else None,
            edges.incoming(num_dst) if ctx.needs_input_grad[1] else None,
        )
        rows = grad.flatten(1)
        found = (
            None if order is None else launch.add(rows, order.by_number(), size, ctx.limit, "sum")[0]
            for order, size in zip(orders, ctx.sizes, strict=True)
        )
        return *(None if of is None else of.view(-1, *grad.shape[1:]) for of in found), None, None


class Softmax(torch.autograd.Function):
    """Softmax of the scores of edges over the edges of each segment."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, own: Tensor | None, order: Order) -> tuple[Tensor, Tensor | None]:
        """Normalize scores."""
        out, own_out = launch.softmax(scores, order, own)
        ctx.save_for_backward(out, own_out, *order)
        return out, own_out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, own_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of scores."""
        out, own_out, *order = ctx.saved_tensors
        own = None if own_out is None or own_grad is None else (own_out, own_grad)
        return *launch.softmax_gradient(out, grad, Order(*order), own), None
