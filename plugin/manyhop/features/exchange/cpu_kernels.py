"""Compiled passes of the exchange: where each row is, and moving rows. Importing this module imports numba."""

from __future__ import annotations

import numpy as np

from manyhop.features.gathering.cpu_kernels import copy_rest
from manyhop.features.hot.cpu_kernels import ones
from manyhop.system.numba_kernels import i32, i64, kernel, prefetch, u64

_AHEAD = 8
_HASH = 0x9E3779B97F4A7C15


@kernel(
    "int64(int64, boolean, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)"
)
def route(
    index: int,
    wide: bool,
    count: int,
    bounds: int,
    num_nodes: int,
    node: int,
    hot_bits: int,
    hot_before: int,
    table: int,
    table_bits: int,
    position_bits: int,
    scratch: int,
    offsets: int,
    rows: int,
    positions: int,
) -> int:
    """Sort the entries of an index by where their rows are, in the order in which they come.

    Places are the nodes ``0 .. num_nodes - 1``, the cache, and, for ids of other nodes that came before in this index,
    the result itself.

    Args:
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        bounds: address of ``[num_nodes + 1]``: which rows each node has.
        num_nodes: number of nodes.
        node: this node.
        hot_bits, hot_before: addresses of a ``HotIndex``; 0 for none.
        table: address of ``[1 << table_bits]`` for a hash table; more than ``count`` and ``num_nodes + 2`` entries.
        table_bits: its size.
        position_bits: of a word that an id and its position share; more than bits of ``count``.
        scratch: address of ``[2 * count]``.
        offsets: address of ``[num_nodes + 3]``, written: where the entries of each place begin in ``rows``.
        rows: address of ``[count]``, written: row in the node's part, in the cache, or (last place) in the result.
        positions: address of ``[count]``, written: which entries of the index these are.

    Returns:
        Position of the first row number that is out of range, -1 if there is none.
    """
    wide_ids, narrow_ids = i64(index, count), i32(index, count)
    limits, begin, row, at = (
        i64(bounds, num_nodes + 1),
        i64(offsets, num_nodes + 3),
        i64(rows, count),
        i64(positions, count),
    )
    place, value = i64(scratch, count), i64(scratch + 8 * count, count)
    size = np.int64(1) << table_bits
    slots = i64(table, size)
    for i in range(size):
        slots[i] = -1
    for p in range(num_nodes + 3):
        begin[p] = 0
    num_rows = limits[num_nodes]
    mask = np.uint64(size - 1)
    shift = np.uint64(64 - table_bits)
    nodes_per_row = num_nodes / max(num_rows, 1)
    mine_begin, mine_end = limits[node], limits[node + 1]
    for i in range(count):
        id = wide_ids[i] if wide else np.int64(narrow_ids[i])
        if np.uint64(id) >= np.uint64(num_rows):
            return i
        where, what = node, id - mine_begin
        if id < mine_begin or id >= mine_end:
            owner = min(np.int64(id * nodes_per_row), num_nodes - 1)  # or beside it; a division takes longer
            while id < limits[owner]:
                owner -= 1
            while id >= limits[owner + 1]:
                owner += 1
            where, what = owner, id - limits[owner]
            word = np.uint64(0)
            if hot_bits != 0:
                word = u64(hot_bits, (num_rows + 63) // 64)[id >> 6]
            bit = np.uint64(id & 63)
            if (word >> bit) & np.uint64(1):
                below = word & ((np.uint64(1) << bit) - np.uint64(1))
                where, what = num_nodes, i64(hot_before, (num_rows + 63) // 64)[id >> 6] + ones(below)
            else:
                slot = (np.uint64(id) * np.uint64(_HASH)) >> shift
                found = slots[np.int64(slot)]
                while found != -1 and found >> position_bits != id:
                    slot = (slot + np.uint64(1)) & mask
                    found = slots[np.int64(slot)]
                if found == -1:
                    slots[np.int64(slot)] = id << position_bits | i
                else:
                    where, what = num_nodes + 1, found & ((np.int64(1) << position_bits) - 1)
        place[i] = where
        value[i] = what
        begin[where + 1] += 1
    for p in range(num_nodes + 2):
        begin[p + 1] += begin[p]
    cursor = i64(table, num_nodes + 2)  # the hash table is done with
    for p in range(num_nodes + 2):
        cursor[p] = begin[p]
    for i in range(count):
        k = cursor[place[i]]
        cursor[place[i]] = k + 1
        row[k] = value[i]
        at[k] = i
    return -1


@kernel("void(int64, int64, int64, int64, int64, int64)")
def move_rows(source: int, source_rows: int, target: int, target_rows: int, count: int, row_bytes: int) -> None:
    """Copy row ``source_rows[i]`` to row ``target_rows[i]``, for each ``i``.

    Args:
        source: address of row 0.
        source_rows: address of ``[count]`` row numbers; 0: ``0, 1, ...``
        target: address of row 0.
        target_rows: address of ``[count]`` row numbers; 0: ``0, 1, ...``
        count: how many rows.
        row_bytes: bytes of a row.
    """
    from_rows, to_rows = i64(source_rows, count), i64(target_rows, count)
    for i in range(count):
        if i + _AHEAD < count:
            if source_rows != 0:
                ahead = source + from_rows[i + _AHEAD] * row_bytes
                prefetch(np.uint64(ahead))
                prefetch(np.uint64(ahead + min(64, row_bytes - 1)))
            if target_rows != 0:
                prefetch(np.uint64(target + to_rows[i + _AHEAD] * row_bytes))
        a = target + (to_rows[i] if target_rows != 0 else i) * row_bytes
        b = source + (from_rows[i] if source_rows != 0 else i) * row_bytes
        copy_rest(a, b, 0, row_bytes)
