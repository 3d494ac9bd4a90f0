"""Edges of which each rank has a part: they are read where all ranks put them together, in cuGraph."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.graph.csc import CSC, EdgeSlice
from manyhop.graph.deferred import DeferredCSC


class PartCSC(DeferredCSC):
    """This rank's part of the edges of one type. There are no tables of all edges anywhere.

    Args:
        row: ``[n]`` integer: sources, in CPU memory.
        col: ``[n]`` integer: destinations, in any order.
        num_src: number of nodes of the source type.
        num_dst: number of nodes of the destination type.
        first: the id of the first of these edges; the others follow.
        total: number of edges of all ranks.
        time: ``[n] int64`` time keys; ``None``: there are none.
    """

    def __init__(
        self, row: Tensor, col: Tensor, num_src: int, num_dst: int, *, first: int, total: int, time: Tensor | None
    ) -> None:
        super().__init__(row, col, num_src, num_dst)
        self.__dict__.update(_num_edges=total, _first=first, time=time)

    _first: int

    @property
    def is_part(self) -> bool:
        """Whether other ranks have the other edges: yes."""
        return True

    def made(self) -> CSC:
        """Raise GraphError."""
        self._refuse()

    def anywhere(self) -> CSC:
        """Raise GraphError."""
        self._refuse()

    def on(self, device: torch.device) -> CSC:
        """Raise GraphError."""
        self._refuse()

    def part(self, number: int, num_parts: int) -> EdgeSlice:
        """Return the edges of this rank.

        Raises:
            GraphError: they have been changed in place.
        """
        row, col = self._edges()
        ids = torch.arange(self._first, self._first + row.numel())
        return EdgeSlice(row=row, col=col, edge_id=ids, time=self.time, weight=None)

    def _refuse(self) -> NoReturn:
        raise GraphError(
            f"Expected tables of all {self.num_edges} edges, got {self._edges()[0].numel()} of them: each rank has a "
            "part. Sample them with engine='cugraph' and device='cuda', or give all edges to every rank."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse()
