"""Operators of attention: values of both ends of edges, and a softmax over the edges of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyhop.system import triton_compiler
from manyhop_train.aggregation.edges import Edges


def add_ends(left: Tensor, right: Tensor, edges: Edges, *, num_edges: int | None = None) -> Tensor:
    """Add the rows of both ends of each edge; differentiable once.

    Args:
        left: ``[num_src, ...]``.
        right: ``[num_dst, ...]``, of the same dtype: float16, bfloat16, float32 or float64.
        edges: whose local ids are below ``num_src`` and ``num_dst``.
        num_edges: use the first edges only; ``None``: all.

    Returns:
        ``[num_edges, ...]``.
    """
    limit = edges.num_edges if num_edges is None else num_edges
    if not triton_compiler.runs_on(left.device):
        row, col = edges.edge_index[:, :limit]
        return left.index_select(0, row) + right.index_select(0, col)
    if left.requires_grad and torch.is_grad_enabled():
        edges.outgoing(left.size(0), limit)  # now: the first layer of a model has most edges, and all others use these
    return _add_ends(left, right, edges, limit)


def normalize(scores: Tensor, edges: Edges, *, num_dst: int, own: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Take the softmax of scores over the edges of each destination; differentiable once.

    Args:
        scores: ``[num_edges, num_heads]`` of the first edges; minus infinity excludes an edge.
        edges: edges with local ids of destinations below ``num_dst``.
        num_dst: number of destinations.
        own: ``[num_dst, num_heads]`` additional score of each destination, such as of a self loop.

    Returns:
        ``[num_edges, num_heads]``, and ``[num_dst, num_heads]`` for ``own``.
    """
    limit = scores.size(0)
    if not triton_compiler.runs_on(scores.device):
        return _normalize_by_torch(scores, edges.edge_index[1, :limit].long(), num_dst, own)
    order = edges.incoming(num_dst)
    if order.edge is not None and limit < edges.num_edges:  # segments have others among the first edges
        order = Edges(edges.edge_index[:, :limit], ordered=False).incoming(num_dst)
    ptr = order.ptr[: num_dst + 1].clamp(max=limit)
    return _softmax(scores, own, ptr, order.edge)


def _normalize_by_torch(scores: Tensor, col: Tensor, num_dst: int, own: Tensor | None) -> tuple[Tensor, Tensor | None]:
    dtype = scores.dtype
    value = scores.float() if dtype in (torch.float16, torch.bfloat16) else scores
    mine = value.new_full((num_dst, value.size(1)), -torch.inf) if own is None else own.to(value.dtype)
    best = mine.detach().scatter_reduce(0, col.unsqueeze(1).expand_as(value), value.detach(), "amax")
    best = best.masked_fill(best == -torch.inf, 0)
    parts, mine = (value - best.index_select(0, col)).exp(), (mine - best).exp()
    total = mine.index_add(0, col, parts)
    total = total.masked_fill(total == 0, 1)
    shares = (parts / total.index_select(0, col)).to(dtype)
    return shares, None if own is None else (mine / total).to(dtype)


class _AddEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, edges: Edges, limit: int) -> Tensor:
        from manyhop_train.aggregation.gpu import launch  # imports triton

        row, col = edges.edge_index[:, :limit]
        ctx.edges, ctx.limit, ctx.sizes = edges, limit, (left.size(0), right.size(0))
        return launch.add_ends(left.flatten(1), right.flatten(1), row, col).view(limit, *left.shape[1:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from manyhop_train.aggregation.gpu import launch  # imports triton

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


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, own: Tensor | None, ptr: Tensor, edge: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        from manyhop_train.aggregation.gpu import launch  # imports triton

        out, own_out = launch.softmax(scores, ptr, edge, own)
        ctx.save_for_backward(out, own_out, ptr, edge)
        return out, own_out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, own_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        from manyhop_train.aggregation.gpu import launch  # imports triton

        out, own_out, ptr, edge = ctx.saved_tensors
        return *launch.softmax_gradient(out, grad, ptr, edge, own_out, own_grad), None, None


_add_ends: Callable[[Tensor, Tensor, Edges, int], Tensor] = _AddEnds.apply
_softmax: Callable[[Tensor, Tensor | None, Tensor, Tensor | None], tuple[Tensor, Tensor | None]] = _Softmax.apply
