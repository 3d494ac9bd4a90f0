"""The topology: one compressed table per edge type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.system.progress import to_device

BUCKETS = 4096
"""A power of two; each holds about as many edges as any other, so that a code is also a rank."""

WINDOW = 32
"""Spare codes behind the last, so that as many can be read at once."""

_SAMPLE = 1 << 16
_CHUNK = 1 << 24


class TimeCodes(NamedTuple):
    """The bucket of each edge's time."""

    bound: npt.NDArray[np.int64]
    """``[BUCKETS - 1] int64``, ascending, possibly with repeats."""

    code: npt.NDArray[np.uint16]
    """``[num_edges + WINDOW] uint16``: number of bounds below the time of each stored edge.

    With the number of bounds up to some limit: edges of a smaller code are within the limit, edges of a larger code
    are not, and edges of an equal code may be.
    """


def time_codes(time: Tensor) -> TimeCodes:
    """Return codes of ``[num_edges] int64`` times."""
    num_edges = time.numel()
    some = np.sort(time[:: max(1, num_edges // _SAMPLE)].numpy())
    bound = np.zeros(BUCKETS - 1, np.int64)
    if num_edges > 0:
        bound[:] = some[np.arange(1, BUCKETS) * some.size // BUCKETS]
    code = np.empty(num_edges + WINDOW, np.uint16)
    code[num_edges:] = 0
    for at in range(0, num_edges, _CHUNK):
        part = time[at : at + _CHUNK]
        code[at : at + part.numel()] = torch.bucketize(part, torch.from_numpy(bound), out_int32=True).numpy()
    return TimeCodes(bound=bound, code=code)


_TABLES = ("colptr", "row", "perm", "time", "weight", "alias", "num_positive")

NodeType = str
EdgeType = tuple[str, str, str]

HOMOGENEOUS_NODE: NodeType = "_N"
HOMOGENEOUS_EDGE: EdgeType = ("_N", "_E", "_N")


def of_type(name: NodeType | EdgeType) -> str:
    """Return the words for a type in messages, `` of edge type ...``; none for a homogeneous graph."""
    if name in (HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE):
        return ""
    return f" of node type {name!r}" if isinstance(name, str) else f" of edge type {name}"


@dataclass(frozen=True, kw_only=True)
class EdgeSlice:
    """Some edges of one type, in any order."""

    row: Tensor
    """``[n]`` integer: source node of each edge."""

    col: Tensor
    """``[n]`` integer: destination node of each edge."""

    edge_id: Tensor
    """``[n]`` integer: the user's id of each edge."""

    time: Tensor | None
    """``[n] int64``; ``None`` if the type has no times."""

    weight: Tensor | None
    """``[n] float64``; ``None`` if the type has no weights."""


@dataclass(frozen=True, kw_only=True)
class CSC:
    """The edges of one type, grouped by destination node (compressed sparse columns).

    The in-neighbours of destination node ``v`` are ``row[colptr[v]:colptr[v + 1]]``, in stored order: as
    given or, with times, by time with ties as given.
    """

    num_src: int
    """Number of nodes of the source type; every entry of ``row`` is below it."""

    colptr: Tensor
    """``[num_dst + 1] int64``: where each column begins in ``row``."""

    row: Tensor
    """``[num_edges] int32 or int64``: source node of each stored edge (int32 where ``num_src`` fits)."""

    perm: Tensor | None = None
    """``[num_edges] int32 or int64``: stored position -> the user's edge id; ``None`` if they agree."""

    time: Tensor | None = None
    """``[num_edges] int64``: time of each stored edge (of the edge, or of its source node), ascending in each column.
    Floating-point times are stored as order-preserving integers (see :func:`manyhop.graph.time_key`)."""

    weight: Tensor | None = None
    """``[num_edges] float64``: weight of each stored edge; there together with ``alias``."""

    alias: Tensor | None = None
    """``[num_edges] int64``: the alias table of each column: in the lower 32 bits of an entry the alias, a position
    inside the column, in the upper 32 its threshold."""

    num_positive: Tensor | None = None
    """``[num_dst] int64``: entries of positive weight per column; ``None`` without weights or if all are positive."""

    @property
    def num_dst(self) -> int:
        """Number of nodes of the destination type."""
        return self.colptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of edges of this type."""
        return self.row.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in self.tables().values())

    @property
    def is_made(self) -> bool:
        """Whether there are tables: edges of a graph for GPUs may not be grouped yet (``build_graph(defer=True)``)."""
        return True

    @property
    def is_part(self) -> bool:
        """Whether this rank has a part of the edges only, and others the rest."""
        return False

    def made(self) -> CSC:
        """Return the same edges with tables."""
        return self

    def anywhere(self) -> CSC:
        """Return the same edges with tables, which may be in memory of a GPU."""
        return self

    def on(self, device: torch.device) -> CSC:
        """Return the same edges with tables in memory of a device."""
        tables: dict[str, Any] = {name: to_device(table, device, "edges") for name, table in self.tables().items()}
        there = all(tables[name] is table for name, table in self.tables().items())
        return self if there else replace(self, **tables)

    def tables(self) -> dict[str, Tensor]:
        """Return the tensors of these edges by the name of their attribute, without ``None``."""
        found = {name: getattr(self, name) for name in _TABLES}
        return {name: table for name, table in found.items() if table is not None}

    def part(self, number: int, num_parts: int) -> EdgeSlice:
        """Return part ``number`` of ``num_parts`` of the edges, which together have each edge once.

        Reads no more of the tables than that part, but for column pointers.
        """
        begin, end = (self.num_edges * k // num_parts for k in (number, number + 1))
        bounds = torch.tensor([begin, end], dtype=torch.int64, device=self.colptr.device)
        first, last = (torch.searchsorted(self.colptr, bounds, right=True) - 1).tolist()
        pointers = self.colptr[first : last + 2].clamp(begin, end)
        col = torch.repeat_interleave(torch.diff(pointers), output_size=end - begin) + first
        perm, time, weight = (None if t is None else t[begin:end] for t in (self.perm, self.time, self.weight))
        edge_id = torch.arange(begin, end, device=self.row.device) if perm is None else perm
        return EdgeSlice(row=self.row[begin:end], col=col, edge_id=edge_id, time=time, weight=weight)

    @cached_property
    def time_codes(self) -> TimeCodes | None:
        """The times in 2 bytes per edge, built when first used; ``None`` without times."""
        return None if self.time is None else time_codes(self.time)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Topology of a graph with any number of node and edge types.

    A homogeneous graph has the one node type ``"_N"`` and the one edge type ``("_N", "_E", "_N")``.
    """

    num_nodes: Mapping[NodeType, int]
    """Node type -> number of nodes. Its order is the order of the node types."""

    csc: Mapping[EdgeType, CSC]
    """Edge type ``(src, rel, dst)`` -> its edges. Its order is the order of the edge types, which is part of what a
    sample is: the index of an edge type goes into the random numbers and decides the order of new nodes."""

    node_time: Mapping[NodeType, Tensor] = field(default_factory=dict)
    """Node type -> ``[num_nodes] int64`` time keys of its nodes, where nodes have times."""

    @property
    def is_homogeneous(self) -> bool:
        """Whether the graph has just the one edge type of homogeneous graphs."""
        return tuple(self.csc) == (HOMOGENEOUS_EDGE,)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Edge types in order."""
        return tuple(self.csc)

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """Node types in order."""
        return tuple(self.num_nodes)

    @property
    def is_made(self) -> bool:
        """Whether there are tables of all edges."""
        return all(csc.is_made for csc in self.csc.values())

    @property
    def is_part(self) -> bool:
        """Whether this rank has a part of the edges only."""
        return any(csc.is_part for csc in self.csc.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tables of edges."""
        return sum(csc.nbytes for csc in self.csc.values())

    @property
    def pointer_bytes(self) -> int:
        """Bytes of the column pointers of all edge types."""
        return sum(8 * (csc.num_dst + 1) for csc in self.csc.values())

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type."""
        return self.csc[edge_type].num_edges

    def tables(self) -> list[Tensor]:
        """Return the tensors of all edge types. Times of nodes are not among them."""
        return [table for csc in self.csc.values() for table in csc.tables().values()]

    def edge_ids(self) -> dict[EdgeType, Tensor | None]:
        """Return the user's id of each stored edge, ``[num_edges]``, by edge type; ``None``: its position."""
        return {edge_type: None if csc.is_part else csc.anywhere().perm for edge_type, csc in self.csc.items()}
