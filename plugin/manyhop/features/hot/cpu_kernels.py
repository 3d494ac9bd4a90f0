"""Compiled passes of caches in host memory: which rows are kept and read. Importing this module imports numba."""

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
    return value  # type: ignore[no-any-return]


@kernel("void(int64, int64)")
def store(address: int, value: int) -> None:
    """Write an int64: after all that this thread has written before, and before all that it writes later."""
    fence()
    i64(address, 1)[0] = value
    fence()


@kernel("void(int64, int64, int64, int64, int64)")
def index_rows(rows: int, count: int, num_rows: int, bits: int, before: int) -> None:
    """Write the arrays of a ``HotIndex``.

    Args:
        rows: address of ``[count]`` row numbers, ascending and unique.
        count: how many.
        num_rows: rows of the table.
        bits, before: addresses of ``[ceil(num_rows / 64)]``, the former zeros.
    """
    num_words = (num_rows + 63) // 64
    row, words, below = i64(rows, count), u64(bits, num_words), i64(before, num_words)
    for i in range(count):
        words[row[i] >> 6] |= np.uint64(1) << np.uint64(row[i] & 63)
    total = 0
    for word in range(num_words):
        below[word] = total
        total += ones(words[word])


@kernel("int64(int64, boolean, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def find_rows(
    index: int,
    wide: bool,
    count: int,
    num_rows: int,
    bits: int,
    before: int,
    slots: int,
    capacity: int,
    visits: int,
    rows: int,
    positions: int,
) -> int:
    """Sort the entries of an index: those of rows that are kept come first, the others follow. Count visits.

    The index may be written meanwhile. What is found is of no use then, but all slots are in range.

    Args:
        index: address of ``[count]`` int64 (if ``wide``) or int32 row numbers.
        count: how many.
        num_rows: rows of the table.
        bits, before: addresses of a ``HotIndex``.
        slots: address of ``[capacity]``: where each row of the index is kept.
        capacity: how many can be.
        visits: address of ``[num_rows] uint8``: how often each row was asked for; counts up to 255. 0: not counted.
        rows: address of ``[count]``, written: slot, or row number.
        positions: address of ``[count]``, written: which entries of the index these are.

    Returns:
        How many are kept; -1 - i, if row number i is the first that is out of range.
    """
    wide_ids, narrow_ids = i64(index, count), i32(index, count)
    num_words = (num_rows + 63) // 64
    words, below, slot = u64(bits, num_words), i64(before, num_words), u64(slots, capacity)
    visit, row, at = u8(visits, num_rows), i64(rows, count), i64(positions, count)
    kept, end = 0, count
    for i in range(count):
        id = wide_ids[i] if wide else np.int64(narrow_ids[i])
        if np.uint64(id) >= np.uint64(num_rows):
            return -1 - i
        if visits != 0 and visit[id] < _MOST_VISITS:
            visit[id] += 1
        word, bit = words[id >> 6], np.uint64(id & 63)
        place = np.uint64(capacity)
        if (word >> bit) & np.uint64(1):
            rank = np.uint64(below[id >> 6] + ones(word & ((np.uint64(1) << bit) - np.uint64(1))))
            place = slot[rank] if rank < np.uint64(capacity) else place
        if place < np.uint64(capacity):
            row[kept], at[kept] = np.int64(place), i
            kept += 1
        else:
            end -= 1
            row[end], at[end] = id, i
    return kept


@kernel("int64(int64, int64, int64, int64, int64)")
def choose_rows(visits: int, num_rows: int, bits: int, most: int, rows: int) -> int:
    """Choose the rows that were visited most often, and halve the visits of all: what is long ago counts less.

    Of rows visited as often, those that are kept stay, and others follow by their number. None that was never visited
    is new.

    Args:
        visits: address of ``[num_rows] uint8``.
        num_rows: rows of the table.
        bits: address of those of a ``HotIndex``: the rows that are kept now.
        most: how many rows can be kept, at least 1.
        rows: address of ``[most]``, written: the rows, ascending.

    Returns:
        How many.
    """
    visit, words, row = u8(visits, num_rows), u64(bits, (num_rows + 63) // 64), i64(rows, most)
    counts, kept = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for i in range(num_rows):
        is_kept = (words[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)
        counts[visit[i]] += 1
        kept[visit[i]] += np.int64(is_kept)
    least, room = 255, most
    while least > 0 and counts[least] <= room:
        room -= counts[least]
        least -= 1
    stay = min(room, kept[least])  # of those that were visited ``least`` times
    come = min(room - stay, counts[least] - kept[least]) if least > 0 else 0
    total = 0
    for i in range(num_rows):
        times = visit[i]
        visit[i] = times >> 1
        if times < least:
            continue
        if times == least:
            if (words[i >> 6] >> np.uint64(i & 63)) & np.uint64(1):
                if stay == 0:
                    continue
                stay -= 1
            else:
                if come == 0:
                    continue
                come -= 1
        if total < most:  # visits are counted meanwhile
            row[total] = i
            total += 1
    return total
