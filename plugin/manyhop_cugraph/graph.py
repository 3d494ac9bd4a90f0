"""A topology in cuGraph: its edges are spread over the GPUs of all ranks, and no rank holds all of them."""

from __future__ import annotations

import itertools
import zlib
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.graph import EdgeSlice, Graph, NodeType
from manyhop.ranks import control, world
from manyhop.ranks.cuda import free_memory
from manyhop.system.units import in_units
from manyhop_cugraph import binding
from manyhop_cugraph.binding import Handle, handle, on_stream, to_array


class Numbering:
    """Vertices are ``first[node_type] + node``, type by type; edge types count from 0, in the graph's order.

    Args:
        graph: whose types these are.
        device: where the tensors of this object are.
    """

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self.node_types, self.edge_types = graph.node_types, graph.edge_types
        *begins, self.num_vertices = accumulate(graph.num_nodes.values(), initial=0)
        self.first = dict(zip(self.node_types, begins, strict=True))
        self.begins = torch.tensor(begins, dtype=torch.int64, device=device)
        """``[num_node_types]``: the first vertex of each node type."""

    def type_of(self, vertex: Tensor) -> Tensor:
        """Return ``[n] int64``: the index of the node type of each vertex, ``[n] int64``."""
        if len(self.begins) == 1:
            return torch.zeros_like(vertex)
        return torch.searchsorted(self.begins, vertex, right=True) - 1

    def vertices(self, node_type: NodeType, nodes: Tensor) -> Tensor:
        """Return ``[n] int64``: the vertices of nodes of a type, ``[n] int64``."""
        first = self.first[node_type]
        return nodes + first if first else nodes


_numbers = itertools.count(1)  # all ranks create graphs in the same order
_CHUNK = 1 << 25  # edges that are sent at a time
_NARROW = 1 << 31  # exclusive bound of 32-bit ids
# Sizes of the edge list that GPUs need while cuGraph builds the graph. For 12 bytes per edge in the list, 40.5 were
# measured on one H200, 48.5 on two, 53.5 on four (2026-11-26, 2^24 edges).
_BUILD_COPIES = 4.5


