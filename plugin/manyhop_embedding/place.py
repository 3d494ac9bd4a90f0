"""The memory of a table and of states of its rows: read by all ranks, written by owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import FeatureError, InputError
from manyhop.features import BufferPool, Checks, DistributedRows, RowRequest, ShardedRows, Shards, gather
from manyhop.memory.places import check_place
from manyhop.memory.stores import GPURows, NodeRows, rows_in, store_device
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.ranks.world import World
from manyhop.system.arrays import describe

Copies = Literal["rank", "node", "nodes", "ranks"]
"""Holders of copies of a table. ``rank``: each rank. ``node``: each node, whose ranks share it. ``nodes``: all nodes
together, a part each, which its ranks share. ``ranks``: all ranks together, a part each."""


@dataclass(frozen=True)
class Owners:
    """The rows of a table over ranks: every row of every copy belongs to one rank, which updates it."""

    num_rows: int
    world: World
    copies: Copies

    @property
    def share_memory(self) -> bool:
        """Return whether ranks read rows where another rank updates them.

        Elsewhere a rank reads its own rows, or exchanges rows of other ranks, each of which joins after its update.
        """
        return self.copies in ("node", "nodes")

    @property
    def num_copies(self) -> int:
        """Return the number of copies of each row."""
        return {"rank": self.world.world_size, "node": self.world.num_nodes}.get(self.copies, 1)

    def rows_of(self, rank: int) -> range:
        """Return the rows that a rank owns."""
        if self.copies == "rank":
            return range(self.num_rows)
        if self.copies == "ranks":
            return Shards(self.num_rows, self.world.world_size).rows_of(rank)
        here = self.rows_near(rank)
        ranks = self.world.ranks_of(self.world.nodes[rank])
        part = Shards(len(here), len(ranks)).rows_of(ranks.index(rank))
        return range(here.start + part.start, here.start + part.stop)

    def rows_near(self, rank: int) -> range:
        """Return the rows of the memory that a rank writes to: its own, or all that ranks of its node share."""
        if self.copies == "nodes":
            return Shards(self.num_rows, self.world.num_nodes).rows_of(self.world.nodes[rank])
        return range(self.num_rows) if self.copies == "node" else self.rows_of(rank)

    def has_first_copy(self, rank: int) -> bool:
        """Return whether the rows of a rank belong to the first copy, the one that is saved."""
        if self.copies == "rank":
            return rank == 0
        return self.copies != "node" or self.world.nodes[rank] == 0

    def bounds(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return ``[world_size, 2]``: the first row of each rank, and the one after its last."""
        ranges = [self.rows_of(rank) for rank in range(self.world.world_size)]
        return torch.tensor([[rows.start, rows.stop] for rows in ranges], dtype=dtype, device=device)


@dataclass(frozen=True)
class Table:
    """``[num_rows, width]`` in some memory."""

    source: Tensor | ShardedRows | DistributedRows
    """The source of gathers."""

    own: Tensor
    """``[len(rows), width]``: the rows that this rank updates, in place."""

    owners: Owners

    @property
    def rows(self) -> range:
        """The rows that this rank owns."""
        return self.owners.rows_of(self.owners.world.rank)


class TablePlace:
    """Where an embedding and the states of its optimizer reside. All ranks create it, and tables in it.

    Args:
        placement: ``process``, ``shared``, ``pinned``, ``device``, ``sharded`` or ``distributed``.
        device: the GPU; see :func:`manyhop.memory.stores.store_device`.
        timeout: seconds to wait for other ranks; ``None``: 600.

    Raises:
        InputError: a place that does not support training, or does not exist here.
    """

    def __init__(self, placement: Any, device: Any, timeout: float | None) -> None:
        hint = " Use 'shared', the host memory of each node, for a table that is trained."
        check_place(placement, ("process", "shared", "pinned", "device", "sharded", "distributed"), hint=hint)
        gpu = store_device(placement, device, timeout)
        if placement == "process" and world.current_size() > 1:
            raise InputError(
                f"Expected placement='process' in a run of one process, got {world.current_size()}, whose tables would "
                "differ after a step. Use placement='shared'."
            )
        rows = rows_in("shared" if placement == "process" else placement, gpu, timeout)
        assert rows is not None
        self._rows: NodeRows | GPURows = rows
        self._on_each_rank = placement == "device"
        self._pool = BufferPool()
        self.timeout = timeout
        self.device = torch.empty(0, device=gpu or "cpu").device
        """Where rows are updated: in pinned memory as well, by the GPU; includes its number."""

    def agree(self, title: str, facts: dict[str, Any]) -> None:
        """Raise RankError unless all ranks have the same facts. All ranks call it."""
        timeout = self.timeout or DEFAULT_TIMEOUT
        world.init(timeout=timeout)
        control.agree(title, facts, timeout=timeout)

    def make(
        self,
        num_rows: int,
        width: int,
        dtype: torch.dtype,
        name: str,
        fill: Callable[[range, Tensor], None] | None = None,
    ) -> Table:
        """Allocate a table; each rank fills a part, with zeros if ``fill`` is ``None``. All ranks call it."""
        source = self._rows.make((num_rows, width), dtype, name, fill or _fill_zeros)
        ours = world.current()
        if isinstance(source, DistributedRows):
            return Table(source, source.rows, Owners(num_rows, ours, "ranks"))
        if isinstance(source, ShardedRows):
            owners, held = Owners(num_rows, ours, "nodes"), source.rows
        else:
            owners, held = Owners(num_rows, ours, "rank" if self._on_each_rank else "node"), source
        near, mine = owners.rows_near(ours.rank), owners.rows_of(ours.rank)
        return Table(source, held[mine.start - near.start : mine.stop - near.start], owners)

    def gather(self, table: Table, ids: Tensor, name: str, checks: Checks | None) -> Tensor:
        """Return ``[count, width]``, on the device of ``ids`` or of the table.

        All ranks call it where nodes, or ranks, exchange rows.

        Args:
            table: from :meth:`make`.
            ids: ``[count]`` int64 or int32.
            name: for errors.
            checks: gets ids that a GPU checks; ``None``: wait for the GPU.

        Raises:
            FeatureError: ids that are out of range, or no row numbers.
        """
        if ids.device.type == "cpu" and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # updates of pinned rows
        request = RowRequest(table.source, ids, name=name)
        threads = torch.get_num_threads()
        (rows,) = gather([request], pool=self._pool, threads=threads, exchange=self._rows.exchange, checks=checks)
        assert isinstance(rows, Tensor)
        return rows


def _fill_zeros(rows: range, out: Tensor) -> None:
    out.zero_()


def require_ids(ids: Any, name: str) -> Tensor:
    """Return row numbers as ``[count]``, regardless of their shape.

    Raises:
        FeatureError: no tensor of integers.
    """
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        raise FeatureError(
            f"Expected ids of {name} as a tensor of int64 or int32, got {describe(ids)}. Pass row numbers."
        )
    flat = as_tensor(f"ids of {name}", ids, FeatureError).reshape(-1)
    return flat.clone() if flat.is_inference() and torch.is_grad_enabled() else flat  # autograd keeps no such tensors
