"""Sorting the ids of a batch by the rank that has their rows, in the order in which they come."""

import triton
import triton.language as tl

from manyhop.features._gpu.kernels.hot import hot_slot

TILE = tl.constexpr(1024)  # ids of a program
# Buckets: ids that came before; for each other rank, ascending, those whose rows it has; those of this rank; the cache.
REPEATED = tl.constexpr(0)
EMPTY = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit(
    do_not_specialize=[
        "index", "wide", "count", "num_rows", "num_ranks", "rank", "table", "table_bits", "position_bits",
        "hot", "first", "buckets", "counts", "blocks", "bad",
    ]
)  # fmt: skip
def mark(
    index,
    wide,
    count,
    num_rows,
    num_ranks,
    rank,
    table,
    table_bits,
    position_bits,
    hot,
    first,
    buckets,
    counts,
    blocks,
    bad,
    DEDUPLICATE: tl.constexpr,
    HOT: tl.constexpr,
):
    """Find the bucket of each id, and how many of each bucket this program has.

    index: address of ``[count]`` int64 (if ``wide``) or int32. table: of ``[1 << table_bits] int64``, all EMPTY, more
    than ``count`` entries (DEDUPLICATE): a hash table in whose chains entries ascend; where programs write the same
    chain at once they may overlook that an id came before, which is no harm. hot: of the groups of a ``HotRows`` (HOT).
    first, buckets: of ``[count] int32``, written: where the id came before, or lies in the cache; its bucket. counts:
    of ``[num_ranks + 2, blocks] int32``, written. bad: of an int64: a position with a bad id, plus 1.
    """
    block = tl.program_id(0)
    i = block.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < count
    narrow_id = tl.load(index.to(tl.pointer_type(tl.int32)) + i, mask=inside & (wide == 0), other=0)
    wide_id = tl.load(index.to(tl.pointer_type(tl.int64)) + i, mask=inside & (wide != 0), other=0)
    id = tl.where(wide != 0, wide_id, narrow_id.to(tl.int64))
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
        entry = (id << position_bits) | i
        one = tl.full([1], 1, tl.int64)
        slot = ((id * 0x1E3779B97F4A7C15) >> (63 - table_bits)) & ((one << table_bits) - 1)
        pending = remote
        own = remote  # the entry is this id's; else one that it took the place of, which needs another
        while tl.max(pending.to(tl.int32), axis=0) != 0:
            old = tl.atomic_min(slots + slot, entry, mask=pending, sem="relaxed")
            same = (old >> position_bits) == (entry >> position_bits)
            again = pending & own & same
            came = tl.where(again, old & ((one << position_bits) - 1), came)
            bucket = tl.where(again, REPEATED, bucket)
            pending = pending & (old != EMPTY) & (same == 0)
            own = own & (old < entry)
            entry = tl.where(pending, tl.maximum(old, entry), entry)
            slot = (slot + 1) & ((one << table_bits) - 1)
    tl.store(first.to(tl.pointer_type(tl.int32)) + i, came.to(tl.int32), mask=inside)
    tl.store(buckets.to(tl.pointer_type(tl.int32)) + i, bucket.to(tl.int32), mask=inside)
    for b in range(0, num_ranks + 2):
        here = tl.sum((bucket == b).to(tl.int32), axis=0)
        tl.store(counts.to(tl.pointer_type(tl.int32)) + b * blocks + block, here)


