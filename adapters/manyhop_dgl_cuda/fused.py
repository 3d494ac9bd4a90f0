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


def gspmm(gidx: HeteroAdjacency, op: str, reduce_op: str, lhs: Tensor | None, rhs: Tensor | None) -> Any:
    """Sum or average features of sources ``[num_src, ...]``, or those weighted by ``[num_edges, ..., 1]``.

    ``dgl.backend.gspmm``; ``NotImplemented`` for other operators.
    """
    if reduce_op not in ("sum", "mean") or lhs is None or not lhs.is_floating_point() or len(gidx.relations) != 1:
        return NotImplemented
    if lhs.dim() < 2 or op not in ("copy_lhs", "mul"):
        return NotImplemented
    if op == "mul" and (rhs is None or lhs.dim() != rhs.dim() or not is_weight(lhs, rhs)):
        return NotImplemented
    lhs, rhs = cast(lhs, None if op == "copy_lhs" else rhs)
    if rhs is not None:
        check_dtypes(lhs, rhs)
    return (weighted_means if reduce_op == "mean" else weighted_sums)(gidx.only_relation(), lhs, rhs)


def mean(g: dgl.DGLGraph, op: str, reduce_op: str, lhs_data: object, rhs_data: Tensor | None) -> object:
    """Average features of sources, zeros without edges: ``dgl.ops.gspmm``, which would count degrees each time."""
    if reduce_op != "mean" or not isinstance(lhs_data, Tensor):
        return NotImplemented
    return gspmm(g._graph, op, reduce_op, lhs_data, rhs_data)


def edge_softmax(gidx: HeteroAdjacency, logits: Tensor, eids: object = dgl.base.ALL, norm_by: str = "dst") -> object:
    """Normalize scores ``[num_edges, ...]`` over each destination or source: ``dgl.backend.edge_softmax``."""
    if not is_all(eids) or len(gidx.relations) != 1 or not logits.is_floating_point():
        return NotImplemented
    adjacency = gidx.only_relation()
    (logits,) = cast(logits)
    return normalized(adjacency.reverse if norm_by == "src" else adjacency, logits)


def gsddmm(
    gidx: HeteroAdjacency, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str = "u", rhs_target: str = "v"
) -> Any:
    """Add features of both ends of each edge, ``[num_edges, ...]``: ``dgl.backend.gsddmm``."""
    if (op, lhs_target, rhs_target) != ("add", "u", "v") or lhs is None or rhs is None or len(gidx.relations) != 1:
        return NotImplemented
    if lhs.shape[1:] != rhs.shape[1:] or lhs.dtype != rhs.dtype or not lhs.is_floating_point():
        return NotImplemented
    lhs, rhs = cast(lhs, rhs)
    return end_sums(gidx.only_relation(), lhs, rhs)
