"""Memory of one thread for sampling on the CPU: grows to the largest batch, then stays. Does not import numba."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling.cpu import tables as c
from manyhop.system.memory import require_memory

_LOW64 = (1 << 64) - 1

TABLE_OF_ALL_NODES = 1 << 25
"""Node types up to this size get a table with a slot per node, larger ones a hash table of the batch's size."""

LARGE = 1 << 28
"""Bytes that are taken without asking the system how many are free, which takes longer than a small batch."""

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
        rehash: kernel that moves the nodes of a batch into a new hash table: ``rehash(nodes, node_type)``.
    """

    def __init__(
        self,
        num_nodes: Sequence[int],
        num_edge_types: int,
        disjoint: bool,
        largest_fanout: int,
        rehash: Callable[[c.Records, int], None],
    ) -> None:
        self.nodes = np.zeros(len(num_nodes), c.BATCH_NODES)
        self.found = np.zeros(num_edge_types, c.FOUND_EDGES)
        self.mode = np.zeros(1, c.MODE)
        self._rehash = rehash
        self._arrays: dict[tuple[str, int, str], npt.NDArray[np.generic]] = {}
        self._node_capacity = [0] * len(num_nodes)
        self._slot_capacity = [0] * len(num_nodes)
        self._expected = 0
        self.nodes["stamp"] = 1
        self.nodes["num_nodes"] = num_nodes
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
        self.mode["set_mask"] = size - 1
        self.reserve_chunk(c.CHUNK)

    def begin(self) -> None:
        """Forget the batch before, also one that was broken off."""
        self.expect(0)
        nodes = self.nodes
        nodes["stamp"] += nodes["count"]
        nodes["count"] = 0
        for t, stamp in enumerate(nodes["stamp"].tolist()):
            if stamp > LIMIT // 2:
                self._arrays["nodes", t, "slots"][:] = 0
                nodes["stamp"][t] = 1
        self.mode["limit"] = LIMIT

    def expect(self, nbytes: int) -> None:
        """What has been reserved before is in use; memory that is reserved from now on has to leave ``nbytes`` free."""
        self._expected = nbytes

    def reserve_nodes(self, t: int, n: int) -> None:
        """Reserve memory for ``n`` nodes of type ``t``, in the slots also; what is there stays."""
        if n + int(self.nodes["stamp"][t]) > LIMIT:
            raise CapacityError(
                f"Expected fewer than 2^30 nodes of a type in a batch, got up to {n}. Use smaller fanouts or batches."
            )
        if n > self._node_capacity[t]:
            self._node_capacity[t] = n + n // 4 + 64
            keep = int(self.nodes["count"][t])
            for column in ("node", "tree"):
                self._new("nodes", self.nodes, t, column, self._node_capacity[t], np.uint64, keep)
        if n > self._slot_capacity[t]:
            size = 1 << max(8, (n + n // 3 + 1).bit_length())  # a small table of one tree fits in
            self._fill_zero(t, size, np.uint64)
            self.nodes["mask"][t] = size - 1
            self._slot_capacity[t] = size // 4 * 3
            self._rehash(self.nodes, t)
        self.nodes["capacity"][t] = min(self._node_capacity[t], self._slot_capacity[t])

    def reserve_seeds(self, t: int, n: int) -> None:
        """Reserve memory for ``n`` seeds of type ``t``."""
        self.reserve_nodes(t, n)
        array = self._arrays.get(("nodes", t, "copy"))
        if array is None or array.size < 2 * n:
            self._new("nodes", self.nodes, t, "copy", 2 * n, np.uint32)

    def reserve_frontier(self, t: int, n: int) -> None:
        """Reserve memory for the ranges of ``n`` frontier nodes of edge type ``t``; forgets what is there."""
        if n > self.found["frontier_capacity"][t]:
            n = n + n // 4 + 64
            for column, dtype in (("start", np.uint64), ("degree", np.uint32), ("take", np.uint32)):
                self._new("found", self.found, t, column, n, dtype)
            self.found["frontier_capacity"][t] = n

    def reserve_edges(self, t: int, n: int, keep: int) -> None:
        """Reserve memory for ``n`` edges of type ``t``, of which ``keep`` are there and stay."""
        if n > self.found["kept_capacity"][t]:
            n = n + n // 4 + 64
            for column in ("kept_row", "kept_col", "kept_id"):
                self._new("found", self.found, t, column, n, np.int64, keep)
            self.found["kept_capacity"][t] = n

    def exclude(self, t: int, ids: Tensor | None) -> None:
        """Which edges of type ``t`` the next batch must not have, ``[n] int64``; the tensor must live as long."""
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

    def reserve_picked(self, t: int, n: int, keep: int) -> None:
        """Reserve memory for ``n`` edges of type ``t`` that are picked ahead, of which ``keep`` are there and stay."""
        if n > self.found["picked_capacity"][t]:
            n = n + n // 4 + 64
            self._new("found", self.found, t, "picked", n, np.uint64, keep)
            self._new("found", self.found, t, "picked_weight", n, np.float32, keep)
            self.found["picked_capacity"][t] = n

    def picked_weights(self, t: int, n: int) -> Tensor:
        """``[n] float32``: what edges of type ``t`` count that were picked ahead; valid until the next batch."""
        array = self._arrays.get(("found", t, "picked_weight"))
        return torch.from_numpy(np.empty(0, np.float32) if array is None else array[:n])

    def reserve_chunk(self, n: int) -> None:
        """Reserve memory for chunks of ``n`` edges; forgets what is there."""
        if n > self.mode["chunk_capacity"][0]:
            self.mode["chunk_capacity"] = n
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
        self, name: str, table: c.Records, i: int, column: str, n: int, dtype: npt.DTypeLike, keep: int = 0
    ) -> npt.NDArray[np.generic]:
        """A new array for ``table[column][i]``, with the first ``keep`` entries of the one before.

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
