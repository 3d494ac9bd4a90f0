"""A sparse matrix with the methods that ``dgl.sparse.SparseMatrix`` calls of the C++ class that it wraps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl_cuda.adjacency import Adjacency, Compressed


class Matrix:
    """Values at positions of a matrix, which may repeat.

    Args:
        edges: an edge from column to row for each value: ``csc`` has the rows in turn, ``csr`` the columns.
        value: ``[nnz]`` or ``[nnz, num_channels]``, by edge id.
        shape: numbers of rows and columns.
        diagonal: created as a diagonal matrix: some operators are faster.
    """

    def __init__(self, edges: Adjacency, value: Tensor, shape: Sequence[int], *, diagonal: bool = False) -> None:
        rows, columns = (int(size) for size in shape)
        if value.shape[0] != edges.num_edges or value.device != edges.device:
            raise InputError(
                f"Expected {edges.num_edges} values on {edges.device}, got {value.shape[0]} on {value.device}."
            )
        self.edges, self._value, self._shape, self._diagonal = edges, value, [rows, columns], diagonal
        self._indices: Tensor | None = None
        self._duplicate: bool | None = False if diagonal else None  # not looked at yet

    @classmethod
    def from_coo(cls, indices: Tensor, value: Tensor, shape: Sequence[int]) -> Matrix:
        """Build a matrix from ``[2, nnz]`` rows and columns."""
        if indices.dim() != 2 or indices.shape[0] != 2:
            raise InputError(f"Expected indices of shape [2, nnz], got {tuple(indices.shape)}.")
        row, col = indices
        made = cls(Adjacency.from_coo(shape[1], shape[0], col, row), value, shape)
        made._indices = indices
        return made

    @classmethod
    def from_csr(cls, indptr: Tensor, indices: Tensor, value: Tensor, shape: Sequence[int]) -> Matrix:
        """Build a matrix from ``[num_rows + 1]`` begins of rows and ``[nnz]`` columns."""
        if indptr.numel() != shape[0] + 1:
            raise InputError(f"Expected indptr of length {shape[0] + 1}, got {indptr.numel()}.")
        edges = Adjacency.from_csc(shape[1], shape[0], indptr, indices)
        return cls(edges, value, shape)

    @classmethod
    def from_csc(cls, indptr: Tensor, indices: Tensor, value: Tensor, shape: Sequence[int]) -> Matrix:
        """Build a matrix from ``[num_columns + 1]`` begins of columns and ``[nnz]`` rows."""
        return cls.from_csr(indptr, indices, value, shape[::-1]).transpose()

    @classmethod
    def from_diag(cls, value: Tensor, shape: Sequence[int]) -> Matrix:
        """Build a matrix from all values of the main diagonal."""
        places = torch.arange(min(shape), device=value.device)
        edges = Adjacency.from_coo(shape[1], shape[0], places, places)
        return cls(edges, value, shape, diagonal=True)

    def like(self, value: Tensor) -> Matrix:
        """Return a matrix with other values at the same positions."""
        made = Matrix(self.edges, value, self._shape, diagonal=self._diagonal)
        made._indices, made._duplicate = self._indices, self._duplicate
        return made

    def transpose(self) -> Matrix:
        made = Matrix(self.edges.reverse, self._value, self._shape[::-1], diagonal=self._diagonal)
        made._duplicate = self._duplicate
        return made

    # Contents

    def val(self) -> Tensor:
        """Return ``[nnz, ...]`` values."""
        return self._value

    def shape(self) -> list[int]:
        return self._shape

    def nnz(self) -> int:
        return self._value.shape[0]

    def device(self) -> torch.device:
        return self._value.device

    def is_diag(self) -> bool:
        """Return whether the matrix was created as a diagonal matrix."""
        return self._diagonal

    def has_duplicate(self) -> bool:
        """Return whether a position has multiple values."""
        if self._duplicate is None:
            self._duplicate = bool((self.places().sort().values.diff() == 0).any())
        return self._duplicate

    def coo(self) -> tuple[Tensor, Tensor]:
        return self.edges.dst, self.edges.src

    def indices(self) -> Tensor:
        if self._indices is None:
            self._indices = torch.stack(self.coo())
        return self._indices

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Begins of rows, columns, and which value each is; ``None``: in order."""
        return _tensors(self.edges.csc)

    def csc(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Begins of columns, rows, and which value each is; ``None``: in order."""
        return _tensors(self.edges.csr)

    def places(self) -> Tensor:
        """Return ``[nnz]``: one number for each place, ascending by row, then column."""
        return self.edges.dst.long() * self._shape[1] + self.edges.src.long()

    # Parts of it

    def coalesce(self) -> Matrix:
        """Add up the values of each place; the result is ordered by row, then column."""
        places, of = torch.unique(self.places(), return_inverse=True)
        value = self._value.new_zeros(places.numel(), *self._value.shape[1:]).index_add(0, of, self._value)
        made = Matrix.from_coo(self.at(places), value, self._shape)
        made._duplicate = False
        return made

    def at(self, places: Tensor) -> Tensor:
        """Return ``[2, num_places]`` rows and columns of numbered positions."""
        return torch.stack([places // self._shape[1], places % self._shape[1]])

    def index_select(self, dim: int, index: Tensor) -> Matrix:
        """Return some rows (dim 0) or columns (dim 1), in the order given."""
        if dim == 1:
            return self.transpose().index_select(0, index).transpose()
        place, columns, edge = self.edges.csc.of(index)
        indptr = torch.searchsorted(place, torch.arange(index.numel() + 1, device=place.device, dtype=place.dtype))
        return Matrix.from_csr(indptr, columns, self._value.index_select(0, edge), [index.numel(), self._shape[1]])

    def range_select(self, dim: int, start: int, end: int) -> Matrix:
        """Return rows (dim 0) or columns (dim 1) from ``start`` up to ``end``."""
        return self.index_select(dim, torch.arange(start, end, device=self.device()))

    def sample(self, dim: int, fanout: int, ids: Tensor, replace: bool, bias: bool) -> Matrix:
        """Return at most ``fanout`` values of some rows (dim 0) or columns (dim 1), drawn by torch's generator.

        Args:
            dim: rows or columns.
            fanout: how many of each; with ``replace`` exactly this many, if there are any.
            ids: which rows or columns.
            replace: draw with replacement.
            bias: draw with probabilities in proportion to the values, which are scalars; 0 is never drawn.
        """
        if dim == 1:
            return self.transpose().sample(0, fanout, ids, replace, bias).transpose()
        rows = self.index_select(0, ids)
        row, col = rows.coo()
        chances = rows.val().double() if bias else torch.ones(rows.nnz(), dtype=torch.float64, device=row.device)
        possible = (chances > 0).nonzero().view(-1)
        if replace:
            drawn = _with_replacement(row[possible], chances[possible], fanout, ids.numel())
        else:
            drawn = _without_replacement(row[possible], chances[possible], fanout)
        edge = possible[drawn]
        return Matrix.from_coo(torch.stack([row[edge], col[edge]]), rows.val().index_select(0, edge), rows.shape())


def compact(mat: Matrix, dim: int, leading_indices: Tensor | None) -> tuple[Matrix, Tensor]:
    """Remove the rows (dim 0) or columns (dim 1) without values, except the leading ones.

    Returns:
        The matrix, and which row or column each was: the leading ones first, then the others in ascending order.
    """
    ends = list(mat.coo())
    leading = ends[dim][:0] if leading_indices is None else leading_indices
    others = torch.unique(ends[dim])
    kept = torch.cat([leading, others[~torch.isin(others, leading)]])
    in_order, number = kept.sort()
    ends[dim] = number[torch.searchsorted(in_order, ends[dim])]
    shape = list(mat.shape())
    shape[dim] = kept.numel()
    return Matrix.from_coo(torch.stack(ends), mat.val(), shape), kept


def _tensors(compressed: Compressed) -> tuple[Tensor, Tensor, Tensor | None]:
    return compressed.indptr, compressed.indices, compressed.edge_ids


def _without_replacement(row: Tensor, chances: Tensor, fanout: int) -> Tensor:
    """Return the ``fanout`` largest keys of each row (Efraimidis and Spirakis, 2006), in the order of the values."""
    keys = torch.rand_like(chances).log_().div_(chances)
    by_key = keys.argsort(descending=True)
    order = by_key[row[by_key].argsort(stable=True)]
    first = torch.searchsorted(row[order], row[order])
    rank = torch.arange(order.numel(), device=row.device) - first
    return order[rank < fanout].sort().values


def _with_replacement(row: Tensor, chances: Tensor, fanout: int, num_rows: int) -> Tensor:
    """Draw ``fanout`` places for each row that has values, by the sums of the chances. ``row`` is ascending."""
    sums = chances.cumsum(0)
    bounds = torch.searchsorted(row, torch.arange(num_rows + 1, device=row.device, dtype=row.dtype))
    begin, end = bounds[:-1], bounds[1:]
    some = end > begin
    begin, end = begin[some], end[some]
    low = sums[begin] - chances[begin]
    at = low.unsqueeze(1) + torch.rand(len(begin), fanout, device=row.device).double() * (sums[end - 1] - low)[:, None]
    drawn = torch.searchsorted(sums, at.contiguous(), right=True)
    return torch.minimum(torch.maximum(drawn, begin[:, None]), end[:, None] - 1).view(-1)
