"""DGL's operators on torch tensors: messages reduced at destinations, features of edges, segments of rows.

These are g-SpMM, g-SDDMM, edge softmax, and the operators of readouts and of layers with types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from dgl import DGLError
from torch import Tensor

from manyhop_dgl_cuda.adjacency import Adjacency, HeteroAdjacency, positions
from manyhop_dgl_cuda.kernels import edge_dot, segment_max, segment_sum, shaped
from manyhop_train.aggregation import Order

TensorT = TypeVar("TensorT", Tensor, Tensor | None)

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "dot": lambda left, right: (left * right).sum(-1, keepdim=True),
}


def aligned(left: Tensor | None, right: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Extend operands to equally many dimensions, at least 2: ``[n, 8]`` with ``[n, 4, 8]`` becomes ``[n, 1, 8]``."""
    left, right = (t.unsqueeze(-1) if t is not None and t.dim() == 1 else t for t in (left, right))
    dims = max(t.dim() for t in (left, right) if t is not None)
    left, right = (None if t is None else _padded(t, dims) for t in (left, right))
    return left, right


def binary(op: str, left: Tensor, right: Tensor | None) -> Tensor:
    """Apply an operator of DGL to aligned operands, row by row.

    Raises:
        DGLError: an unknown operator, or shapes that do not broadcast.
    """
    if op not in _BINARY or right is None:
        raise DGLError(f"Expected an operator of {', '.join(_BINARY)}, copy_lhs, copy_rhs with operands, got {op!r}.")
    pairs = list(zip(left.shape[1:], right.shape[1:], strict=True))
    if any(a != b and 1 not in (a, b) for a, b in pairs) or (op == "dot" and left.shape[-1] != right.shape[-1]):
        raise DGLError(
            f"Expected features whose shapes broadcast, got {tuple(left.shape[1:])} and {tuple(right.shape[1:])}. "
            "Reshape one of them."
        )
    return _BINARY[op](left, right)


def without_last(value: TensorT, scalar: bool) -> TensorT:
    """Remove the last dimension, of size 1, if all operands were scalars per row."""
    return value if value is None or not scalar else value.squeeze(-1)


def _padded(t: Tensor, dims: int) -> Tensor:
    return t.view(t.shape[0], *[1] * (dims - t.dim()), *t.shape[1:]) if t.dim() < dims else t


Args = tuple[Tensor | None, Tensor | None]


def gspmm(gidx: HeteroAdjacency, op: str, reduce_op: str, u: Tensor | None, e: Tensor | None) -> tuple[Tensor, Args]:
    """Reduce messages of features of sources ``u`` and edges ``e``, ``[num_dst, ...]``: ``dgl._sparse_ops._gspmm``.

    Return also the source and the edge of each maximum or minimum, of equal ones of the first edge. Destinations
    without edges are infinite then.
    """
    adjacency = gidx.only_relation()
    u, e, scalar = _operands(op, u, e)
    if reduce_op == "sum":
        return without_last(_sum(adjacency, op, u, e), scalar), (None, None)
    out, args = _extremum(adjacency, op, reduce_op, u, e)
    return without_last(out, scalar), (without_last(args[0], scalar), without_last(args[1], scalar))


def gspmm_hetero(
    gidx: HeteroAdjacency, op: str, reduce_op: str, u_len: int, feats: Sequence[Tensor | None]
) -> tuple[tuple[Tensor, ...], tuple[list[Tensor | None], ...]]:
    """Reduce messages of all edge types at once: ``dgl._sparse_ops._gspmm_hetero``.

    Args:
        gidx: a graph.
        op: as in :func:`gspmm`, also ``reduce_op``.
        reduce_op: sum, max or min.
        u_len: number of node types.
        feats: features by node type, then by edge type.

    Returns:
        Features by node type. For maxima and minima, the source and the edge of each value by node type, and their
        node types and edge types. The first of edges with equal values counts.
    """
    num_types = len(gidx.num_nodes_by_type)
    out: list[Tensor | None] = [None] * num_types
    found: list[list[Tensor | None]] = [[None] * num_types for _ in range(4)]
    scalar = False
    for etype, (src, dst) in enumerate(gidx.ends):
        adjacency = gidx.relations[etype]
        u = feats[src] if op != "copy_rhs" else None
        e = feats[u_len + etype] if op != "copy_lhs" else None
        u, e, scalar = _operands(op, u, e)
        before = out[dst]
        if reduce_op == "sum":
            value = _sum(adjacency, op, u, e)
            out[dst] = value if before is None else before + value
            continue
        value, args = _extremum(adjacency, op, reduce_op, u, e)
        better = torch.ones_like(value, dtype=torch.bool)
        if before is not None:
            better = value > before if reduce_op == "max" else value < before
            value = torch.where(better, value, before)
        out[dst] = value
        for all_types, new in zip(found, (*args, _constant(args[0], src), _constant(args[1], etype)), strict=True):
            kept = all_types[dst]
            all_types[dst] = new if kept is None or new is None else torch.where(better, new, kept)
    filled = tuple(torch.tensor([]) if value is None else without_last(value, scalar) for value in out)
    sources, edges, source_types, edge_types = ([without_last(arg, scalar) for arg in args] for args in found)
    return filled, (sources, edges, source_types, edge_types)


