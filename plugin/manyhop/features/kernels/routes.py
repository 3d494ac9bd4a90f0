"""Sorting the ids of a batch by the rank that has their rows."""

import triton
import triton.language as tl

from manyhop.features.kernels.gather import hot_slot, load_id

TILE = tl.constexpr(1024)  # ids of a program
# Buckets: repeated ids, ids of each other rank in ascending order, ids of this rank, cached ids.
REPEATED = tl.constexpr(0)
_LARGEST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def mark(
    index, wide, count, num_rows, num_ranks, rank,
    table, table_bits, position_bits, hot, first, buckets, totals, begins, blocks, bad,
    DEDUPLICATE: tl.constexpr, HOT: tl.constexpr,
):  # fmt: skip
    """Find the bucket of each id, and reserve positions in the buckets for the ids of this program.

    All arguments up to ``bad`` that are not numbers are addresses:

    - index: ``[count]`` int64 (if ``wide``) or int32.
    - table (DEDUPLICATE): ``[1 << table_bits] int64``, zeros, with more than ``count`` entries. It is a hash table
      whose chains descend. An entry is the largest number minus the id and its position. Programs that write a chain
      at the same time may miss a repeated id, which is harmless.
    - hot (HOT): groups of a ``HotRows``.
    - first: ``[count] int32``, written: first position of a repeated id, or position in the cache.
    - buckets: ``[count] int32``, written: the bucket of each id.
    - totals: ``[num_ranks + 2] int64``, initially 0: ids of each bucket.
    - begins: ``[num_ranks + 2, blocks] int32``, written: begin of this program's ids in each bucket.
    - bad: an int64: a position with a bad id, plus 1.
    """
    block = tl.program_id(0)
    i = block.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < count
    id = load_id(index, i, wide, inside)
    known = inside & (id >= 0) & (id < num_rows)
    wrong = inside & (known == 0)
    tl.store(bad.to(tl.pointer_type(tl.int64)) + tl.zeros([TILE], tl.int32), i + 1, mask=wrong)
    owner = ((id + 1) * num_ranks - 1) // tl.maximum(num_rows, 1)
    bucket = tl.where(owner == rank, num_ranks, owner + 1 - (owner > rank).to(tl.int64))
    bucket = tl.where(known, bucket, -1)
    came = i
    remote = known & (owner != rank)
    if HOT:
        cached = hot_slot(hot, id, remote)
        came = tl.where(cached >= 0, cached, came)
        bucket = tl.where(cached >= 0, num_ranks + 1, bucket)
        remote = remote & (cached < 0)
    if DEDUPLICATE:
        slots = table.to(tl.pointer_type(tl.int64))
        entry = _LARGEST - ((id << position_bits) | i)
        one = tl.full([1], 1, tl.int64)
        slot = ((id * 0x1E3779B97F4A7C15) >> (63 - table_bits)) & ((one << table_bits) - 1)
        pending = remote
        own = remote  # the entry is of this id, or of a replaced one, which needs a different slot
        while tl.max(pending.to(tl.int32), axis=0) != 0:
            old = tl.atomic_max(slots + slot, entry, mask=pending, sem="relaxed")
            same = ((_LARGEST - old) >> position_bits) == ((_LARGEST - entry) >> position_bits)
            again = pending & own & same
            came = tl.where(again, (_LARGEST - old) & ((one << position_bits) - 1), came)
            bucket = tl.where(again, REPEATED, bucket)
            pending = pending & (old != 0) & (same == 0)
            own = own & (old > entry)
            entry = tl.where(pending, tl.minimum(old, entry), entry)
            slot = (slot + 1) & ((one << table_bits) - 1)
    tl.store(first.to(tl.pointer_type(tl.int32)) + i, came.to(tl.int32), mask=inside)
    tl.store(buckets.to(tl.pointer_type(tl.int32)) + i, bucket.to(tl.int32), mask=inside)
    for b in range(0, num_ranks + 2):
        here = tl.sum((bucket == b).to(tl.int64), axis=0)
        begin = tl.atomic_add(totals.to(tl.pointer_type(tl.int64)) + b, here, sem="relaxed")
        tl.store(begins.to(tl.pointer_type(tl.int32)) + b * blocks + block, begin.to(tl.int32))


