"""Memory of one thread for sampling on the CPU: grows to the largest batch, then stays. Does not import numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling.cpu import tables as c
from manyhop.system.memory import require_memory

Table = npt.NDArray[np.int64]

TABLE_OF_ALL_NODES = 1 << 25
"""Node types up to this size get a table with a slot per node, larger ones a hash table of the batch's size."""

LARGE = 1 << 28
"""Bytes that are taken without asking the system how many are free, which takes longer than a small batch."""

LIMIT = 2**31 - 1
"""Slots hold stamp + local id as a number of 31 bits."""


class Workspace:
    """Tables for the kernels and the arrays they point to.

    Args:
        num_nodes: nodes per node type.
        num_edge_types: number of edge types.
        disjoint: whether local ids are per (tree, node).
        largest_fanout: the most edges of a node that must all be different, for the hash set of picks.
        rehash: kernel that moves the nodes of a batch into a new hash table: ``rehash(nodes, node_type)``.
    """

    def __init__(
        self,
        num_nodes: Sequence[int],
        num_edge_types: int,
        disjoint: bool,
        largest_fanout: int,
        rehash: Callable[[Table, int], None],
    ) -> None:
        self.nodes = np.zeros((len(num_nodes), c.NODE_COLUMNS), np.int64)
        self.found = np.zeros((num_edge_types, c.FOUND_COLUMNS), np.int64)
        self.mode = np.zeros(c.MODE_COLUMNS, np.int64)
        self._num_nodes = list(num_nodes)
        self._rehash = rehash
        self._arrays: dict[tuple[str, int, int], npt.NDArray[np.generic]] = {}
        self._node_room = [0] * len(num_nodes)
        self._slot_room = [0] * len(num_nodes)
        self._expected = 0
        self.nodes[:, c.STAMP] = 1
        self.nodes[:, c.NUM_NODES] = num_nodes
        for t, n in enumerate(num_nodes):
            self.nodes[t, c.MASK] = 0
            if not disjoint and n <= TABLE_OF_ALL_NODES:
                self.nodes[t, c.MASK] = -1
                self._slot_room[t] = LIMIT
                self._fill_zero(t, n, np.int32)
            self.reserve_nodes(t, 1)
        mode = self.mode.reshape(1, -1)
        self._new("mode", mode, 0, c.PICK, c.PICK_STRIDE * c.VECTOR_FANOUT, np.uint32)
        self._new("mode", mode, 0, c.DRAW, c.DRAWS, np.uint64)
        self._new("mode", mode, 0, c.FOUND, 2 * c.VECTOR_FANOUT, np.uint64)
        self._new("mode", mode, 0, c.KEY, c.BLOCK, np.uint64)
        size = 1 << (2 * max(largest_fanout, c.BLOCK) - 1).bit_length()
        self._new("mode", mode, 0, c.SET, size, np.uint64)[:] = 0
        self.mode[c.SET_MASK] = size - 1
        self.reserve_chunk(c.CHUNK)

    def begin(self) -> None:
        """Forget the batch before, also one that was broken off."""
        self.expect(0)
        nodes = self.nodes
        nodes[:, c.STAMP] += nodes[:, c.COUNT]
        nodes[:, c.COUNT] = 0
        for t, stamp in enumerate(nodes[:, c.STAMP].tolist()):
            if stamp > LIMIT // 2:
                self._arrays["nodes", t, c.SLOTS][:] = 0
                nodes[t, c.STAMP] = 1
        self.mode[c.LIMIT] = LIMIT

    def expect(self, nbytes: int) -> None:
        """What has been reserved before is in use; room that is reserved from now on has to leave ``nbytes`` free."""
        self._expected = nbytes

    def reserve_nodes(self, t: int, n: int) -> None:
        """Room for ``n`` nodes of type ``t``, in the slots also; what is there stays."""
        if n + int(self.nodes[t, c.STAMP]) > LIMIT:
            raise CapacityError(
                f"Expected fewer than 2^30 nodes of a type in a batch, got up to {n}. Use smaller fan-outs or batches."
            )
        if n > self._node_room[t]:
            self._node_room[t] = n + n // 4 + 64
            keep = int(self.nodes[t, c.COUNT])
            for column in (c.NODE, c.TREE):
                self._new("nodes", self.nodes, t, column, self._node_room[t], np.uint64, keep)
        if n > self._slot_room[t]:
            size = 1 << max(8, (n + n // 3 + 1).bit_length())  # a small table of one tree fits in
            self._fill_zero(t, size, np.uint64)
            self.nodes[t, c.MASK] = size - 1
            self._slot_room[t] = size // 4 * 3
            self._rehash(self.nodes, t)
        self.nodes[t, c.ROOM] = min(self._node_room[t], self._slot_room[t])

    def reserve_seeds(self, t: int, n: int) -> None:
        """Room for ``n`` seeds of type ``t``."""
        self.reserve_nodes(t, n)
        array = self._arrays.get(("nodes", t, c.COPY))
        if array is None or array.size < 2 * n:
            self._new("nodes", self.nodes, t, c.COPY, 2 * n, np.uint32)

    def reserve_frontier(self, t: int, n: int) -> None:
        """Room for the ranges of ``n`` frontier nodes of edge type ``t``; forgets what is there."""
        if n > self.found[t, c.FRONTIER_ROOM]:
            n = n + n // 4 + 64
            for column, dtype in ((c.START, np.uint64), (c.DEGREE, np.uint32), (c.TAKE, np.uint32)):
                self._new("found", self.found, t, column, n, dtype)
            self.found[t, c.FRONTIER_ROOM] = n

    def reserve_edges(self, t: int, n: int, keep: int) -> None:
        """Room for ``n`` edges of type ``t``, of which ``keep`` are there and stay."""
        if n > self.found[t, c.KEPT_ROOM]:
            n = n + n // 4 + 64
            for column in (c.KEPT_ROW, c.KEPT_COL, c.KEPT_ID):
                self._new("found", self.found, t, column, n, np.int64, keep)
            self.found[t, c.KEPT_ROOM] = n

    def exclude(self, t: int, ids: Tensor | None) -> None:
        """Which edges of type ``t`` the next batch must not have, ``[n] int64``; the tensor must live as long."""
        n = 0 if ids is None else ids.numel()
        self.found[t, c.NUM_EXCLUDED] = n
        if ids is None or n == 0:
            return
        self.found[t, c.EXCLUDE] = ids.data_ptr()
        size = 4 << n.bit_length()
        array = self._arrays.get(("found", t, c.EXCLUDED))
        if array is None or array.size < size:
            self._new("found", self.found, t, c.EXCLUDED, size, np.int64)
        self.found[t, c.EXCLUDED_MASK] = size - 1

    def reserve_picked(self, t: int, n: int, keep: int) -> None:
        """Room for ``n`` edges of type ``t`` that are picked ahead, of which ``keep`` are there and stay."""
        if n > self.found[t, c.PICKED_ROOM]:
            n = n + n // 4 + 64
            self._new("found", self.found, t, c.PICKED, n, np.uint64, keep)
            self._new("found", self.found, t, c.PICKED_WEIGHT, n, np.float32, keep)
            self.found[t, c.PICKED_ROOM] = n

    def picked_weights(self, t: int, n: int) -> Tensor:
        """``[n] float32``: what edges of type ``t`` count that were picked ahead; valid until the next batch."""
        array = self._arrays.get(("found", t, c.PICKED_WEIGHT))
        return torch.from_numpy(np.empty(0, np.float32) if array is None else array[:n])

    def reserve_chunk(self, n: int) -> None:
        """Room for chunks of ``n`` edges; forgets what is there."""
        if n > self.mode[c.CHUNK_ROOM]:
            self.mode[c.CHUNK_ROOM] = n
            n += c.VECTOR_FANOUT + c.AHEAD
            mode = self.mode.reshape(1, -1)
            for column, dtype in (
                (c.POSITION, np.uint64),
                (c.NEIGHBOR, np.uint64),
                (c.ASKER, np.uint32),
                (c.HASH, np.uint64),
            ):
                self._new("mode", mode, 0, column, n, dtype)

    def _fill_zero(self, t: int, n: int, dtype: npt.DTypeLike) -> None:
        # Not np.zeros: its memory would not be in place, and in huge pages, before the first batch.
        array = self._new("nodes", self.nodes, t, c.SLOTS, n, dtype)
        array[:] = 0
        self._expected -= array.nbytes  # it is in use

    def _new(
        self, name: str, table: Table, i: int, column: int, n: int, dtype: npt.DTypeLike, keep: int = 0
    ) -> npt.NDArray[np.generic]:
        """A new array for ``table[i, column]``, with the first ``keep`` entries of the one before.

        Raises:
            CapacityError: there is not enough memory, also where the system would promise it all the same.
        """
        self._expected += n * np.dtype(dtype).itemsize
        if self._expected > LARGE:
            require_memory("A batch with these fan-outs", self._expected, "Use smaller fan-outs or batches.")
        array = np.empty(n, dtype)
        if keep > 0:
            array[:keep] = self._arrays[name, i, column][:keep]
        self._arrays[name, i, column] = array
        table[i, column] = array.ctypes.data
        return array
