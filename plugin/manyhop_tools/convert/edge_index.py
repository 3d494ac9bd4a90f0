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

    Args:
        path: the file.
        pairs: also take ``[num_edges, 2]``, a pair of nodes in each row.
        raw: the numbers of a raw file: pairs, or all sources and then all destinations.

    Raises:
        InputError: anything else.
    """

    def __init__(self, path: Path, *, pairs: bool = False, raw: Rows | None = None) -> None:
        fortran = read_fortran_npy(path)
        self._pairs = None if fortran is None else Rows(fortran.parts, fortran.dtype, fortran.row_shape)
        rows = raw or self._pairs or open_rows(path)
        shape = rows.shape
        is_paired = (pairs or raw is not None) and shape[1:] == (2,)
        if raw is not None and len(shape) == 1 and shape[0] % 2 == 0:
            shape = (2, shape[0] // 2)
        if self._pairs is None and is_paired:
            self._pairs = rows
        ends = shape[1:] if self._pairs is not None else shape[:1]
        if ends != (2,) or len(shape) != 2 or not rows.can_map or _not_whole(rows):
            got = rows.shape[::-1] if fortran is not None else rows.shape
            expected = "[2, num_edges]" + (" or [num_edges, 2]" if pairs or raw is not None else "")
            raise InputError(
                f"{path}: expected an edge_index, integers of shape {expected} in one file, got {rows.dtype} of shape "
                f"{list(got)}."
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