class SpreadGraph:
    """A topology in cuGraph. All ranks create it, of the same graph; each passes its part of the edges.

    With one rank, its GPU holds all. Ids have 32 bits if all of them fit.

    Args:
        graph: the topology, in CPU memory, of which a rank reads its part only.
        device: this rank's GPU.
        timeout: seconds to wait for other ranks.

    Raises:
        CapacityError: it does not fit in the memory of a GPU.
        MissingExtraError: cuGraph is not installed.
        RankError: ranks have different graphs, or did not arrive in time.
    """

    def __init__(self, graph: Graph, device: torch.device, *, timeout: float) -> None:
        self.graph, self.device, self.timeout = graph, device, timeout
        self.number = next(_numbers)
        """Number of the graph, equal on all ranks."""
        self.numbering = Numbering(graph, device)
        self.handle = handle(timeout=timeout)
        rank, size = world.current_rank(), self.handle.world_size
        parts = [_that_weigh(csc.part(rank, size)) for csc in graph.csc.values()]
        self.drops_edges = any(csc.num_positive is not None for csc in graph.csc.values())
        """Whether edges of weight 0 are omitted. cuGraph would return them if all neighbours are requested."""
        self.has_times = all(part.time is not None for part in parts)
        self.has_weights = any(part.weight is not None for part in parts)
        self.is_wide = _agree(graph, parts, self.numbering, timeout)
        self.id_dtype = torch.int64 if self.is_wide else torch.int32
        control.attempt("room for a graph in cuGraph", self._check_room, timeout=timeout)
        with on_stream(self.handle.stream):
            columns = self._columns(parts)
            del parts
            self.native = _build(self.handle, columns, self._vertices(rank, size))
        if self.handle.stream is not None:
            self.handle.stream.synchronize()  # the edge list is free

    def _check_room(self) -> None:
        needed = build_bytes(self.graph) // self.handle.world_size
        free = free_memory(self.device) if self.device.type == "cuda" else needed
        if needed > free:
            raise CapacityError(
                f"Expected {in_units(needed)} of free GPU memory to build this rank's part of the graph in cuGraph, "
                f"got {in_units(free)}. Use more GPUs."
            )

    def _columns(self, parts: list[EdgeSlice]) -> dict[str, Tensor]:
        """Return the parts of all edge types in one edge list. Neighbours of a destination are sampled."""
        dtypes = dict.fromkeys(("dst", "src", "edge_id_array"), self.id_dtype)
        if len(parts) > 1:
            dtypes["edge_type_array"] = torch.int32
        if self.has_weights:
            dtypes["weight_array"] = torch.float32
        if self.has_times:
            dtypes["edge_start_time_array"] = torch.int64
        total, begin = sum(part.row.numel() for part in parts), 0
        columns = {name: torch.empty(total, dtype=dtype, device=self.device) for name, dtype in dtypes.items()}
        for number, ((src, _, dst), part) in enumerate(zip(self.graph.csc, parts, strict=True)):
            here = slice(begin, begin := begin + part.row.numel())
            _send(part.col, columns["dst"][here], self.numbering.first[dst])
            _send(part.row, columns["src"][here], self.numbering.first[src])
            others: dict[str, Any] = {
                "edge_id_array": part.edge_id,
                "edge_type_array": number,
                "weight_array": 1.0 if part.weight is None else part.weight,  # uniformly
                "edge_start_time_array": part.time,
            }
            for name, values in others.items():
                if name in columns and isinstance(values, Tensor):
                    _send(values, columns[name][here])
                elif name in columns:
                    columns[name][here] = values
        return columns

    def _vertices(self, rank: int, size: int) -> Tensor:
        """Return this rank's part of all vertices. cuGraph needs it for vertices without edges."""
        begin, end = (self.numbering.num_vertices * k // size for k in (rank, rank + 1))
        return torch.arange(begin, end, dtype=self.id_dtype, device=self.device)


def _that_weigh(edges: EdgeSlice) -> EdgeSlice:
    """Return the edges of positive weight."""
    if edges.weight is None or bool((edges.weight > 0).all()):
        return edges
    kept = edges.weight > 0
    chosen: dict[str, Any] = {name: None if values is None else values[kept] for name, values in vars(edges).items()}
    return EdgeSlice(**chosen)


def build_bytes(graph: Graph) -> int:
    """Estimate the bytes that all GPUs together need while cuGraph builds a topology."""
    num_edges = sum(csc.num_edges for csc in graph.csc.values())
    extras = 4 * any(csc.weight is not None for csc in graph.csc.values())
    extras += 8 * any(csc.time is not None for csc in graph.csc.values())
    return build_bytes_of(sum(graph.num_nodes.values()), num_edges, extras=extras + 4 * (len(graph.csc) > 1))


def build_bytes_of(num_nodes: int, num_edges: int, *, extras: int = 0) -> int:
    """Return the value of :func:`build_bytes` for a graph of this size.

    Args:
        num_nodes: of all types.
        num_edges: of all types.
        extras: bytes of an edge, in addition to its ends and its id.
    """
    ids = 3 * (8 if max(num_edges, num_nodes) >= _NARROW else 4)
    return int(num_edges * _BUILD_COPIES * (ids + extras))


def _agree(graph: Graph, parts: list[EdgeSlice], numbering: Numbering, timeout: float) -> bool:
    """Check that all ranks have the same graph. Return whether ids need 64 bits."""
    shape = [list(graph.num_nodes.items()), [(t, csc.num_edges) for t, csc in graph.csc.items()]]
    control.agree("a graph in cuGraph", {"graph": zlib.crc32(repr(shape).encode())}, timeout=timeout)
    num_edges = sum(csc.num_edges for csc in graph.csc.values())
    largest = max((int(part.edge_id.max()) for part in parts if part.edge_id.numel()), default=0)
    wide = max(numbering.num_vertices, num_edges, largest) >= _NARROW
    return any(fact["wide"] for fact in control.exchange("ids in cuGraph", {"wide": wide}, timeout=timeout))


def _send(values: Tensor, there: Tensor, add: int = 0) -> None:
    """Copy values to a GPU, of the dtype that they have there."""
    for begin in range(0, values.numel(), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        there[chunk] = values[chunk].to(there.device)
        if add:
            there[chunk] += add


def _build(handle: Handle, columns: dict[str, Tensor], vertices: Tensor) -> Any:
    """Return pylibcugraph's graph of the edge lists of all ranks."""
    plc = binding.pylibcugraph()
    properties = plc.GraphProperties(is_symmetric=False, is_multigraph=True)
    arrays = {name: to_array(table) for name, table in (columns | {"vertices_array": vertices}).items()}
    ends = arrays.pop("dst"), arrays.pop("src")
    options = {"store_transposed": False, "do_expensive_check": False}
    if handle.world_size == 1:
        return plc.SGGraph(handle.resources, properties, *ends, renumber=False, **options, **arrays)
    lists = {name: [array] for name, array in arrays.items()}
    return plc.MGGraph(handle.resources, properties, *([end] for end in ends), **options, **lists)
