"""Edges of a batch, sorted by destination and by source, for the kernels of aggregation."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Reduction: TypeAlias = Literal["sum", "mean", "max"]


class Order(NamedTuple):
    """Edges in segments, one per node at one of their ends."""

    ptr: Tensor
    """``[num_nodes + 1] int64``: where each segment begins."""
    other: Tensor
    """``[num_edges]``: the node at the other end, local id."""
    edge: Tensor | None
    """``[num_edges] int64``: the number of each edge, ascending within a segment; ``None``: its position."""

    def by_number(self) -> Order:
        """Return the segments with numbers of edges instead of nodes."""
        numbers = torch.arange(self.other.numel(), device=self.other.device) if self.edge is None else self.edge
        return Order(self.ptr, numbers, self.edge)


class Edges:
    """Edges in both orders, each created at its first use, without waiting for the GPU.

    Layers that use fewer edges (``trim_to_layer``) use the first ones, for which the orders of all edges also work.

    Args:
        edge_index: ``[2, num_edges]`` local ids of sources and destinations, int32 or int64.
        ordered: whether destinations are ascending; otherwise they are sorted here.
        beside: during the capture of a CUDA graph, sort by source in parallel to the forward pass until :meth:`join`.
    """

    def __init__(self, edge_index: Tensor, *, ordered: bool, beside: bool = False) -> None:
        self.edge_index = edge_index
        self._ordered, self._beside = ordered, beside
        self._incoming: Order | None = None
        self._outgoing: Order | None = None
        self._joining: torch.cuda.Stream | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.edge_index.size(1)

    def incoming(self, num_dst: int) -> Order:
        """Return the edges by destination.

        Args:
            num_dst: number of destinations; there may be more segments.
        """
        if self._incoming is None or self._incoming.ptr.numel() <= num_dst:
            self._incoming = _ordered_by(self.edge_index[1], self.edge_index[0], num_dst, self._ordered)
        return self._incoming

    def outgoing(self, num_src: int, num_edges: int) -> Order:
        """Return the edges by source.

        Args:
            num_src: number of sources; there may be more segments.
            num_edges: how many of the first edges are needed; there may be more.
        """
        known = self._outgoing
        if known is None or known.ptr.numel() <= num_src or known.other.numel() < num_edges:
            row, col = self.edge_index[:, :num_edges]
            if self._beside and row.is_cuda and torch.cuda.is_current_stream_capturing():
                stream = _stream_beside(row.device)
                stream.wait_stream(torch.cuda.current_stream(row.device))
                with torch.cuda.stream(stream):
                    self._outgoing = _ordered_by(row, col, num_src, False)
                self._joining = stream
            else:
                self._outgoing = _ordered_by(row, col, num_src, False)
        assert self._outgoing is not None
        return self._outgoing

    def join(self) -> None:
        """Let the current stream wait for a parallel sort."""
        if self._joining is not None:
            torch.cuda.current_stream(self.edge_index.device).wait_stream(self._joining)
            self._joining = None


@functools.cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch


def _ordered_by(keys: Tensor, others: Tensor, num_nodes: int, ordered: bool) -> Order:
    """Return segments of edges with equal keys, in their order within each segment."""
    edge: Tensor | None = None
    if not ordered:
        keys, edge = torch.sort(keys.to(torch.int32), stable=True)  # half the passes of 64 bits
        others = others.index_select(0, edge)
    bounds = torch.arange(num_nodes + 1, dtype=keys.dtype, device=keys.device)
    return Order(torch.searchsorted(keys.contiguous(), bounds), others.contiguous(), edge)
