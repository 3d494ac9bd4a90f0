"""Edges that are grouped by destination when their tables are read, and edges split over ranks."""

from __future__ import annotations

import contextlib
import threading
import weakref
from contextlib import closing
from typing import Any, NoReturn

import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.graph import columns
from manyhop.graph.csc import CSC, EdgeSlice
from manyhop.ranks import cuda
from manyhop.system.progress import Progress
from manyhop.system.threads import in_forked_children

_SORTING = 40  # bytes of GPU memory for each edge: keys, order, and scratch memory of torch's radix sort
_CHUNK = 1 << 25  # edges that are sent at a time


class DeferredCSC(CSC):
    """The edges of one type, checked, before they are grouped by destination.

    Reading a table groups them on the CPU. :meth:`on` groups them on a GPU, without tables on the host.

    Args:
        row: ``[num_edges]`` integer: sources, in CPU memory or that of a GPU. Must not change in place.
        col: ``[num_edges]`` integer: destinations.
        num_src: number of nodes of the source type.
        num_dst: number of nodes of the destination type.
        in_order: whether the destinations ascend, so that edges keep their order.
    """

    def __init__(self, row: Tensor, col: Tensor, num_src: int, num_dst: int, *, in_order: bool = False) -> None:
        self.__dict__.update(  # it is frozen otherwise
            num_src=num_src,
            _num_dst=num_dst,
            _num_edges=row.numel(),
            _in_order=in_order,
            _given=((row, row._version), (col, col._version)),
            _made=None,
            _there=None,
        )

    _num_dst: int
    _num_edges: int
    _in_order: bool
    _given: tuple[tuple[Tensor, int], ...]
    """The user's edges and their versions; empty when there are tables in CPU memory."""
    _made: CSC | None
    _there: weakref.ref[CSC] | None

    @property
    def num_dst(self) -> int:
        """Number of nodes of the destination type."""
        return self._num_dst

    @property
    def num_edges(self) -> int:
        """Number of edges of this type."""
        return self._num_edges

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return 8 * (self.num_dst + 1) + (4 if self._in_order else 8) * self.num_edges

    @property
    def colptr(self) -> Tensor:
        """``[num_dst + 1] int64``, in CPU memory."""
        return self.made().colptr

    @property
    def row(self) -> Tensor:
        """``[num_edges] int32``, in CPU memory."""
        return self.made().row

    @property
    def perm(self) -> Tensor | None:
        """``[num_edges] int32``, in CPU memory; ``None`` if edges keep their order."""
        return self.made().perm

    @property
    def is_made(self) -> bool:
        """Whether there are tables in CPU memory."""
        return self._made is not None

    def made(self) -> CSC:
        """Return the edges with tables in CPU memory: grouped here, or copied from a GPU.

        Raises:
            CapacityError: they do not fit in memory.
            GraphError: the edges have been changed in place.
        """
        if self._made is None:
            with _lock:
                if self._made is None:
                    there = self._found()
                    made = self._group() if there is None else there.on(torch.device("cpu"))
                    self.__dict__.update(_made=made, _given=())
        assert self._made is not None
        return self._made

    def anywhere(self) -> CSC:
        """Return the edges with tables in any memory."""
        there = self._found() if self._made is None else None
        return self.made() if there is None else there

    def on(self, device: torch.device) -> CSC:
        """Return the edges with tables in memory of a GPU: grouped there, if its memory suffices for that.

        Raises:
            GraphError: the edges have been changed in place.
        """
        with _lock:
            there = self._found()
            if there is None and self._made is None and has_room(device, self.num_edges, self.num_dst):
                with contextlib.suppress(torch.OutOfMemoryError):  # memory is in pieces, or another process was faster
                    there = self._group_on(device)
                    self.__dict__["_there"] = weakref.ref(there)
        return (self.made() if there is None else there).on(device)

    def part(self, number: int, num_parts: int) -> EdgeSlice:
        """Return part ``number`` of ``num_parts`` of the edges, as they were given if they are not grouped yet."""
        if self._made is not None:
            return self._made.part(number, num_parts)
        row, col = self._edges()
        begin, end = (self.num_edges * k // num_parts for k in (number, number + 1))
        ids = torch.arange(begin, end, device="cpu")
        return EdgeSlice(row=row[begin:end], col=col[begin:end], edge_id=ids, time=None, weight=None)

    def _found(self) -> CSC | None:
        return None if self._there is None else self._there()

    def _edges(self) -> tuple[Tensor, Tensor]:
        if any(tensor._version != version for tensor, version in self._given):
            raise GraphError(
                "Expected unchanged edges, got edges that were changed in place after the graph was built. "
                "Create the loader or sampler again."
            )
        return self._given[0][0], self._given[1][0]

    def _group(self) -> CSC:
        row, col = (ids.cpu() for ids in self._edges())
        if self._in_order:
            return CSC(num_src=self.num_src, colptr=columns.pointers(col, self.num_dst), row=row.int())
        colptr, row, position, _ = columns.group(row, col, self.num_src, self.num_dst)
        return CSC(num_src=self.num_src, colptr=colptr, row=row, perm=position)

    def _group_on(self, device: torch.device) -> CSC:
        row, col = self._edges()
        ordered, order = _sent(col, device), None
        if not self._in_order:
            ordered, order = torch.sort(ordered, stable=True)
        every = torch.arange(self.num_dst + 1, dtype=torch.int32, device=device)
        colptr = torch.searchsorted(ordered, every)
        del ordered, every
        rows, perm = _sent(row, device), None
        if order is not None:
            rows, perm = rows[order], order.int()
        there = CSC(num_src=self.num_src, colptr=colptr, row=rows, perm=perm)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # loaders read the tables on other streams
        return there

    def __reduce__(self) -> tuple[Any, ...]:
        return CSC.made, (self.made(),)

    def __repr__(self) -> str:
        return f"DeferredCSC(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


def has_room(device: torch.device, num_edges: int, num_dst: int) -> bool:
    """Return whether the free memory of a GPU suffices to group this many edges."""
    if device.type != "cuda":  # kernels are interpreted
        return True
    return cuda.free_memory(device) > _SORTING * num_edges + 16 * num_dst


def _sent(ids: Tensor, device: torch.device) -> Tensor:
    """Return ``[n] int32`` on the device."""
    there = torch.empty(ids.shape, dtype=torch.int32, device=device)
    with closing(Progress(f"Copying edges to {device}", ids.nbytes)) as bar:
        for begin in range(0, ids.numel(), _CHUNK):
            part = ids[begin : begin + _CHUNK]
            there[begin : begin + _CHUNK] = part.to(device)
            bar.add(part.nbytes)
    return there


_lock = threading.RLock()


def _renew_lock() -> None:
    """Replace a lock that a thread held which does not exist in a forked process."""
    global _lock
    _lock = threading.RLock()


in_forked_children(_renew_lock)


class PartCSC(DeferredCSC):
    """This rank's part of the edges of one type. There are no tables of all edges anywhere.

    Args:
        row: ``[n]`` integer: sources, in CPU memory.
        col: ``[n]`` integer: destinations, in any order.
        num_src: number of nodes of the source type.
        num_dst: number of nodes of the destination type.
        first: the id of the first of these edges; the others follow.
        total: number of edges of all ranks.
        time: ``[n] int64`` time keys, or ``None``.
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
        ids = torch.arange(self._first, self._first + row.numel(), device="cpu")
        return EdgeSlice(row=row, col=col, edge_id=ids, time=self.time, weight=None)

    def _refuse(self) -> NoReturn:
        raise GraphError(
            f"Expected tables of all {self.num_edges} edges, got {self._edges()[0].numel()} of them: each rank has a "
            "part. Sample them with engine='cugraph' and device='cuda', or pass all edges on every rank."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse()
