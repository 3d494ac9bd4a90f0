"""Lookups of rows in caches of files and in the parts of nodes. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhop.features.cpu_kernels import copy_rest
from manyhop.system.numba_kernels import fence, helper, i32, i64, kernel, u8, u64

_MOST_VISITS = 255


@helper
def ones(x: Any) -> Any:
    """Number of bits that are set."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel("int64(int64)")
def load(address: int) -> int:
    """Read an int64: after all that this thread has read before, and before all that it reads later."""
    fence()
    value = i64(address, 1)[0]
    fence()
    return value


@kernel("void(int64, int64)")
def store(address: int, value: int) -> None:
    """Write an int64: after all that this thread has written before, and before all that it writes later."""
    fence()
    i64(address, 1)[0] = value
    fence()


@kernel("int64(int64, boolean, int64, int64, int64, int64, int64, int64)")
def find_rows(
    index: int, wide: bool, count: int, num_rows: int, slots: int, visits: int, rows: int, positions: int
) -> int:
    """Sort the entries of an index: cached rows first, then the others. Count visits.

    Args:
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        num_rows: rows of the table.
        slots: address of ``[num_rows] int32``: 1 + the slot of a cached row, 0 of others.
        visits: address of ``[num_rows] uint8``: number of requests of each row, at most 255. 0: not counted.
        rows: address of ``[count]``, written: slot, or row number.
        positions: address of ``[count]``, written: which entries of the index these are.

    Returns:
        Number of cached rows; -1 - i, if row number i is the first that is out of range.
    """
    wide_ids, narrow_ids, slot = i64(index, count), i32(index, count), i32(slots, num_rows)
    visit, row, at = u8(visits, num_rows), i64(rows, count), i64(positions, count)
    kept, end = 0, count
    for i in range(count):
        id = wide_ids[i] if wide else np.int64(narrow_ids[i])
        if np.uint64(id) >= np.uint64(num_rows):
            return -1 - i
        if visits != 0 and visit[id] < _MOST_VISITS:
            visit[id] += 1
        place = np.int64(slot[id])
        if place > 0:
            row[kept], at[kept] = place - 1, i
            kept += 1
        else:
            end -= 1
            row[end], at[end] = id, i
    return kept


@kernel("int64(int64, int64, int64, int64, int64)")
def choose_rows(visits: int, num_rows: int, slots: int, most: int, rows: int) -> int:
    """Choose the rows that were visited most often, and halve the visits of all: old visits count less.

    Among rows with equal visits, cached rows precede others, and lower numbers precede higher ones. Rows without visits
    are not added. The slots of cached rows that are not chosen become 0.

    Args:
        visits: address of ``[num_rows] uint8``.
        num_rows: rows of the table.
        slots: as in :func:`find_rows`.
        most: largest number of rows, at least 1.
        rows: address of ``[most]``, written: the chosen rows that are not cached, ascending.

    Returns:
        How many.
    """
    visit, slot, row = u8(visits, num_rows), i32(slots, num_rows), i64(rows, most)
    counts, kept = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for i in range(num_rows):
        counts[visit[i]] += 1
        kept[visit[i]] += np.int64(slot[i] != 0)
    least, room = 255, most
    while least > 0 and counts[least] <= room:
        room -= counts[least]
        least -= 1
    stay = min(room, kept[least])  # of the rows that were visited ``least`` times
    come = min(room - stay, counts[least] - kept[least]) if least > 0 else 0
    new = total = 0
    for i in range(num_rows):
        times, cached = visit[i], slot[i] != 0
        visit[i] = times >> 1
        found = stay if cached else come
        if total == most or times < least or (times == least and found == 0):
            slot[i] = 0
            continue
        total += 1  # never above ``most``, although visits are still being counted
        if times == least:
            stay -= np.int64(cached)
            come -= np.int64(not cached)
        if not cached:
            row[new] = i
            new += 1
    return new


@kernel("void(int64, int64, int64, int64, int64, int64, int64)")
def keep_rows(source: int, rows: int, count: int, row_bytes: int, target: int, places: int, slots: int) -> None:
    """Copy rows of a table to unused slots, and let :func:`find_rows` find them.

    Args:
        source: address of row 0.
        rows: address of ``[count]`` row numbers.
        count: how many.
        row_bytes: bytes of a row.
        target: address of slot 0.
        places: address of ``[count]`` slots.
        slots: as in :func:`find_rows`.
    """
    row, place = i64(rows, count), i64(places, count)
    for i in range(count):
        copy_rest(target + place[i] * row_bytes, source + row[i] * row_bytes, 0, row_bytes)
    fence()
    for i in range(count):
        i32(slots + 4 * row[i], 1)[0] = place[i] + 1


_HASH = 0x9E3779B97F4A7C15


@kernel("int64(int64, boolean, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def route(
    index: int, wide: bool, count: int, bounds: int, num_nodes: int, node: int, hot: int,
    table: int, table_bits: int, position_bits: int, scratch: int, offsets: int, rows: int, positions: int,
) -> int:  # fmt: skip
    """Sort the entries of an index by the place of their rows, in their order in the index.

    Places are the nodes ``0 .. num_nodes - 1``, the cache, and, for repeated ids of other nodes,
    the result itself.

    Args:
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        bounds: address of ``[num_nodes + 1]``: which rows each node has.
        num_nodes: number of nodes.
        node: this node.
        hot: address of the groups of ``HotRows``; 0 for none.
        table: address of ``[1 << table_bits]`` for a hash table; more than ``count`` and ``num_nodes + 2`` entries.
        table_bits: its size.
        position_bits: of a word that an id and its position share; more than bits of ``count``.
        scratch: address of ``[2 * count]``.
        offsets: address of ``[num_nodes + 3]``, written: where the entries of each place begin in ``rows``.
        rows: address of ``[count]``, written: row in the node's part, in the cache, or (last place) in the result.
        positions: address of ``[count]``, written: which entries of the index these are.

    Returns:
        Position of the first row number that is out of range, otherwise -1.
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
            owner = min(np.int64(id * nodes_per_row), num_nodes - 1)  # or a neighbour of it; a division takes longer
            while id < limits[owner]:
                owner -= 1
            while id >= limits[owner + 1]:
                owner += 1
            where, what = owner, id - limits[owner]
            word = np.uint64(0)
            group = hot + 16 * (id >> 6)
            if hot != 0:
                word = u64(group, 1)[0]
            bit = np.uint64(id & 63)
            if (word >> bit) & np.uint64(1):
                below = word & ((np.uint64(1) << bit) - np.uint64(1))
                where, what = num_nodes, i64(group, 2)[1] + ones(below)
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
