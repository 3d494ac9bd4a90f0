"""Aggregation for autograd: an autograd function in Python, torch operators under ``torch.compile``.

Calls of operators take the host several times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyhop_train.aggregation.edges import Order
from manyhop_train.aggregation.gpu import launch

_ORDER = "Tensor{0} {1}_ptr, Tensor{0} {1}_other, Tensor? {1}_edge"
_INCOMING, _OUTGOING = _ORDER.format("", "in"), _ORDER.format("?", "out")


def aggregate_segments(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Reduce rows per segment.

    Args:
        inputs: x ``[num_src, num_channels]``; weight ``[limit]``, ``[limit, num_heads]`` or ``None``; ptr, other and
            edge of the ``Order`` by destination; the same by source if x needs gradients, otherwise ``None``; with a
            weight, edge_index ``[2, num_edges]``; number of destinations; number of edges; "sum", "mean" or "max".

    Returns:
        ``[num_dst, num_channels]``, and a tensor for the gradient.
    """
    weight, ptr = inputs[1], inputs[5]
    function: Callable[..., tuple[Tensor, Tensor]] = _Aggregation.apply
    if torch.compiler.is_compiling():
        function = aggregate_operator
    elif ptr is None and (weight is None or not weight.requires_grad):  # as in a first layer
        function = _aggregate
    return function(*inputs)


def _aggregate(
    x: Tensor,
    weight: Tensor | None,
    in_ptr: Tensor,
    in_other: Tensor,
    in_edge: Tensor | None,
    out_ptr: Tensor | None,
    out_other: Tensor | None,
    out_edge: Tensor | None,
    edge_index: Tensor | None,
    size: int,
    limit: int,
    reduce: str,
) -> tuple[Tensor, Tensor]:
    incoming = Order(in_ptr, in_other, in_edge)
    if reduce == "max":
        return launch.maxima(x, incoming, size, limit, ties=out_ptr is not None)
    out, factors = launch.add(x, incoming, size, limit, reduce, weight)
    return out, x.new_empty(0) if factors is None else factors


def _add(
    grad: Tensor,
    ptr: Tensor,
    other: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    maxima: Tensor | None,
    chosen: Tensor | None,
    size: int,
    limit: int,
) -> Tensor:
    pair = None if maxima is None or chosen is None else (maxima, chosen)
    return launch.add(grad, Order(ptr, other, edge), size, limit, "sum", weight, scale, chosen=pair)[0]


def _dots(x: Tensor, grad: Tensor, edge_index: Tensor, limit: int, scale: Tensor | None) -> Tensor:
    return launch.dots(x, grad, edge_index[0], edge_index[1], limit, scale)


aggregate_operator = torch.library.custom_op(
    "manyhop::aggregate_segments",
    _aggregate,
    mutates_args=(),
    schema=f"(Tensor x, Tensor? weight, {_INCOMING}, {_OUTGOING}, Tensor? edge_index, SymInt size, SymInt limit, "
    "str reduce) -> (Tensor, Tensor)",
)
_add_operator = torch.library.custom_op(
    "manyhop::add_segments",
    _add,
    mutates_args=(),
    schema="(Tensor grad, Tensor ptr, Tensor other, Tensor? edge, Tensor? weight, Tensor? scale, Tensor? maxima, "
    "Tensor? chosen, SymInt size, SymInt limit) -> Tensor",
)
_dots_operator = torch.library.custom_op(
    "manyhop::edge_dots",
    _dots,
    mutates_args=(),
    schema="(Tensor x, Tensor grad, Tensor edge_index, SymInt limit, Tensor? scale) -> Tensor",
)


@aggregate_operator.register_fake
def _(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    size, _, reduce = args[-3:]
    out = x.new_empty(size, x.size(1))
    if reduce == "max":
        return out, x.new_empty(out.shape if args[4] is not None else 0, dtype=torch.int32)
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    return out, x.new_empty(size if reduce == "mean" else 0, dtype=sums)


@_add_operator.register_fake
def _(grad: Tensor, *args: Any) -> Tensor:
    return grad.new_empty(args[-2], grad.size(1))


@_dots_operator.register_fake
def _(x: Tensor, grad: Tensor, edge_index: Tensor, limit: int, scale: Tensor | None) -> Tensor:
    return x.new_empty(limit, *x.shape[1:-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, _, _, ptr, other, edge, edge_index, _, ctx.limit, ctx.reduce = inputs
    out, extra = output
    ctx.mark_non_differentiable(extra)
    ctx.set_materialize_grads(False)
    ctx.num_src = x.size(0)
    rows = x if ctx.reduce == "max" or weight is not None else None
    ctx.save_for_backward(rows, weight, ptr, other, edge, edge_index, out if ctx.reduce == "max" else None, extra)


def _gradients(
    ctx: Any, grad: Tensor | None, add: Callable[..., Tensor], dots: Callable[..., Tensor]
) -> tuple[Tensor | None, ...]:
    x, weight, *order, edge_index, out, extra = ctx.saved_tensors
    of_x: Tensor | None = None
    of_weight: Tensor | None = None
    if grad is not None:
        scale = extra if ctx.reduce == "mean" else None
        if ctx.needs_input_grad[0] and ctx.reduce == "max":
            share = grad / extra.clamp(min=1)
            of_x = add(share, *order, None, None, out, x, ctx.num_src, ctx.limit)
        elif ctx.needs_input_grad[0]:
            of_x = add(grad, *order, weight, scale, None, None, ctx.num_src, ctx.limit)
        if ctx.needs_input_grad[1]:
            heads = weight.shape[1:]
            left, right = (t.view(t.size(0), *heads, t.size(1) // heads.numel()) for t in (x, grad.contiguous()))
            of_weight = dots(left, right, edge_index, ctx.limit, scale)
    return of_x, of_weight, *[None] * 10


aggregate_operator.register_autograd(
    lambda ctx, grad, _: _gradients(ctx, grad, _add_operator, _dots_operator), setup_context=_keep
)


class _Aggregation(torch.autograd.Function):
    """The same without operators."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _aggregate(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grad, _add, _dots)
