"""Aggregation and attention: kernels on a GPU, otherwise torch's operators, which are also their reference."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.system import triton_compiler
from manyhop_train.aggregation.edges import Edges, Reduction


def aggregate_by_torch(
    x: Tensor, edge_index: Tensor, *, num_dst: int, reduce: Reduction, weight: Tensor | None
) -> Tensor:
    """Compute :func:`manyhop_train.aggregation.aggregate`, with float32 sums for half precision."""
    row, col = edge_index
    messages = x.index_select(0, row)
    if messages.dtype in (torch.float16, torch.bfloat16):
        messages = messages.float()
    if weight is not None:
        heads = 1 if weight.dim() == 1 else weight.size(1)
        factors = weight.to(messages.dtype).view(-1, heads, 1)
        messages = (messages.view(-1, heads, x.size(1) // heads) * factors).flatten(1)
    count = messages.new_zeros(num_dst).index_add(0, col, messages.new_ones(col.numel())).unsqueeze(1)
    if reduce == "max":
        # From minus infinity: gradients of maxima that equal the initial value would be shared with it.
        least = messages.new_full((num_dst, x.size(1)), -torch.inf)
        out = least.scatter_reduce(0, col.long().unsqueeze(1).expand_as(messages), messages, "amax")
        return out.masked_fill(count == 0, 0).to(x.dtype)
    out = messages.new_zeros(num_dst, x.size(1)).index_add(0, col, messages)
    return (out / count.clamp(min=1) if reduce == "mean" else out).to(x.dtype)


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def aggregate(
    x: Tensor,
    edges: Edges,
    *,
    num_dst: int,
    reduce: Reduction,
    num_edges: int | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Reduce the rows of sources at their destinations; differentiable by rows and weights.

    Equal maxima share a gradient evenly. Destinations without edges get zeros.

    Args:
        x: ``[num_src, num_channels]`` rows of sources: float16, bfloat16 (sums are of float32), float32 or float64.
        edges: whose local ids are below ``num_src`` and ``num_dst``.
        num_dst: number of destinations.
        reduce: "sum", "mean" or "max".
        num_edges: use the first edges only; ``None``: all.
        weight: ``[num_edges]`` or ``[num_edges, num_heads]`` factors of the rows, of the dtype of ``x``; each head has
            an equal share of the channels. Not for "max". The mean divides by the number of edges.

    Returns:
        ``[num_dst, num_channels]``, of the dtype of ``x``.

    Raises:
        InputError: an argument does not fit.
    """
    limit = edges.num_edges if num_edges is None else num_edges
    if reduce not in get_args(Reduction):
        raise InputError(f"Expected reduce to be 'sum', 'mean' or 'max', got {reduce!r}.")
    if x.dim() != 2 or x.dtype not in _DTYPES:
        raise InputError(
            f"Expected x of shape [num_src, num_channels] and a floating dtype, got {tuple(x.shape)} of {x.dtype}."
        )
    if not 0 <= limit <= edges.num_edges:
        raise InputError(f"Expected num_edges of 0 to {edges.num_edges}, got {limit}.")
    if weight is not None and (reduce == "max" or weight.dtype != x.dtype or not _is_weight(weight, x, limit)):
        raise InputError(
            f"Expected weight of shape [{limit}] and {x.dtype}, or with heads that divide {x.size(1)} channels, for a "
            f"sum or mean, got {tuple(weight.shape)} of {weight.dtype} for '{reduce}'."
        )
    if not triton_compiler.runs_on(x.device):
        return aggregate_by_torch(x, edges.edge_index[:, :limit], num_dst=num_dst, reduce=reduce, weight=weight)
    from manyhop_train.aggregation.gpu import functions  # imports triton

    return functions.aggregate(x, weight, edges, num_dst, limit, reduce)


def _is_weight(weight: Tensor, x: Tensor, limit: int) -> bool:
    return weight.shape[:1] == (limit,) and (
        weight.dim() == 1 or (weight.dim() == 2 and weight.size(1) > 0 and x.size(1) % weight.size(1) == 0)
    )


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
        return left.index_select(0, edges.edge_index[0, :limit]) + right.index_select(0, edges.edge_index[1, :limit])
    if left.requires_grad and torch.is_grad_enabled():
        edges.outgoing(left.size(0), limit)  # now: the first layer of a model has most edges, and all others use these
    from manyhop_train.aggregation.gpu.functions import AddEnds  # imports triton

    sums: Tensor = AddEnds.apply(left, right, edges, limit)  # type: ignore[no-untyped-call]
    return sums


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
    from manyhop_train.aggregation.gpu.functions import Softmax  # imports triton

    order = order._replace(ptr=order.ptr[: num_dst + 1].clamp(max=limit))
    shares: tuple[Tensor, Tensor | None] = Softmax.apply(scores, own, order)  # type: ignore[no-untyped-call]
    return shares


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
