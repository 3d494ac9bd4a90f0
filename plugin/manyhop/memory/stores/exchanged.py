"""Rows sharded over the host memory of nodes, as GPUs exchange them: each rank serves a part of those of its node."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows, Shards
from manyhop.memory.stores.places import page_locked
from manyhop.ranks import control
from manyhop.ranks.world import World


def exchanged_on_gpus(named: Sequence[tuple[str, Any]], timeout: float) -> dict[ShardedRows, DistributedRows]:
    """Have GPUs exchange the rows that nodes hold in host memory, which is page-locked. All ranks call it.

    Args:
        named: name and value of a loader's tensors.
        timeout: seconds to wait for other ranks.

    Returns:
        Of each :class:`ShardedRows` among them, what GPUs exchange the rows by: the same for all loaders.

    Raises:
        CapacityError: the system does not let this rank page-lock its part.
        InputError: nodes have unequal numbers of ranks.
        RankError: another rank failed or is late.
    """
    spread = [rows for _, rows in named if isinstance(rows, ShardedRows) and not rows.is_whole]
    if not spread:
        return {}
    found = control.attempt("rows that GPUs exchange", lambda: list(map(_part_of_rank, spread)), timeout=timeout)
    return dict(zip(spread, found, strict=True))


def _part_of_rank(rows: ShardedRows) -> DistributedRows:
    if rows not in _parts:
        world, of_node = rows.world, rows.shards.rows_of(rows.world.node)
        if not _is_even(world):
            raise InputError(
                "Expected nodes with equally many ranks, of consecutive numbers, for GPUs to exchange rows of the "
                f"nodes' memory, got ranks on nodes {list(world.nodes)}. Pass device='cpu', or put the rows on the "
                "GPUs: placement='distributed'."
            )
        part = Shards(rows.num_rows, world.world_size).rows_of(world.rank)
        mine = rows.rows[part.start - of_node.start : part.stop - of_node.start]
        _parts[rows] = DistributedRows(page_locked(mine), rows.num_rows, world, on_host=True)
    return _parts[rows]


def _is_even(world: World) -> bool:
    """Whether the parts of a node's ranks together are the part of the node."""
    return world.nodes == tuple(rank * world.num_nodes // world.world_size for rank in range(world.world_size)) and (
        world.world_size % world.num_nodes == 0
    )


_parts: weakref.WeakKeyDictionary[ShardedRows, DistributedRows] = weakref.WeakKeyDictionary()
