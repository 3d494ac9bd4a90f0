"""The pattern of requests for rows, which batches share: the tensors, and which of them share an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from manyhop.features.exchange.headers import signature_of
from manyhop.features.requests import RowRequest
from manyhop.features.sources.cached import HotRows
from manyhop.features.sources.distributed import DistributedRows


@dataclass(eq=False)
class Shared:
    """Tensors that are read by the same ids."""

    members: list[int]
    """Positions among the requests."""
    sources: list[DistributedRows]
    widths: list[int]
    """``[tables]``: bytes of a row."""
    shapes: list[tuple[int, ...]]
    """``[tables]``: shape of a row."""
    dtypes: list[torch.dtype]
    """``[tables]``: dtype."""


class Pattern:
    """The constant part of requests for the same tensors, independent of their ids.

    Args:
        requests: requests to take the pattern from.

    Attributes:
        signature: signature of the requests, the same on all ranks.
        groups: the tensors by index.
        wide: whether row numbers need 64 bits.
        ranks: number of ranks that own rows.
    """

    def __init__(self, requests: Sequence[RowRequest]) -> None:
        self._tensors = [_tensor(request) for request in requests]
        self._indices = _indices(requests)
        self.signature = signature_of(requests)
        self.ranks = requests[0].source.world.world_size if requests else 1
        self.wide = any(len(request.source.shards.rows_of(0)) + 1 >= 2**31 for request in requests)
        groups: dict[tuple[int, int, int], Shared] = {}
        for k, request in enumerate(requests):
            source: DistributedRows = request.source
            group = groups.setdefault((self._indices[k], source.num_rows, id(source.hot)), Shared([], [], [], [], []))
            group.members.append(k)
            group.sources.append(source)
            group.widths.append(source.row_bytes)
            group.shapes.append(source.shape[1:])
            group.dtypes.append(source.dtype)
        self.groups = list(groups.values())

    def fits(self, requests: Sequence[RowRequest]) -> bool:
        """Return whether requests are for the same tensors, and share indices in the same way."""
        if len(requests) != len(self._tensors):
            return False
        for request, (source, hot, rows, name) in zip(requests, self._tensors, strict=True):
            other = request.source
            if other is not source or other.hot is not hot or other.rows is not rows or request.name != name:
                return False
        return _indices(requests) == self._indices


def _tensor(request: RowRequest) -> tuple[DistributedRows, HotRows | None, torch.Tensor, str]:
    return request.source, request.source.hot, request.source.rows, request.name


def _indices(requests: Sequence[RowRequest]) -> list[int]:
    """Return ``[requests]``, the first request with the same index."""
    ids = [id(request.index) for request in requests]
    return [ids.index(each) for each in ids] if len(ids) > 1 else [0] * len(ids)
