"""Memory of one thread for sampling on the CPU: grows to the largest batch. Does not import numba."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.graph import Graph, NodeType
from manyhop.sampling.check import table_addresses
from manyhop.sampling.cpu import tables as c
from manyhop.system.memory import require_memory

_LOW64 = (1 << 64) - 1

TABLE_OF_ALL_NODES = 1 << 25
"""Node types up to this size get a table with a slot per node, larger ones a hash table of the batch's size."""

LARGE = 1 << 28
"""Bytes that are taken without asking the system how many are free, which takes longer than a small batch."""

_KEPT = ("kept_row", "kept_col", "kept_id")

LIMIT = 2**31 - 1
"""Slots hold stamp + local id as a number of 31 bits."""


def key_of(parts: Iterable[int]) -> npt.NDArray[np.uint64]:
    """Return a key as kernels read it: the low 64 bits of each integer."""
    return np.array([part & _LOW64 for part in parts], np.uint64)


class Workspace:
    """Tables for the kernels and the arrays they point to.

    Args:
        num_nodes: nodes per node type.
        num_edge_types: number of edge types.
        disjoint: whether local ids are per (tree, node).
        largest_fanout: the most edges of a node that must all be different, for the hash set of picks.
        kernels: module ``manyhop.sampling.cpu.kernels.hop``, which imports numba.
    """

    def __init__(
        self,
        num_nodes: Sequence[int],
        num_edge_types: int,
        disjoint: bool,
        largest_fanout: int,
        kernels: Any,
    ) -> None:
        nodes, found = np.zeros(len(num_nodes), c.BATCH_NODES), np.zeros(num_edge_types, c.FOUND_EDGES)
        self.tables = nodes, found, np.zeros(1, c.MODE)
        self.nodes, self.found, self.mode = map(c.fields_of, self.tables)
        self.kernels = kernels
        self._arrays: dict[tuple[str, int, str], npt.NDArray[np.generic]] = {}
        self._own = {column: np.zeros(len(num_nodes), np.int64) for column in ("node", "tree")}  # addresses
        self._node_capacity = [0] * len(num_nodes)
        self._slot_capacity = [0] * len(num_nodes)
        self._expected = 0
        self.nodes["stamp"][:] = 1
        self.nodes["num_nodes"][:] = num_nodes
        for t, n in enumerate(num_nodes):
            self.nodes["mask"][t] = 0
            if not disjoint and n <= TABLE_OF_ALL_NODES:
                self.nodes["mask"][t] = -1
                self._slot_capacity[t] = LIMIT
                self._fill_zero(t, n, np.int32)
            self.reserve_nodes(t, 1)
        self._new("mode", self.mode, 0, "pick", c.PICK_STRIDE * c.VECTOR_FANOUT, np.uint32)
        self._new("mode", self.mode, 0, "draw", c.DRAWS, np.uint64)
        self._new("mode", self.mode, 0, "found", 2 * c.VECTOR_FANOUT, np.uint64)
        self._new("mode", self.mode, 0, "key", c.BLOCK, np.uint64)
        size = 1 << (2 * max(largest_fanout, c.BLOCK) - 1).bit_length()
        self._new("mode", self.mode, 0, "set", size, np.uint64)[:] = 0
        self.mode["set_mask"][0] = size - 1
        self.reserve_chunk(c.CHUNK)

    def begin(self, key: Iterable[int]) -> None:
        """Begin a batch. Forget the batch before, also one that was broken off."""
        self.key = key_of(key)
        self.expect(0)
        nodes = self.nodes
        for t, (stamp, count) in enumerate(zip(nodes["stamp"].tolist(), nodes["count"].tolist(), strict=True)):
            nodes["stamp"][t] = stamp + count
            if stamp + count > LIMIT // 2:
                self._arrays["nodes", t, "slots"][:] = 0
                nodes["stamp"][t] = 1
        nodes["count"].fill(0)
        for column, own in self._own.items():
            nodes[column][:] = own
        self.mode["limit"][0] = LIMIT

    def expect(self, nbytes: int) -> None:
        """Begin to reserve memory that must leave ``nbytes`` free; memory reserved before is in use."""
        self._expected = nbytes

    def reserve_nodes(self, t: int, n: int) -> None:
        """Reserve memory for ``n`` nodes of type ``t``, also in the slots; existing entries remain."""
        if n + int(self.nodes["stamp"][t]) > LIMIT:
            raise CapacityError(
                f"Expected fewer than 2^30 nodes of a type in a batch, got up to {n}. Use smaller fanouts or batches."
            )
        if n > self._node_capacity[t]:
            self._node_capacity[t] = n + n // 4 + 64
            keep = int(self.nodes["count"][t])
            for column, own in self._own.items():  # kernels write one entry beyond the last node
                self._new("nodes", self.nodes, t, column, self._node_capacity[t] + 1, np.uint64, keep)
                own[t] = self.nodes[column][t]
        if n > self._slot_capacity[t]:
            size = 1 << max(10, (n + n // 3 + 1).bit_length())  # a small table of one tree fits in
            self._fill_zero(t, size, np.uint64)
            self.nodes["mask"][t] = size - 1
            self._slot_capacity[t] = size // 4 * 3
            self.kernels.rehash_type(self.tables[0], t)
        self.nodes["capacity"][t] = min(self._node_capacity[t], self._slot_capacity[t])

    def reserve_seeds(self, t: int, n: int) -> None:
        """Reserve memory for ``n`` seeds of type ``t``."""
        self.reserve_nodes(t, n)
        array = self._arrays.get(("nodes", t, "copy"))
        if array is None or array.size < 2 * n:
            self._new("nodes", self.nodes, t, "copy", 2 * n, np.uint32)

    def _reserve(self, capacity: str, t: int, n: int, columns: dict[str, npt.DTypeLike], keep: int = 0) -> None:
        if n > self.found[capacity][t]:
            n = n + n // 4 + 64
            for column, dtype in columns.items():
                self._new("found", self.found, t, column, n, dtype, keep)
            self.found[capacity][t] = n

    def reserve_frontier(self, t: int, n: int) -> None:
        """Reserve memory for the ranges of ``n`` frontier nodes of edge type ``t``; drops existing entries."""
        self._reserve("frontier_capacity", t, n, {"start": np.uint64, "degree": np.uint32, "take": np.uint32})

    def reserve_edges(self, t: int, n: int, keep: int) -> None:
        """Reserve memory for ``n`` edges of type ``t``, and keep the first ``keep``."""
        self._reserve("kept_capacity", t, n, dict.fromkeys(_KEPT, np.int64), keep)

    def reserve_picked(self, t: int, n: int, keep: int) -> None:
        """Reserve memory for ``n`` edges of type ``t`` that are picked ahead, and keep the first ``keep``."""
        self._reserve("picked_capacity", t, n, {"picked": np.uint64, "picked_weight": np.float32}, keep)

    def exclude(self, t: int, ids: Tensor | None) -> None:
        """Exclude edges ``ids [n] int64`` of type ``t`` from the next batch; the tensor must outlive it."""
        n = 0 if ids is None else ids.numel()
        self.found["num_excluded"][t] = n
        if ids is None or n == 0:
            return
        self.found["exclude"][t] = ids.data_ptr()
        size = 4 << n.bit_length()
        array = self._arrays.get(("found", t, "excluded"))
        if array is None or array.size < size:
            self._new("found", self.found, t, "excluded", size, np.int64)
        self.found["excluded_mask"][t] = size - 1

    def picked_weights(self, t: int, n: int) -> Tensor:
        """Return ``[n] float32``: weights of picked edges of type ``t``; valid until the next batch."""
        array = self._arrays.get(("found", t, "picked_weight"))
        return torch.from_numpy(np.empty(0, np.float32) if array is None else array[:n])

    def reserve_chunk(self, n: int) -> None:
        """Reserve memory for chunks of ``n`` edges; drops existing entries."""
        if n > self.mode["chunk_capacity"][0]:
            self.mode["chunk_capacity"][0] = n
            n += c.VECTOR_FANOUT + c.SPARE
            for column, dtype in (
                ("position", np.uint64),
                ("neighbor", np.uint64),
                ("dst_node", np.uint32),
                ("hash", np.uint64),
            ):
                self._new("mode", self.mode, 0, column, n, dtype)

    def _fill_zero(self, t: int, n: int, dtype: npt.DTypeLike) -> None:
        # Not np.zeros: its memory would not be in place, and in huge pages, before the first batch.
        array = self._new("nodes", self.nodes, t, "slots", n, dtype)
        array[:] = 0
        self._expected -= array.nbytes  # it is in use

    def _new(
        self, name: str, table: dict[str, c.Ints], i: int, column: str, n: int, dtype: npt.DTypeLike, keep: int = 0
    ) -> npt.NDArray[np.generic]:
        """Return a new array for ``table[column][i]``, with the first ``keep`` entries of the one before.

        Raises:
            CapacityError: there is not enough memory, also where the system would promise it all the same.
        """
        self._expected += n * np.dtype(dtype).itemsize
        if self._expected > LARGE:
            require_memory("A batch with these fanouts", self._expected, "Use smaller fanouts or batches.")
        array = np.empty(n, dtype)
        if keep > 0:
            array[:keep] = self._arrays[name, i, column][:keep]
        self._arrays[name, i, column] = array
        table[column][i] = array.ctypes.data
        return array


Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]
Table = npt.NDArray[np.int64]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate memory for a result, on the CPU regardless of ``torch.set_default_device``."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def describe_edges(graph: Graph, *, temporal: bool = False) -> c.Records:
    """Return the graph as the kernels see it: a record per edge type.

    Raises:
        GraphError: an array is not contiguous in CPU memory or has an unexpected dtype.
    """
    table = np.zeros(len(graph.csc), c.STORED_EDGES)
    for row, (edge_type, csc) in zip(table, graph.csc.items(), strict=True):
        for name, at in table_addresses(edge_type, csc, torch.device("cpu")).items():
            row["positive" if name == "num_positive" else name] = at
        row["row_wide"] = csc.row.dtype == torch.int64
        row["perm_wide"] = csc.perm is not None and csc.perm.dtype == torch.int64
        row["src"], row["dst"] = graph.node_types.index(edge_type[0]), graph.node_types.index(edge_type[2])
        row["num_edges"] = csc.num_edges
        if temporal and (codes := csc.time_codes) is not None:
            row["code"], row["bound"] = codes.code.ctypes.data, codes.bound.ctypes.data
    return table


def node_columns(
    ws: Workspace, node_types: Sequence[NodeType], columns: Sequence[str], empty: Empty, room: Sequence[int] = ()
) -> list[dict[NodeType, Tensor]]:
    """Return ``[num_nodes] int64`` per column and node type: global ids (``node``) or trees (``tree``).

    With ``room``, a number of entries per type, kernels add further nodes to these tensors, until the next batch.
    """
    found: list[dict[NodeType, Tensor]] = []
    moves: list[tuple[int, int, int]] = []
    counts = ws.nodes["count"].tolist()
    for column in columns:
        own = ws.nodes[column]
        tensors = [empty((size,), torch.int64) for size in room or counts]
        addresses = [tensor.data_ptr() for tensor in tensors]
        moves += zip(own.tolist(), addresses, counts, strict=True)
        if room:
            own[:] = addresses
        found.append(dict(zip(node_types, tensors, strict=True)))
    ws.kernels.copy_arrays(np.array(moves, np.int64))
    return found


def nodes_per_hop(node_types: Sequence[NodeType], counts: list[list[int]]) -> dict[NodeType, list[int]]:
    """Return how many nodes each hop added, from the counts of all types after each hop; others may follow them."""
    by_type = zip(node_types, zip(*counts, strict=True), strict=False)
    return {node_type: [b - a for a, b in pairwise((0, *totals))] for node_type, totals in by_type}


def allocate_edges(
    counts: Sequence[int], empty: Empty
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[int, int, int]]]:
    """Allocate edges of each type, ``([2, n], [n]) int64``. Return them, and the addresses of rows, columns and ids."""
    edges, addresses = [], []
    for n in counts:
        pair, edge_id = empty((2, n), torch.int64), empty((n,), torch.int64)
        edges.append((pair, edge_id))
        addresses.append((pair.data_ptr(), pair.data_ptr() + 8 * n, edge_id.data_ptr()))
    return edges, addresses