def update_grad_minmax_hetero(
    gidx: HeteroAdjacency,
    op: str,
    list_x: Sequence[Tensor],
    list_idx: Sequence[Tensor | None],
    list_idx_etype: Sequence[Tensor | None],
    list_dX: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Add gradients ``list_x`` of maxima to ``list_dX`` at their nodes (``op`` copy_lhs) or edges (copy_rhs).

    ``dgl._sparse_ops._update_grad_minmax_hetero``: ``gidx`` is the reversed graph, ``list_idx`` and ``list_idx_etype``
    have the nodes or edges of the maxima and their types.
    """
    targets = {(dst, src if op == "copy_lhs" else i) for i, (dst, src) in enumerate(gidx.ends)}
    for dst, kind in sorted(targets):
        grad, idx, types = list_dX[kind], list_idx[dst], list_idx_etype[dst]
        if grad is None or idx is None or types is None or grad.shape[0] == 0:
            continue
        others = types.view(idx.shape) != kind
        grad.scatter_add_(0, idx.long().masked_fill(others, 0), list_x[dst].masked_fill(others, 0))
    return tuple(list_dX)


def check_dtypes(*used: Tensor) -> None:
    """Raise DGLError if operands have multiple dtypes."""
    if len({t.dtype for t in used}) > 1:
        raise DGLError(
            f"Expected features of nodes and edges to have one dtype, got {used[0].dtype} and {used[1].dtype}. "
            "Convert one of them."
        )


def _operands(op: str, u: Tensor | None, e: Tensor | None) -> tuple[Tensor | None, Tensor | None, bool]:
    """Align the operands that an operator uses; return also whether all were scalars per row."""
    used = [t for t in (None if op == "copy_rhs" else u, None if op == "copy_lhs" else e) if t is not None]
    check_dtypes(*used)
    scalar = all(t.dim() == 1 for t in used)
    u, e = aligned(None if op == "copy_rhs" else u, None if op == "copy_lhs" else e)
    return u, e, scalar


def _sum(adjacency: Adjacency, op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    csc = adjacency.csc
    if u is not None and (e is None or (op == "mul" and is_weight(u, e))):
        return segment_sum(u, csc.order, e)
    return segment_sum(_messages(adjacency, op, u, e), csc.by_id)


def is_weight(u: Tensor, e: Tensor) -> bool:
    """Return whether edges have one number per head, and heads are the leading dimensions of the features of nodes."""
    leading = e.shape[1:-1]
    return e.shape[-1] == 1 and u.numel() > 0 and (leading.numel() == 1 or leading == u.shape[1:-1])


def _extremum(adjacency: Adjacency, op: str, reduce_op: str, u: Tensor | None, e: Tensor | None) -> tuple[Tensor, Args]:
    """Return maxima or minima, and the sources and edges that they came from."""
    csc = adjacency.csc
    minimum = reduce_op == "min"
    table = u if op == "copy_lhs" else _messages(adjacency, op, u, e)
    assert table is not None
    rows = csc.indices if op == "copy_lhs" else csc.ids
    values, found = segment_max(-table if minimum else table, csc.indptr, rows)
    values = -values if minimum else values
    if adjacency.num_edges == 0:
        values = torch.zeros_like(values)  # as in DGL
    if op == "copy_lhs":
        return values, (found, None)
    if u is None or adjacency.num_edges == 0:
        return values, (None if u is None else found, found)
    sources = adjacency.src.index_select(0, found.view(-1)).view_as(found)
    empty = (csc.indptr.diff() == 0).view(-1, *[1] * (found.dim() - 1))
    return values, (sources.masked_fill(empty, 0), found)  # DGL returns source 0 and edge 0 without edges


def _messages(adjacency: Adjacency, op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    """Return ``[num_edges, ...]`` messages by edge id."""
    if u is None:
        assert e is not None
        return e
    return binary(op, u.index_select(0, adjacency.src), e)


def _constant(like: Tensor | None, value: int) -> Tensor | None:
    return None if like is None else torch.full_like(like, value)


_SIDES = {"u": "u", "src": "u", "v": "v", "dst": "v", "e": "e", "edge": "e"}


def gsddmm(
    gidx: HeteroAdjacency,
    op: str,
    lhs: Tensor | None,
    rhs: Tensor | None,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Tensor:
    """Combine features of sources (u), destinations (v) or edges (e) of each edge: ``dgl._sparse_ops._gsddmm``."""
    return _of_edges(gidx.only_relation(), op, lhs, rhs, _SIDES[lhs_target], _SIDES[rhs_target])


def gsddmm_hetero(
    gidx: HeteroAdjacency,
    op: str,
    lhs_len: int,
    lhs_target: str = "u",
    rhs_target: str = "v",
    lhs_and_rhs_tuple: Sequence[Tensor | None] = (),
) -> tuple[Tensor, ...]:
    """Combine features by edge type, like :func:`gsddmm`: ``dgl._sparse_ops._gsddmm_hetero``.

    ``lhs_and_rhs_tuple`` has ``lhs_len`` features of ``lhs_target`` by node type or edge type, then the others.
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


def edge_softmax_forward(gidx: HeteroAdjacency, e: Tensor, op: str) -> Tensor:
    """Normalize scores over the edges of each destination: ``dgl._sparse_ops._edge_softmax_forward``."""
    top = gspmm(gidx, "copy_rhs", "max", None, e)[0]
    scores = gsddmm(gidx, "sub", e, top, "e", "v").exp()
    return gsddmm(gidx, "div", scores, gspmm(gidx, "copy_rhs", "sum", None, scores)[0], "e", "v")


def edge_softmax_backward(gidx: HeteroAdjacency, out: Tensor, sds: Tensor) -> Tensor:
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
    """Return features of a side, by edge id."""
    if side == "e":
        return features
    return features.index_select(0, adjacency.src if side == "u" else adjacency.dst)


# Segments of rows and groups of matrices: readouts, and layers with types


def segment_reduce(op: str, feat: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Reduce segments of rows, which begin at ``offsets [num_segments + 1]``: ``dgl._sparse_ops._segment_reduce``.

    Return also the rows of maxima and minima. Empty segments are infinite then, and their rows -1.
    """
    rows = positions(feat, offsets.dtype)
    if op == "sum":
        return segment_sum(feat, Order(offsets.long(), rows, None)), None
    values, found = segment_max(feat if op == "max" else -feat, offsets, rows)
    empty = (offsets.diff() == 0).view(-1, *[1] * (feat.dim() - 1))
    return values if op == "max" else -values, found.masked_fill(empty, -1)


def bwd_segment_cmp(feat: Tensor, arg: Tensor, m: int) -> Tensor:
    """Send gradients of maxima to their rows, of ``m``: ``dgl._sparse_ops._bwd_segment_cmp``."""
    out = feat.new_zeros(m, *feat.shape[1:])
    if m == 0:
        return out
    return out.scatter_add_(0, arg.long().clamp(min=0), feat.masked_fill(arg < 0, 0))


def scatter_add(x: Tensor, idx: Tensor, m: int) -> Tensor:
    """Add rows to the rows ``idx`` of ``m``: ``dgl._sparse_ops._scatter_add``."""
    return x.new_zeros(m, *x.shape[1:]).index_add_(0, idx, x)


def segment_mm(A: Tensor, B: Tensor, out: Tensor, seglen_A: Tensor, b_trans: bool = False) -> Tensor:
    """Multiply each segment of rows with its matrix into ``out``: ``dgl._sparse_ops._segment_mm``."""
    lengths = seglen_A.tolist()
    for rows, matrix, result in zip(torch.split(A, lengths), B, torch.split(out, lengths), strict=True):
        torch.mm(rows, matrix.t() if b_trans else matrix, out=result)
    return out


def segment_mm_backward_b(A: Tensor, dC: Tensor, dB: Tensor, seglen: Tensor) -> Tensor:
    """Return the gradient of the matrices: ``dgl._sparse_ops._segment_mm_backward_B``."""
    lengths = seglen.tolist()
    for rows, grad, result in zip(torch.split(A, lengths), torch.split(dC, lengths), dB, strict=True):
        torch.mm(rows.t(), grad, out=result)
    return dB


def gather_mm(A: Tensor, B: Tensor, out: Tensor, idx_a: Tensor | None = None, idx_b: Tensor | None = None) -> Tensor:
    """Multiply rows ``idx_a`` of A with matrices ``idx_b`` of B into ``out``: ``dgl._sparse_ops._gather_mm``."""
    return out.copy_(_products(A, B, idx_a, idx_b))


def gather_mm_scatter(
    A: Tensor,
    B: Tensor,
    out: Tensor,
    idx_a: Tensor | None = None,
    idx_b: Tensor | None = None,
    idx_c: Tensor | None = None,
) -> Tensor:
    """Return a gradient of :func:`gather_mm` in ``out``, at ``idx_c``: ``dgl._sparse_ops._gather_mm_scatter``.

    ``B`` is ``[num_matrices, in, out]``, or ``[num_products, out]``: outer products with rows of ``A`` are added then.
    """
    if B.dim() == 3:
        products = _products(A, B, idx_a, idx_b)
    else:
        products = (A if idx_a is None else A.index_select(0, idx_a)).unsqueeze(2) * B.unsqueeze(1)
    return out.copy_(products) if idx_c is None else out.index_add_(0, idx_c, products)


def _products(A: Tensor, B: Tensor, idx_a: Tensor | None, idx_b: Tensor | None) -> Tensor:
    rows = A if idx_a is None else A.index_select(0, idx_a)
    matrices = B if idx_b is None else B.index_select(0, idx_b)  # DGL requests this where matrices are small
    return torch.bmm(rows.unsqueeze(1), matrices).squeeze(1)
