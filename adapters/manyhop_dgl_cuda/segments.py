"""DGL's operators on segments of rows and groups of matrices, on torch tensors: readouts, and layers with types."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop_dgl_cuda.adjacency import positions
from manyhop_dgl_cuda.kernels import segment_max, segment_sum
from manyhop_train.aggregation import Order


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
