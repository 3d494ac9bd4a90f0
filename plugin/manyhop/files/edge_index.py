"""An ``edge_index`` in a file, read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.formats import read_fortran_npy
from manyhop.files.rows import Rows
from manyhop.files.rows import open as open_rows

_PIECE = 1 << 20


class EdgeIndexFile:
    """Integers of shape ``[2, num_edges]``; also as numpy saves the transpose of an array ``[num_edges, 2]``.

    Raises:
        InputError: anything else.
    """

    def __init__(self, path: Path) -> None:
        pairs = read_fortran_npy(path)
        self._pairs = None if pairs is None else Rows(pairs.parts, pairs.dtype, pairs.row_shape)
        rows = self._pairs or open_rows(path)
        ends = rows.shape[1:] if self._pairs is not None else rows.shape[:1]
        if ends != (2,) or len(rows.shape) != 2 or not rows.can_map or _not_whole(rows):
            shape = rows.shape[::-1] if self._pairs is not None else rows.shape
            raise InputError(
                f"{path}: expected an edge_index, integers of shape [2, num_edges] in one file, got {rows.dtype} of "
                f"shape {list(shape)}."
            )
        self._rows = rows.flat()
        self.num_edges = self._rows.num_rows // 2

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Sources and destinations, ``[n] int64``, of some edges at a time."""
        for begin in range(0, self.num_edges, _PIECE):
            end = min(begin + _PIECE, self.num_edges)
            if self._pairs is not None:
                src, dst = self._pairs.read(begin, end).long().unbind(1)
                yield src.contiguous(), dst.contiguous()
            else:
                n = self.num_edges
                yield self._rows.read(begin, end).long(), self._rows.read(n + begin, n + end).long()


def _not_whole(rows: Rows) -> bool:
    return rows.dtype.is_floating_point or rows.dtype.is_complex
