"""The operators ``torch.ops.dgl_sparse.NAME`` of ``dgl.sparse``, differentiable by values and dense matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl_cuda.differentiable import edge_products, normalized, weighted_sums
from manyhop_dgl_cuda.sparse.matrix import Matrix, compact

__all__ = [
    "compact", "from_coo", "from_csc", "from_csr", "from_diag", "reduce", "sddmm", "smax", "smean", "smin", "softmax",
    "spmm", "sprod", "spsp_add", "spsp_div", "spsp_mul", "spspmm", "sum", "val_like",
]  # fmt: skip

from_coo, from_csr, from_csc, from_diag = Matrix.from_coo, Matrix.from_csr, Matrix.from_csc, Matrix.from_diag
val_like = Matrix.like

_REDUCTIONS = {"sum": "sum", "smin": "amin", "smax": "amax", "smean": "mean", "sprod": "prod"}


def spmm(mat: Matrix, dense: Tensor) -> Tensor:
    """Multiply with a dense matrix.

    Args:
        mat: ``[n, m]`` with values ``[nnz]`` or, a matrix per channel, ``[nnz, num_channels]``.
        dense: ``[m]``, ``[m, k]`` or, with channels, ``[m, k, num_channels]``.

    Returns:
        ``[n]``, ``[n, k]`` or ``[n, k, num_channels]``.
    """
    value = mat.val()
    _expect(dense.dim() <= 1 + value.dim() and dense.dim() >= value.dim(), "SpMM", mat, dense)
    _expect(dense.shape[0] == mat.shape()[1] and dense.shape[2:] == value.shape[1:], "SpMM", mat, dense)
    _same(value, dense)
    if value.dim() == 2:  # channels are heads
        return weighted_sums(mat.edges, dense.transpose(1, 2), value).transpose(1, 2)
    table = dense.reshape(dense.shape[0], 1, dense.shape[1:].numel())
    return weighted_sums(mat.edges, table, value.unsqueeze(1)).view(mat.shape()[0], *dense.shape[1:])


def sddmm(mat: Matrix, left: Tensor, right: Tensor) -> Matrix:
    """Multiply two dense matrices at the positions of a sparse one, and by its values.

    Args:
        mat: ``[n, m]``.
        left: ``[n]``, ``[n, k]`` or ``[n, k, num_channels]``.
        right: ``[m]``, ``[k, m]`` or ``[k, m, num_channels]``.
    """
    left = left.unsqueeze(1) if left.dim() == 1 else left
    right = right.unsqueeze(0) if right.dim() == 1 else right
    shape = mat.shape()
    fit = left.shape[0] == shape[0] and right.shape[1:2] == (shape[1],) and left.shape[1] == right.shape[0]
    _expect(fit and left.shape[2:] == right.shape[2:], "SDDMM", mat, left, right)
    _same(left, right)
    # [n or m, num_channels, k]: rows of the matrix are destinations of its edges
    rows, columns = (left.unsqueeze(1), right.t().unsqueeze(1)) if left.dim() == 2 else (
        left.transpose(1, 2), right.permute(1, 2, 0)
    )  # fmt: skip
    products = edge_products(mat.edges, columns, rows)
    products = products.squeeze(1) if left.dim() == 2 else products
    value = mat.val()
    return mat.like(products * (value.unsqueeze(-1) if value.dim() < products.dim() else value))


def spspmm(left: Matrix, right: Matrix) -> Matrix:
    """Multiply two sparse matrices with scalar values, each position once."""
    _expect(left.shape()[1] == right.shape()[0], "SpSpMM", left, right)
    _expect(left.val().dim() == right.val().dim() == 1, "SpSpMM of scalar values", left, right)
    _same(left.val(), right.val())
    _expect_unique("SpSpMM", left, right)
    shape = [left.shape()[0], right.shape()[1]]
    if left.is_diag() and right.is_diag():
        common = min(left.nnz(), right.nnz())
        value = left.val()[:common] * right.val()[:common]
        return Matrix.from_diag(torch.nn.functional.pad(value, (0, min(shape) - common)), shape)
    if left.is_diag() and left.shape() == left.shape()[::-1]:  # it scales rows
        return right.like(left.val().index_select(0, right.coo()[0]) * right.val())
    if right.is_diag() and right.shape() == right.shape()[::-1]:
        return left.like(left.val() * right.val().index_select(0, left.coo()[1]))
    # An entry of the product for each pair of a value on the left and one of its row on the right, added up by place.
    row, column = left.coo()
    pair, to, edge = right.edges.csc.of(column)
    value = left.val()[pair.long()] * right.val()[edge.long()]
    product = Matrix.from_coo(torch.stack([row[pair.long()], to]), value, shape)
    return product if left.is_diag() or right.is_diag() else product.coalesce()


def spsp_add(left: Matrix, right: Matrix) -> Matrix:
    """Add two sparse matrices."""
    if _are_diagonal(left, right):
        return left.like(left.val() + right.val())
    indices = torch.cat([left.indices(), right.indices()], 1)
    return Matrix.from_coo(indices, torch.cat([left.val(), right.val()]), left.shape()).coalesce()


def spsp_mul(left: Matrix, right: Matrix) -> Matrix:
    """Multiply two sparse matrices elementwise; their positions do not repeat."""
    if _are_diagonal(left, right):
        return left.like(left.val() * right.val())
    _expect_unique("Multiplication", left, right)
    places, order = right.places().sort()
    own, by_place = left.places().sort()
    at = torch.searchsorted(places, own).clamp(max=max(places.numel() - 1, 0))
    both = places[at] == own if places.numel() else torch.zeros_like(own, dtype=torch.bool)
    value = left.val()[by_place[both]] * right.val()[order[at[both]]]
    return Matrix.from_coo(left.at(own[both]), value, left.shape())


def spsp_div(left: Matrix, right: Matrix) -> Matrix:
    """Divide two sparse matrices with values at the same positions, which do not repeat."""
    if _are_diagonal(left, right):
        return left.like(left.val() / right.val())
    _expect_unique("Division", left, right)
    places, order = right.places().sort()
    own, by_place = left.places().sort()
    if not torch.equal(places, own):
        raise InputError(
            "Expected matrices with values at equal positions to divide, got different positions. Use multiplication."
        )
    return left.like(left.val() / right.val()[order[by_place.argsort()]])


def softmax(mat: Matrix, dim: int) -> Matrix:
    """Normalize the values of each row (dim 1) or column (dim 0)."""
    _check_dim(dim)
    value = mat.val()
    return mat.like(normalized(mat.edges if dim == 1 else mat.edges.reverse, value))


def reduce(mat: Matrix, rtype: str, dim: int | None) -> Tensor:
    """Reduce the values of each row (dim 1), each column (dim 0) or of all; 0 without values.

    Args:
        mat: with values ``[nnz, ...]``.
        rtype: sum, smin, smax, smean or sprod.
        dim: see above.
    """
    if rtype not in _REDUCTIONS:
        raise InputError(f"Expected a reduction of {', '.join(_REDUCTIONS)}, got {rtype!r}.")
    value, name = mat.val(), _REDUCTIONS[rtype]
    if dim is None:
        total: Tensor = getattr(value, name)(0)
        return total
    _check_dim(dim)
    index = mat.coo()[1 - dim].long().view(-1, *[1] * (value.dim() - 1)).expand_as(value)
    out = value.new_zeros(mat.shape()[1 - dim], *value.shape[1:])
    return out.scatter_reduce(0, index, value, name, include_self=False)


def _reduction(rtype: str) -> Callable[..., Tensor]:
    """Return :func:`reduce` of one kind, which is called with a matrix and maybe ``dim``."""

    def reduced(mat: Matrix, dim: int | None = None) -> Tensor:
        return reduce(mat, rtype, dim)

    return reduced


sum, smin, smax, smean, sprod = map(_reduction, ("sum", "smin", "smax", "smean", "sprod"))


def _are_diagonal(left: Matrix, right: Matrix) -> bool:
    """Return whether both operands are diagonal; raise InputError unless they fit element by element."""
    fit = left.shape() == right.shape() and left.val().shape[1:] == right.val().shape[1:]
    _expect(fit, "Element-wise operators", left, right)
    _same(left.val(), right.val())
    return left.is_diag() and right.is_diag()


def _expect(fit: bool, what: str, *operands: Matrix | Tensor) -> None:
    if not fit:
        shapes = ", ".join(_shape(operand) for operand in operands)
        raise InputError(f"{what}: expected operands whose shapes fit, got {shapes}. Reshape or transpose one of them.")


def _shape(operand: Matrix | Tensor) -> str:
    if isinstance(operand, Matrix):
        return f"a sparse matrix of {tuple(operand.shape())} with values of {tuple(operand.val().shape)}"
    return f"a tensor of {tuple(operand.shape)}"


def _same(*tensors: Tensor) -> None:
    kinds: Sequence[str] = [f"{t.dtype} on {t.device}" for t in tensors]
    if len(set(kinds)) > 1:
        raise InputError(f"Expected operands of one dtype on one device, got {' and '.join(kinds)}. Convert one.")


def _expect_unique(what: str, *mats: Matrix) -> None:
    if any(mat.has_duplicate() for mat in mats):
        raise InputError(f"{what}: expected at most one value at each place, got several. Call coalesce() first.")


def _check_dim(dim: int) -> None:
    if dim not in (0, 1):
        raise InputError(f"Expected dim to be 0 or 1, got {dim!r}.")
