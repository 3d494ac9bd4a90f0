"""Which edges join pairs of nodes: whether there are any, and their ids. Shared by all backends."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import CSC, columns
from manyhop.system.memory import require_memory

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
IntsOfAnySize = npt.NDArray[np.int32] | npt.NDArray[np.int64]


ALLOW_EDGES = "Allow negatives that are edges (loaders: exclude_true_negatives=False, samplers: exclude_true=False)."


class _Table(Generic[T]):
    """A table of the edges of one type, built when it is first read; safe to share between threads."""

    def __init__(self, csc: CSC, *arguments: Any) -> None:
        self._csc, self._arguments = csc, arguments
        self._table: T | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._csc, *self._arguments)

    def tables(self) -> T:
        """Return the table."""
        if self._table is None:
            with self._lock:
                if self._table is None:
                    self._table = self._build()
        return self._table

    def _build(self) -> T:
        raise NotImplementedError


class EdgeLookup(_Table[tuple[Ints, IntsOfAnySize]]):
    """The set of edges of one type, for many questions at once.

    It holds ``begin [num_src + 1]``, and the distinct sorted destinations of source ``s`` at ``[begin[s],
    begin[s + 1])``.

    Args:
        csc: the edges.
        remedy: advice for errors if the table is impossible.

    Raises:
        InputError: ``num_src * num_dst`` exceeds the int64 range.
        CapacityError: the table does not fit in memory.
    """

    def __init__(self, csc: CSC, remedy: str = ALLOW_EDGES) -> None:
        check_pairs(csc, remedy)
        require_memory(
            f"Telling which pairs of nodes are among {csc.num_edges} edges",
            24 * csc.num_edges + 8 * csc.num_src,  # sorting takes more than the table
            remedy,
        )
        super().__init__(csc, remedy)

    def contains(self, src: Ints, dst: Ints) -> npt.NDArray[np.bool_]:
        """Return ``[n] bool``: whether each pair of ``src [n] int64`` and ``dst [n] int64`` is an edge."""
        begin, destination = self.tables()
        if destination.size == 0 or src.size == 0:
            return np.zeros(src.shape, np.bool_)
        low, end = begin[src], begin[src + 1]
        low = first_not_below(destination, low, end, dst)
        return np.asarray((low < end) & (destination[np.minimum(low, destination.size - 1)] == dst))

    def destinations(self, src: int) -> IntsOfAnySize:
        """Return the distinct destinations of one source, ascending."""
        begin, destination = self.tables()
        return destination[begin[src] : begin[src + 1]]

    def edges(self) -> tuple[Ints, IntsOfAnySize]:
        """Return sources and destinations of all distinct edges, sorted by (source, destination)."""
        begin, destination = self.tables()
        return np.repeat(np.arange(begin.size - 1), np.diff(begin)), destination

    def _build(self) -> tuple[Ints, IntsOfAnySize]:
        begin, destination = build_table(self._csc, torch.device("cpu"))
        return begin.numpy(), destination.numpy()


def build_table(csc: CSC, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``begin [num_src + 1] int64``, and destinations: those of source ``s`` at ``[begin[s], begin[s + 1])``."""
    num_dst = max(csc.num_dst, 1)
    degree = csc.colptr.to(device).diff()
    key = csc.row.to(device, torch.int64) * num_dst
    key += torch.repeat_interleave(torch.arange(csc.num_dst, device=device), degree, output_size=csc.num_edges)
    if device.type == "cpu":
        key.numpy().sort()  # a multiple of torch's speed
    else:
        key = key.sort().values
    if key.numel():
        first = torch.ones_like(key, dtype=torch.bool)
        torch.ne(key[1:], key[:-1], out=first[1:])
        key = key[first]
    begin = torch.searchsorted(key, torch.arange(csc.num_src + 1, device=device) * num_dst)
    key %= num_dst
    return begin, key.to(torch.int32) if num_dst <= 2**31 else key


