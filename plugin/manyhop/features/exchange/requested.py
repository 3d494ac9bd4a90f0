"""The tensors of an exchange by the ids that they are read by, and the layout of their rows in messages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from manyhop.features.requests import RowRequest
from manyhop.features.sources import RowsInParts

ALIGNMENT = 16
"""Rows of each tensor begin at a multiple of this many bytes in a message."""


@dataclass(eq=False)
class Shared:
    """Tensors that are read by the same ids."""

    members: list[int]
    """Positions among the requests."""
    sources: list[RowsInParts]
    widths: list[int]
    """``[tables]``: bytes of a row."""
    shapes: list[tuple[int, ...]]
    """``[tables]``: shape of a row."""
    dtypes: list[torch.dtype]
    """``[tables]``: dtype."""


class Pattern:
    """The constant part of requests for the same tensors, independent of their ids.

    Attributes:
        signature: number that differs for requests for other tensors, and for requests that share indices differently.
        groups: the tensors by index.
        wide: whether row numbers in the part of an owner need 64 bits.
        ranks: number of ranks.
    """

    def __init__(self, requests: Sequence[RowRequest]) -> None:
        self._tensors = [(r.source, r.source.hot, r.source.rows, r.name) for r in requests]
        self._indices = _indices(requests)
        self.ranks = requests[0].source.world.world_size if requests else 1
        self.wide = any(len(request.source.shards.rows_of(0)) + 1 >= 2**31 for request in requests)
        groups: dict[tuple[int, int, int], Shared] = {}
        facts = []
        for k, request in enumerate(requests):
            source: RowsInParts = request.source
            key = id(request.index), source.num_rows, id(source.hot)  # the same ids are sorted once
            group = groups.setdefault(key, Shared([], [], [], [], []))
            group.members.append(k)
            group.sources.append(source)
            group.widths.append(source.row_bytes)
            group.shapes.append(source.shape[1:])
            group.dtypes.append(source.dtype)
            facts.append((request.name, source.shape, source.dtype, group.members[0]))
        self.groups = list(groups.values())
        self.signature = zlib.crc32(repr(tuple(facts)).encode())

    def fits(self, requests: Sequence[RowRequest]) -> bool:
        """Return whether requests are for the same tensors, and share indices in the same way."""
        if len(requests) != len(self._tensors):
            return False
        for request, (source, hot, rows, name) in zip(requests, self._tensors, strict=True):
            other = request.source
            if other is not source or other.hot is not hot or other.rows is not rows or request.name != name:
                return False
        return _indices(requests) == self._indices


def _indices(requests: Sequence[RowRequest]) -> list[int]:
    """Return ``[requests]``, the first request with the same index."""
    ids = [id(request.index) for request in requests]
    return [ids.index(each) for each in ids] if len(ids) > 1 else [0] * len(ids)


@dataclass
class Piece:
    """Rows of one tensor, for or from one rank, in a part."""

    rank: int
    group: int
    """Number of their index."""
    table: int
    """Number of the tensor among those of the index."""
    begin: int
    """First row, among those of the rank and the index."""
    end: int
    """End of the rows, exclusive."""
    offset: int
    """Offset in the part, in bytes."""


def lay_out(
    counts: Sequence[Sequence[int]], done: Sequence[int], widths: Sequence[Sequence[int]], k: int, parts: int
) -> tuple[list[Piece], list[int]]:
    """Lay out the rows of part ``k``: contiguous for each rank, tensor by tensor.

    Args:
        counts: ``[num_ranks][groups]``: rows to send to, or to receive from, each rank, for each index.
        done: ``[groups]``: rows that were sent before.
        widths: ``[groups][tables]``: bytes of a row of each tensor that is read by that index.
        k: number of the part.
        parts: number of parts.

    Returns:
        The pieces, and the bytes of each rank, ``[num_ranks]``.
    """
    pieces: list[Piece] = []
    end, sizes = 0, []
    for rank, of_rank in enumerate(counts):
        begin = end
        for g, (count, before) in enumerate(zip(of_rank, done, strict=True)):
            left = max(0, count - before)
            first, last = before + left * k // parts, before + left * (k + 1) // parts
            for t, width in enumerate(widths[g] if last > first else ()):
                pieces.append(Piece(rank, g, t, first, last, end))
                end += -(-(last - first) * width // ALIGNMENT) * ALIGNMENT
        sizes.append(end - begin)
    return pieces, sizes