@triton.jit
def place(
    index, wide, count, num_rows, num_ranks, rank, first, buckets, totals, begins, blocks, rows, positions,
    header, words, status, failed, epoch, number, signature, parts, lengths, needs, ids, room, bad,
    WIDE_ROWS: tl.constexpr,
):  # fmt: skip
    """Write the entries of all buckets consecutively, and headers for the other ranks.

    All arguments up to ``bad`` that are not numbers are addresses:

    - totals, begins, bad: results of ``mark``.
    - rows: ``[count]`` int64 (WIDE_ROWS) or int32, written: row in the part of its rank, in the cache or (repeated ids)
      in the result.
    - positions: ``[count] int32``, written: positions of the entries in the index.
    - header: ``[num_ranks - 1, words] int64``, one per other rank: ``status``, or ``failed`` if ``bad`` is not 0, then
      ``epoch``, ``number``, ``signature``, 0 and ``parts``. With ``status`` 0, these are present already.
    - lengths, needs, ids: addresses in the first header; other headers follow ``words`` later. The number of rows
      requested of its rank; the largest number requested of any rank; ``[room]`` row numbers, as many as fit.
    """
    block = tl.program_id(0)
    i = block.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < count
    id = load_id(index, i, wide, inside)
    bucket = tl.load(buckets.to(tl.pointer_type(tl.int32)) + i, mask=inside, other=-1)
    came = tl.load(first.to(tl.pointer_type(tl.int32)) + i, mask=inside, other=0)
    repeated = bucket == REPEATED
    while tl.max(repeated.to(tl.int32), axis=0) != 0:  # its first position may also be a repeated id
        there = tl.load(buckets.to(tl.pointer_type(tl.int32)) + came, mask=repeated, other=1)
        repeated = repeated & (there == REPEATED)
        came = tl.load(first.to(tl.pointer_type(tl.int32)) + came, mask=repeated, other=0) + tl.where(repeated, 0, came)
    owner = ((id + 1) * num_ranks - 1) // tl.maximum(num_rows, 1)
    begin_of_owner = (num_rows * owner) // num_ranks
    row = tl.where((bucket == REPEATED) | (bucket == num_ranks + 1), came.to(tl.int64), id - begin_of_owner)
    k = tl.zeros([TILE], tl.int32)
    fits = bucket < 0
    place_of_id = tl.zeros([TILE], tl.int64)
    ID_BYTES: tl.constexpr = 8 if WIDE_ROWS else 4
    before = (num_rows * 0).to(tl.int64)  # entries of the buckets before
    longest = before
    for b in range(0, num_ranks + 2):
        here = bucket == b
        begin = tl.load(begins.to(tl.pointer_type(tl.int32)) + b * blocks + block)
        total = tl.load(totals.to(tl.pointer_type(tl.int64)) + b)
        in_bucket = begin + tl.cumsum(here.to(tl.int32), axis=0) - 1
        k = tl.where(here, before.to(tl.int32) + in_bucket, k)
        if (b > 0) & (b < num_ranks):
            other = tl.zeros([], tl.int64) + b - 1
            fits = fits | (here & (in_bucket < room))
            offset = 8 * words * other + in_bucket.to(tl.int64) * ID_BYTES
            place_of_id = tl.where(here, ids + offset, place_of_id)
            longest = tl.maximum(longest, total)
            if block == 0:
                tl.store(lengths.to(tl.pointer_type(tl.int64)) + other * words, total)
        before += total
    if block == 0:
        wrong = tl.load(bad.to(tl.pointer_type(tl.int64))) != 0
        for r in range(0, num_ranks - 1):
            head = header.to(tl.pointer_type(tl.int64)) + r * words
            if status != 0:
                tl.store(head, status)
                tl.store(head + 1, epoch)
                tl.store(head + 2, number)
                tl.store(head + 3, signature)
                tl.store(head + 5, parts)
            tl.store(head, failed, mask=wrong)
            tl.store(needs.to(tl.pointer_type(tl.int64)) + r * words, longest)
    placed = inside & (bucket >= 0)
    if WIDE_ROWS:
        tl.store(rows.to(tl.pointer_type(tl.int64)) + k, row, mask=placed)
        tl.store(place_of_id.to(tl.pointer_type(tl.int64)), row, mask=fits & placed)
    else:
        tl.store(rows.to(tl.pointer_type(tl.int32)) + k, row.to(tl.int32), mask=placed)
        tl.store(place_of_id.to(tl.pointer_type(tl.int32)), row.to(tl.int32), mask=fits & placed)
    tl.store(positions.to(tl.pointer_type(tl.int32)) + k, i.to(tl.int32), mask=placed)


@triton.jit
def report(part, headers, words, host, host_words, others, state, host_state, state_words, before, before_words):
    """Copy to the host the headers received from each other rank, and the state of routes: one of the parts 0 to
    ``others + 1`` of it.

    headers: of ``[others, words] int64``. host, host_state: addresses of pinned memory: ``[others, host_words]`` and
    ``[state_words] int64``. before: of ``[before_words] int64`` that become 0: the state of the exchange before.
    """
    source, target, count = headers + 8 * part * words, host + 8 * part * host_words, host_words
    if part == others:
        source, target, count = state, host_state, state_words
    if part == others + 1:
        source, target, count = before, before, before_words
    for begin in range(0, count, TILE):
        k = begin + tl.arange(0, TILE)
        value = tl.load(source.to(tl.pointer_type(tl.int64)) + k, mask=(k < count) & (part <= others), other=0)
        tl.store(target.to(tl.pointer_type(tl.int64)) + k, value, mask=k < count)