def first_not_below(values: IntsOfAnySize, low: Ints, high: Ints, wanted: Ints) -> Ints:
    """Return ``[n] int64``: in ``values[low[i]:high[i]]``, which ascend, the first position of at least ``wanted[i]``.

    ``high[i]`` where all are below.
    """
    if values.size == 0 or low.size == 0:
        return low
    last = values.size - 1
    for _ in range(int((high - low).max()).bit_length()):  # bisections, all in lockstep
        middle = (low + high) >> 1
        less = values[np.minimum(middle, last)] < wanted
        low = np.where(less & (low < high), middle + 1, low)
        high = np.where(less, high, middle)
    return low


def check_pairs(csc: CSC, remedy: str = ALLOW_EDGES) -> None:
    """Raise InputError where pairs of nodes cannot be numbered."""
    if csc.num_src * csc.num_dst >= 2**63:
        raise InputError(
            "Expected num_src * num_dst below 2^63 to number all pairs of nodes, got "
            f"{csc.num_src} * {csc.num_dst}. {remedy}"
        )


class EdgeIds(_Table[tuple[Ints, IntsOfAnySize, IntsOfAnySize | None]]):
    """The user's ids of the edges of one type, by endpoints.

    It holds ``begin [num_dst + 1]``, the sorted sources of destination ``d`` at ``[begin[d], begin[d + 1])``, and
    their ids; the sources may be the topology's table.

    Args:
        csc: the edges.
    """

    def between(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return ``[n] int64``: the ids of all edges from ``src[i]`` to ``dst[i]``, parallel ones included.

        Args:
            src: ``[num_pairs] int64`` nodes on the CPU; repeated pairs give repeated ids.
            dst: ``[num_pairs] int64``.

        Raises:
            InputError: nodes out of range.
            CapacityError: the table does not fit in memory.
        """
        begin, source, edge_id = self.tables()
        s, d = src.numpy(), dst.numpy()
        if s.size and (min(s.min(), d.min()) < 0 or s.max() >= self._csc.num_src or d.max() >= self._csc.num_dst):
            raise InputError(
                f"Expected sources in [0, {self._csc.num_src}) and destinations in [0, {self._csc.num_dst}), got "
                f"{s.min()} to {s.max()} and {d.min()} to {d.max()}. Check the ids."
            )
        low, high = begin[d], begin[d + 1]
        first, end = np.split(first_not_below(source, np.tile(low, 2), np.tile(high, 2), np.append(s, s + 1)), 2)
        count = end - first
        if (count <= 1).all():  # no parallel edges: the usual case
            at = first[count > 0]
        else:
            at = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
        return torch.from_numpy(at if edge_id is None else edge_id[at].astype(np.int64))

    def _build(self) -> tuple[Ints, IntsOfAnySize, IntsOfAnySize | None]:
        csc = self._csc.made()
        begin: Ints = csc.colptr.numpy()
        source: IntsOfAnySize = csc.row.numpy()
        edge_id: IntsOfAnySize | None = None if csc.perm is None else csc.perm.numpy()
        falls = np.zeros(source.size + 1, np.bool_)
        np.less(source[1:], source[:-1], out=falls[1:-1])
        falls[begin] = False  # from one column to the next
        if not falls.any():
            return begin, source, edge_id
        require_memory(
            f"Looking up the ids of {csc.num_edges} edges by their endpoints",
            32 * csc.num_edges,  # sorting takes more than the table
            "Leave exclude_seed_edges out, or use a machine with more memory.",
        )
        column = torch.repeat_interleave(torch.arange(csc.num_dst, device="cpu"), torch.diff(csc.colptr))
        by_source = columns.group(column, csc.row, csc.num_dst, csc.num_src)  # its columns are our sources
        ordered = columns.group(by_source.position, by_source.row, csc.num_edges, csc.num_dst)
        order = ordered.row.numpy()
        sorted_ids = order if edge_id is None else edge_id[order]
        return begin, source[order], sorted_ids.astype(np.int32, copy=False) if order.size <= 2**31 else sorted_ids
