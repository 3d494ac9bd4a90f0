"""DGL's g-SDDMM on torch tensors: features of edges from those of their ends, and the softmax over edges."""

from __future__ import annotations

from collections.abc import Sequence

from dgl import DGLError
from torch import Tensor

from manyhop_dgl_cuda.adjacency import Adjacency, Structure
from manyhop_dgl_cuda.kernels import edge_dot, shaped
from manyhop_dgl_cuda.spmm import aligned, binary, gspmm, without_last

_SIDES = {"u": "u", "src": "u", "v": "v", "dst": "v", "e": "e", "edge": "e"}


def gsddmm(
    gidx: Structure,
    op: str,
    lhs: Tensor | None,
    rhs: Tensor | None,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Tensor:
    """Combine features of the ends of each edge: ``dgl._sparse_ops._gsddmm``.

    Args:
        gidx: a graph of one edge type.
        op: add, sub, mul, div, dot, copy_lhs or copy_rhs.
        lhs: features of ``lhs_target``: sources (u), destinations (v) or edges (e).
        rhs: features of ``rhs_target``.
        lhs_target: u, v or e.
        rhs_target: u, v or e.

    Returns:
        ``[num_edges, ...]`` by edge id.
    """
    return _of_edges(gidx.only_relation(), op, lhs, rhs, _SIDES[lhs_target], _SIDES[rhs_target])


def gsddmm_hetero(
    gidx: Structure,
    op: str,
    lhs_len: int,
    lhs_target: str = "u",
    rhs_target: str = "v",
    lhs_and_rhs_tuple: Sequence[Tensor | None] = (),
) -> tuple[Tensor, ...]:
    """Combine features of the ends of each edge, for all edge types: ``dgl._sparse_ops._gsddmm_hetero``.

    Args:
        gidx: a graph.
        op: as in :func:`gsddmm`, also the targets.
        lhs_len: how many features are those of ``lhs_target``.
        lhs_target: u, v or e.
        rhs_target: u, v or e.
        lhs_and_rhs_tuple: features of ``lhs_target`` by node type or edge type, then those of ``rhs_target``.

    Returns:
        Features by edge type.
    """
    left, right = lhs_and_rhs_tuple[:lhs_len], lhs_and_rhs_tuple[lhs_len:]
    sides = _SIDES[lhs_target], _SIDES[rhs_target]
    out = []
    for etype, (src, dst) in enumerate(gidx.ends):
        at = {"u": src, "v": dst, "e": etype}
        lhs = left[at[sides[0]]] if op != "copy_rhs" else None
        rhs = right[at[sides[1]]] if op != "copy_lhs" else None
        out.append(_of_edges(gidx.relations[etype], op, lhs, rhs, *sides))
    return tuple(out)


def edge_softmax_forward(gidx: Structure, e: Tensor, op: str) -> Tensor:
    """Normalize scores over the edges of each destination: ``dgl._sparse_ops._edge_softmax_forward``."""
    top = gspmm(gidx, "copy_rhs", "max", None, e)[0]
    scores = gsddmm(gidx, "sub", e, top, "e", "v").exp()
    return gsddmm(gidx, "div", scores, gspmm(gidx, "copy_rhs", "sum", None, scores)[0], "e", "v")


def edge_softmax_backward(gidx: Structure, out: Tensor, sds: Tensor) -> Tensor:
    """Return the gradient of the softmax: ``dgl._sparse_ops._edge_softmax_backward``; ``sds`` is output * gradient."""
    sums = gspmm(gidx, "copy_rhs", "sum", None, sds)[0]
    return sds - gsddmm(gidx, "mul", out, sums, "e", "v")


def _of_edges(
    adjacency: Adjacency, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_side: str, rhs_side: str
) -> Tensor:
    if op == "copy_lhs" and lhs is not None:
        return _at_edges(adjacency, lhs, lhs_side)
    if op == "copy_rhs" and rhs is not None:
        return _at_edges(adjacency, rhs, rhs_side)
    assert lhs is not None
    assert rhs is not None
    if lhs.dtype != rhs.dtype:
        raise DGLError(f"Expected operands of one dtype, got {lhs.dtype} and {rhs.dtype}. Convert one of them.")
    scalar = lhs.dim() == rhs.dim() == 1
    left, right = aligned(lhs, rhs)
    assert left is not None
    assert right is not None
    if op == "dot" and "e" not in (lhs_side, rhs_side) and left.shape[1:] == right.shape[1:]:
        rows = {"u": adjacency.src, "v": adjacency.dst}
        heads = left.shape[1:-1].numel()
        first, second = (t.reshape(t.shape[0], heads, t.shape[-1]) for t in (left, right))
        dots = edge_dot(first, second, rows[lhs_side], rows[rhs_side])
        out = shaped(dots, (adjacency.num_edges, *left.shape[1:-1], 1))
    else:
        out = binary(op, _at_edges(adjacency, left, lhs_side), _at_edges(adjacency, right, rhs_side))
    return without_last(out, scalar)


def _at_edges(adjacency: Adjacency, features: Tensor, side: str) -> Tensor:
    """Features of a side, by edge id."""
    if side == "e":
        return features
    return features.index_select(0, adjacency.src if side == "u" else adjacency.dst)
