"""Lookups of rows in caches of host memory and in the parts of nodes. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np

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


@kernel("void(int64, int64, int64, int64)")
def index_rows(rows: int, count: int, num_rows: int, groups: int) -> None:
    """Write the groups of ``HotRows``, as ``HotRows.of`` does, in a tenth of the time.

    Args:
        rows: address of ``[count]`` row numbers, ascending and unique.
        count: how many.
        num_rows: rows of the table.
        groups: address of ``[ceil(num_rows / 64), 2]``, zeros.
    """
    num_words = (num_rows + 63) // 64
    row, words = i64(rows, count), u64(groups, 2 * num_words)
    for i in range(count):
        words[2 * (row[i] >> 6)] |= np.uint64(1) << np.uint64(row[i] & 63)
    total = np.uint64(0)
    for word in range(num_words):
        words[2 * word + 1] = total
        total += np.uint64(ones(words[2 * word]))


@kernel("int64(int64, boolean, int64, int64, int64, int64, int64, int64, int64, int64)")
def find_rows(
    index: int,
    wide: bool,
    count: int,
    num_rows: int,
    groups: int,
    slots: int,
    capacity: int,
    visits: int,
    rows: int,
    positions: int,
) -> int:
    """Sort the entries of an index: cached rows first, then the others. Count visits.

    The index may be written at the same time. The results are useless then, but all slots are in range.

    Args:
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        num_rows: rows of the table.
        groups: address of the groups of ``HotRows``.
        slots: address of ``[capacity]``: slot of each row of the index.
        capacity: number of slots.
        visits: address of ``[num_rows] uint8``: number of requests of each row, at most 255. 0: not counted.
        rows: address of ``[count]``, written: slot, or row number.
        positions: address of ``[count]``, written: which entries of the index these are.

    Returns:
        Number of cached rows; -1 - i, if row number i is the first that is out of range.
    """
    wide_ids, narrow_ids = i64(index, count), i32(index, count)
    words, slot = u64(groups, 2 * ((num_rows + 63) // 64)), u64(slots, capacity)
    visit, row, at = u8(visits, num_rows), i64(rows, count), i64(positions, count)
    kept, end = 0, count
    for i in range(count):
        id = wide_ids[i] if wide else np.int64(narrow_ids[i])
        if np.uint64(id) >= np.uint64(num_rows):
            return -1 - i
        if visits != 0 and visit[id] < _MOST_VISITS:
            visit[id] += 1
        word, bit = words[2 * (id >> 6)], np.uint64(id & 63)
        place = np.uint64(capacity)
        if (word >> bit) & np.uint64(1):
            rank = words[2 * (id >> 6) + 1] + np.uint64(ones(word & ((np.uint64(1) << bit) - np.uint64(1))))
            place = slot[rank] if rank < np.uint64(capacity) else place
        if place < np.uint64(capacity):
            row[kept], at[kept] = np.int64(place), i
            kept += 1
        else:
            end -= 1
            row[end], at[end] = id, i
    return kept


@kernel("int64(int64, int64, int64, int64, int64)")
def choose_rows(visits: int, num_rows: int, groups: int, most: int, rows: int) -> int:
    """Choose the rows that were visited most often, and halve the visits of all: old visits count less.

    Among rows with equal visits, cached rows precede others, and lower numbers precede higher ones. Rows without visits
    are not added.

    Args:
        visits: address of ``[num_rows] uint8``.
        num_rows: rows of the table.
        groups: address of the groups of ``HotRows``: the cached rows.
        most: largest number of rows, at least 1.
        rows: address of ``[most]``, written: the rows, ascending.

    Returns:
        How many.
    """
    visit, words, row = u8(visits, num_rows), u64(groups, 2 * ((num_rows + 63) // 64)), i64(rows, most)
    counts, kept = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for i in range(num_rows):
        is_kept = (words[2 * (i >> 6)] >> np.uint64(i & 63)) & np.uint64(1)
        counts[visit[i]] += 1
        kept[visit[i]] += np.int64(is_kept)
    least, room = 255, most
    while least > 0 and counts[least] <= room:
        room -= counts[least]
        least -= 1
    stay = min(room, kept[least])  # of the rows that were visited ``least`` times
    come = min(room - stay, counts[least] - kept[least]) if least > 0 else 0
    total = 0
    for i in range(num_rows):
        times = visit[i]
        visit[i] = times >> 1
        if times < least:
            continue
        if times == least:
            if (words[2 * (i >> 6)] >> np.uint64(i & 63)) & np.uint64(1):
                if stay == 0:
                    continue
                stay -= 1
            else:
                if come == 0:
                    continue
                come -= 1
        if total < most:  # visits are still being counted
            row[total] = i
            total += 1
    return total


_HASH = 0x9E3779B97F4A7C15


@kernel("int64(int64, boolean, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def route(
    index: int,
    wide: bool,
    count: int,
    bounds: int,
    num_nodes: int,
    node: int,
    hot: int,
    table: int,
    table_bits: int,
    position_bits: int,
    scratch: int,
    offsets: int,
    rows: int,
    positions: int,
) -> int:
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
