"""The operators that layers spend their time in, each one kernel forward and one or two backward.

DGL composes them of g-SpMM and g-SDDMM, whose Python takes longer than the GPU does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import dgl
import torch
from dgl.base import is_all
from torch import Tensor

from manyhop_dgl_cuda.adjacency import HeteroAdjacency
from manyhop_dgl_cuda.differentiable import end_sums, normalized, weighted_means, weighted_sums
from manyhop_dgl_cuda.dispatch import on_torch
from manyhop_dgl_cuda.message_passing import check_dtypes, is_weight


def cast(*args: object) -> tuple[Any, ...]:
    """Cast tensors of floating point to autocast's dtype, float64 excepted: ``_cast_if_autocast_enabled`` of DGL."""
    first = args[0] if isinstance(args[0], Tensor) else next(arg for arg in args if isinstance(arg, Tensor))
    device = first.device.type
    if not torch.is_autocast_enabled(device):
        return args
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() and arg.dtype != torch.float64 else arg
        for arg in args
    )


def disabled() -> ExitStack:
    """Switch autocast off in the body, if it is on: ``_disable_autocast_if_enabled`` of DGL."""
    stack = ExitStack()
    for device in ("cpu", "cuda"):
        if on_torch(torch.device(device)) and torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def is_sum(gidx: HeteroAdjacency, op: str, reduce_op: str, lhs: Tensor | None, rhs: Tensor | None) -> bool:
    """Return whether :func:`gspmm` computes this: sums of features of nodes, and those weighted by edges."""
    if reduce_op != "sum" or lhs is None or not lhs.is_floating_point() or len(gidx.relations) != 1:
        return False
    if op == "copy_lhs":
        return lhs.dim() > 1
    return op == "mul" and rhs is not None and lhs.dim() == rhs.dim() > 1 and is_weight(lhs, rhs)


def gspmm(gidx: HeteroAdjacency, op: str, reduce_op: str, lhs: Tensor, rhs: Tensor | None) -> Tensor:
    """Sum features of sources ``[num_src, ...]``, weighted by ``[num_edges, ..., 1]``: ``dgl.backend.gspmm``."""
    adjacency = gidx.only_relation()
    lhs, rhs = cast(lhs, None if op == "copy_lhs" else rhs)
    if rhs is not None:
        check_dtypes(lhs, rhs)
    return (weighted_means if reduce_op == "mean" else weighted_sums)(adjacency, lhs, rhs)


def is_mean(g: dgl.DGLGraph, op: str, reduce_op: str, lhs: object, rhs: Tensor | None) -> bool:
    """Return whether :func:`mean` computes this."""
    return reduce_op == "mean" and isinstance(lhs, Tensor) and is_sum(g._graph, op, "sum", lhs, rhs)


def mean(g: dgl.DGLGraph, op: str, reduce_op: str, lhs: Tensor, rhs: Tensor | None) -> Tensor:
    """Average features of sources: ``dgl.ops.gspmm`` where :func:`is_mean`; zeros without edges."""
    return gspmm(g._graph, op, reduce_op, lhs, rhs)


def is_softmax(gidx: HeteroAdjacency, logits: Tensor, eids: object = dgl.base.ALL, norm_by: str = "dst") -> bool:
    """Return whether :func:`edge_softmax` computes this."""
    return is_all(eids) and len(gidx.relations) == 1 and logits.is_floating_point()


def edge_softmax(gidx: HeteroAdjacency, logits: Tensor, eids: object = dgl.base.ALL, norm_by: str = "dst") -> Tensor:
    """Normalize scores ``[num_edges, ...]`` over each destination or source: ``dgl.backend.edge_softmax``."""
    adjacency = gidx.only_relation()
    (logits,) = cast(logits)
    return normalized(adjacency.reverse if norm_by == "src" else adjacency, logits)


def is_end_sum(
    gidx: HeteroAdjacency, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str = "u", rhs_target: str = "v"
) -> bool:
    """Return whether :func:`gsddmm` computes this: sums of features of both ends."""
    if (op, lhs_target, rhs_target) != ("add", "u", "v") or lhs is None or rhs is None or len(gidx.relations) != 1:
        return False
    return lhs.shape[1:] == rhs.shape[1:] and lhs.dtype == rhs.dtype and lhs.is_floating_point()


def gsddmm(
    gidx: HeteroAdjacency, op: str, lhs: Tensor, rhs: Tensor, lhs_target: str = "u", rhs_target: str = "v"
) -> Tensor:
    """Add features of both ends of each edge, ``[num_edges, ...]``: ``dgl.backend.gsddmm``."""
    lhs, rhs = cast(lhs, rhs)
    return end_sums(gidx.only_relation(), lhs, rhs)
