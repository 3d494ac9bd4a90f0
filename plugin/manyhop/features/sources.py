"""Sources of rows that are not all in the memory of this process, or not all equally near, and sets of hot rows."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.ranks.world import World


@dataclass(frozen=True, eq=False)
class HotRows:
    """A set of row numbers and their order: a bit per row of the table, and a count per 64 of them."""

    groups: Tensor
    """``[ceil(num_rows / 64), 2] int64``: bit ``i % 64`` of ``groups[i // 64, 0]`` is set if row ``i`` is in the
    set, ``groups[i // 64, 1]`` is the number of rows of the set below row ``64 * (i // 64)``."""
    count: int
    """Number of rows in the set."""

    @staticmethod
    def of(rows: Tensor, num_rows: int) -> HotRows:
        """Return the set of ``rows``, ``[count] int64``, ascending and unique, of a table of ``num_rows``."""
        bits = torch.zeros(-(-num_rows // 64), dtype=torch.int64, device=rows.device)
        bits.scatter_add_(0, rows >> 6, torch.ones_like(rows) << (rows & 63))
        counts = torch.zeros_like(bits).scatter_add_(0, rows >> 6, torch.ones_like(rows))
        return HotRows(torch.stack([bits, counts.cumsum(0) - counts], 1), rows.numel())


class HitCounts:
    """Rows that were requested of a cache, and hits among them, counted by any thread."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counted = self._taken = (0, 0)

    def add(self, requested: int, hits: int) -> None:
        """Add the rows of one gather."""
        with self._counting:
            self._counted = self._counted[0] + requested, self._counted[1] + hits

    def take(self, requested: int = 0, hits: int = 0) -> tuple[int, int]:
        """Return the counts since the last call; the arguments are rows that a GPU has counted in all."""
        with self._counting:
            before, self._taken = self._taken, (requested + self._counted[0], hits + self._counted[1])
            return self._taken[0] - before[0], self._taken[1] - before[1]

    @property
    def miss_rate(self) -> float:
        """Return the share of the requested rows that the cache did not have; 1 before any request."""
        requested, hits = self._counted
        return 1 - hits / requested if requested else 1.0


@dataclass(eq=False)
class CachedRows:
    """A tensor on the host, in a file, or on other GPUs; this GPU caches some of its rows. A source for ``gather``.

    Only indices on this GPU use the cache; with others, the tensor is read.
    """

    source: Tensor | np.ndarray[Any, Any]
    """``[num_rows, ...]``: all rows."""
    hot: HotRows
    """The set of rows that the GPU caches. Tensors that are indexed by the same ids may share it."""
    rows: Tensor
    """``[hot.count, ...]``: these rows, on the GPU."""
    counts: Tensor = field(init=False)
    """``[2] int64`` on the GPU: how many rows were requested, and how many of those it had. Kernels count them,
    where the GPU reads the others itself."""

    def __post_init__(self) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=self.rows.device)
        self.staged = HitCounts()
        """Counts of gathers whose other rows the CPU reads."""

    def take_counts(self) -> tuple[int, int]:
        """Return the requested rows and the hits since the last call; waits for the GPU."""
        return self.staged.take(*self.counts.tolist())

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return tuple(self.source.shape)


@dataclass(frozen=True)
class Shards:
    """``num_rows`` rows over ``num_nodes`` nodes, in pieces that differ by one row at most."""

    num_rows: int
    num_nodes: int

    @property
    def bounds(self) -> list[int]:
        """Return ``[num_nodes + 1]``: node ``m`` has the rows from ``bounds[m]`` up to ``bounds[m + 1]``."""
        return [self.num_rows * m // self.num_nodes for m in range(self.num_nodes + 1)]

    def rows_of(self, node: int) -> range:
        """Return the rows that a node has."""
        return range(self.num_rows * node // self.num_nodes, self.num_rows * (node + 1) // self.num_nodes)


def servers(world: World) -> list[int]:
    """Return ``[num_nodes]``: the rank of each node that this rank asks; those of a node are asked by as many each."""
    ranks = map(world.ranks_of, range(world.num_nodes))
    return [of_node[world.local_rank % len(of_node)] for of_node in ranks]


@dataclass(eq=False)
class RowsInParts:
    """A tensor of which this process has a part of the rows; a source for :func:`manyhop.features.gather`.

    Raises:
        FeatureError: the rows are not this part of the tensor, or not contiguous.
    """

    rows: Tensor
    """``[len(own_rows), ...]``: the part that is here."""
    num_rows: int
    """Rows of all parts together."""
    world: World
    """The ranks."""
    hot: HotRows | None = None
    """Cached rows of other parts. Tensors that are indexed by the same ids share it."""
    hot_rows: Tensor | None = None
    """``[hot.count, ...]``: these rows."""
    shards: Shards = field(init=False)
    """The rows of each part."""

    def __post_init__(self) -> None:
        part, num_parts, unit = self._part
        self.shards = Shards(self.num_rows, num_parts)
        if self.rows.dim() == 0 or self.rows.shape[0] != len(self.own_rows):
            raise FeatureError(
                f"Expected the {len(self.own_rows)} rows of {unit} {part} out of {self.num_rows} on "
                f"{num_parts} {unit}s, got shape {list(self.rows.shape)}."
            )
        if not self.rows.is_contiguous():
            raise FeatureError("Expected contiguous rows. Call .contiguous().")

    @property
    def _part(self) -> tuple[int, int, str]:
        """Return the number of the part that is here, the number of parts, and the holder of each."""
        raise NotImplementedError

    @property
    def own_rows(self) -> range:
        """Return the numbers of the rows that are here."""
        return self.shards.rows_of(self._part[0])

    @property
    def is_whole(self) -> bool:
        """Return whether all rows are here."""
        return self._part[1] == 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return (self.num_rows, *self.rows.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the rows."""
        return self.rows.dtype

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return self.rows.dim()

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.num_rows


@dataclass(eq=False)
class ShardedRows(RowsInParts):
    """A tensor of whose rows every node has a part, in CPU memory."""

    part_of_rank: DistributedRows | None = field(default=None, init=False)
    """This rank's rows of them, page-locked: GPUs exchange them. ``None``: no loader has requested it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows.device.type != "cpu":
            raise FeatureError("Expected contiguous rows in CPU memory. Call .cpu().contiguous().")

    @property
    def _part(self) -> tuple[int, int, str]:
        return self.world.node, self.world.num_nodes, "node"


@dataclass(eq=False)
class DistributedRows(RowsInParts):
    """A tensor of whose rows every rank has a part, which its GPU reads."""

    on_host: bool = False
    """Whether ``rows`` are page-locked memory of the host."""

    @property
    def _part(self) -> tuple[int, int, str]:
        return self.world.rank, self.world.world_size, "rank"