@triton.jit(
    do_not_specialize=[
        "index", "wide", "count", "num_rows", "num_ranks", "rank", "first", "buckets", "counts", "ends", "blocks",
        "rows", "positions", "offsets", "header", "lengths", "words", "bad", "failed", "ids", "room", "needed", "share",
    ]
)  # fmt: skip
def place(
    index,
    wide,
    count,
    num_rows,
    num_ranks,
    rank,
    first,
    buckets,
    counts,
    ends,
    blocks,
    rows,
    positions,
    offsets,
    header,
    lengths,
    words,
    bad,
    failed,
    ids,
    room,
    needed,
    share,
    WIDE_ROWS: tl.constexpr,
):
    """Write the entries of each bucket behind each other.

    ends: address of ``[num_ranks + 2, blocks] int32``, the inclusive sums of ``counts``. rows: of ``[count]`` int64
    (WIDE_ROWS) or int32, written: row in the part of its rank, in the cache or (repeated ids) in the result. positions:
    of ``[count] int32``, written: which entries of the index these are. offsets: of ``[num_ranks + 2] int64``, written:
    where each bucket ends. header: of ``[num_ranks, words] int64``, whose first word becomes ``failed`` if ``bad`` is
    not 0. Of the first of these, for the others alike: lengths: of the word that says how many rows a rank is asked
    for; ids: of ``[room]``, as ``rows``: what fits of these; needed: of a word that becomes ``share`` times the int64
    that the longest would need, if it is not more.
    """
    block = tl.program_id(0)
    i = block.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < count
    narrow_id = tl.load(index.to(tl.pointer_type(tl.int32)) + i, mask=inside & (wide == 0), other=0)
    wide_id = tl.load(index.to(tl.pointer_type(tl.int64)) + i, mask=inside & (wide != 0), other=0)
    id = tl.where(wide != 0, wide_id, narrow_id.to(tl.int64))
    bucket = tl.load(buckets.to(tl.pointer_type(tl.int32)) + i, mask=inside, other=-1)
    came = tl.load(first.to(tl.pointer_type(tl.int32)) + i, mask=inside, other=0)
    repeated = bucket == REPEATED
    while tl.max(repeated.to(tl.int32), axis=0) != 0:  # where it came before may repeat another one
        there = tl.load(buckets.to(tl.pointer_type(tl.int32)) + came, mask=repeated, other=1)
        repeated = repeated & (there == REPEATED)
        came = tl.load(first.to(tl.pointer_type(tl.int32)) + came, mask=repeated, other=0) + tl.where(repeated, 0, came)
    owner = ((id + 1) * num_ranks - 1) // tl.maximum(num_rows, 1)
    begin = (num_rows * owner) // num_ranks
    row = tl.where((bucket == REPEATED) | (bucket == num_ranks + 1), came.to(tl.int64), id - begin)
    k = tl.zeros([TILE], tl.int32)
    fits = bucket < 0
    place_of_id = tl.zeros([TILE], tl.int64)
    ID_BYTES: tl.constexpr = 8 if WIDE_ROWS else 4
    longest = tl.load(ends.to(tl.pointer_type(tl.int32))) * 0
    for b in range(0, num_ranks + 2):
        here = (bucket == b).to(tl.int32)
        end = tl.load(ends.to(tl.pointer_type(tl.int32)) + b * blocks + block)
        mine = tl.load(counts.to(tl.pointer_type(tl.int32)) + b * blocks + block)
        k = tl.where(bucket == b, end - mine + tl.cumsum(here, axis=0) - 1, k)
        last = tl.load(ends.to(tl.pointer_type(tl.int32)) + b * blocks + blocks - 1)
        before = last * 0
        if b > 0:
            before = tl.load(ends.to(tl.pointer_type(tl.int32)) + b * blocks - 1)
        if (b > 0) & (b < num_ranks):
            other = b - (b <= rank).to(tl.int64)
            fits = fits | ((bucket == b) & (k - before < room))
            offset = 8 * words * other + (k - before).to(tl.int64) * ID_BYTES
            place_of_id = tl.where(bucket == b, ids + offset, place_of_id)
            longest = tl.maximum(longest, last - before)
        if block == 0:
            if (b > 0) & (b <= num_ranks):
                other = b - (b <= rank).to(tl.int64)
                word = tl.where(b == num_ranks, rank, other) * words
                tl.store(lengths.to(tl.pointer_type(tl.int64)) + word, (last - before).to(tl.int64))
                wrong = tl.load(bad.to(tl.pointer_type(tl.int64))) != 0
                tl.store(header.to(tl.pointer_type(tl.int64)) + word, failed + tl.zeros([], tl.int64), mask=wrong)
            tl.store(offsets.to(tl.pointer_type(tl.int64)) + b, last.to(tl.int64))
    if block == 0:
        need = share * ((longest.to(tl.int64) * ID_BYTES + 7) // 8)
        for r in range(0, num_ranks):
            word = needed.to(tl.pointer_type(tl.int64)) + r * words
            tl.store(word, tl.maximum(tl.load(word), need))
    placed = inside & (bucket >= 0)
    if WIDE_ROWS:
        tl.store(rows.to(tl.pointer_type(tl.int64)) + k, row, mask=placed)
        tl.store(place_of_id.to(tl.pointer_type(tl.int64)), row, mask=fits & placed)
    else:
        tl.store(rows.to(tl.pointer_type(tl.int32)) + k, row.to(tl.int32), mask=placed)
        tl.store(place_of_id.to(tl.pointer_type(tl.int32)), row.to(tl.int32), mask=fits & placed)
    tl.store(positions.to(tl.pointer_type(tl.int32)) + k, i.to(tl.int32), mask=placed)


@triton.jit(do_not_specialize=["lengths", "ids", "words", "room", "rank", "blocks", "asked"])
def unpack(lengths, ids, words, room, rank, blocks, asked, WIDE_ROWS: tl.constexpr):
    """Write the ids that have come with the headers of the other ranks behind each other.

    lengths: address of the word of the first header that says how many its rank wants. ids: of what has come of them,
    ``[room]``; those of the next rank ``words`` int64 further. asked: of room for all that fit.
    """
    ID_TYPE: tl.constexpr = tl.int64 if WIDE_ROWS else tl.int32
    other = tl.program_id(0) // blocks
    i = (tl.program_id(0) % blocks) * TILE + tl.arange(0, TILE)
    begin = tl.zeros([], tl.int64)
    for r in range(0, other):
        count = tl.load(lengths.to(tl.pointer_type(tl.int64)) + r * words)
        begin += tl.where(r == rank, 0, tl.minimum(count, room))
    count = tl.minimum(tl.load(lengths.to(tl.pointer_type(tl.int64)) + other * words), room)
    mask = (i < count) & (other != rank)
    source = (ids + 8 * words * other).to(tl.pointer_type(ID_TYPE))
    tl.store(asked.to(tl.pointer_type(ID_TYPE)) + begin + i, tl.load(source + i, mask=mask, other=0), mask=mask)