def kept_edges(ws: Workspace, empty: Empty) -> list[tuple[Tensor, Tensor]]:
    """Return the edges that hops have kept, ``([2, n], [n]) int64`` per edge type: pairs, and the user's ids."""
    counts = ws.found["num_done"].tolist()
    edges, addresses = allocate_edges(counts, empty)
    kept = zip(*(ws.found[column].tolist() for column in _KEPT), strict=True)
    each = zip(counts, kept, addresses, strict=True)
    moves = [(a, b, n) for n, own, to in each for a, b in zip(own, to, strict=True)]
    ws.kernels.copy_arrays(np.array(moves, np.int64).reshape(-1, 3))
    return edges


def induced_edges(ws: Workspace, edges: c.Records, empty: Empty, limit: int = -1) -> list[tuple[Tensor, Tensor]]:
    """Return all edges among the nodes of the batch, ``([2, n], [n]) int64`` per edge type: pairs, and the user's ids.

    Args:
        limit: cut longer columns to a choice of this many entries; -1: not.
    """
    from manyhop.sampling.cpu.kernels.induced import induce_edges

    for i in range(len(edges)):
        state, capacity, finished = np.zeros(3, np.int64), c.CHUNK, 0
        while not finished:
            capacity *= 2
            ws.reserve_edges(i, capacity, int(state[0]))
            for out, kept in zip(("out_row", "out_col", "out_id"), _KEPT, strict=True):
                ws.found[out][i] = ws.found[kept][i]
            finished = induce_edges(edges, *ws.tables, i, limit, ws.key, state, capacity)
        ws.found["num_done"][i] = state[0]
    return kept_edges(ws, empty)
