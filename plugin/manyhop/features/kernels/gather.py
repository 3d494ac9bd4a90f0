"""Gathers of rows of many tensors in one launch, and the lookup of hot rows.

A program copies a tile of words that are consecutive in the output, not a number of rows: rows of any length fill all
lanes.
"""

import triton
import triton.language as tl

TILE = tl.constexpr(1024)  # ids of a program


@triton.jit(do_not_specialize=["groups", "index", "count", "num_rows", "slots"])
def find_slots(groups, index, count, num_rows, slots):
    """Write the place in the cache of each row, -1 for those that are not in it, or in no table of ``num_rows``.

    groups: as for ``hot_slot``. index, slots: addresses of ``[count] int64``.
    """
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < count
    row = tl.load(index.to(tl.pointer_type(tl.int64)) + i, mask=inside, other=0)
    slot = hot_slot(groups, row, inside & (row >= 0) & (row < num_rows))
    tl.store(slots.to(tl.pointer_type(tl.int64)) + i, slot, mask=inside)


@triton.jit
def hot_slot(groups, row, asked):
    """Return the place in the cache of each row, -1 for those that are not in it.

    groups: address of the groups of a ``manyhop.features.HotRows``. row: int64. asked: which to look for.
    """
    group = groups.to(tl.pointer_type(tl.int64)) + (row >> 6) * 2
    bits = tl.load(group, mask=asked, other=0)
    before = tl.load(group + 1, mask=asked, other=0)
    bit = row & 63
    below = bits & ((tl.full([1], 1, tl.int64) << bit) - 1)
    return tl.where(((bits >> bit) & 1) != 0, before + _count_bits(below), -1)


@triton.jit
def _count_bits(x):
    """Return how many bits of int64 are set."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (x * 0x0101010101010101) >> 56


COLUMNS = tl.constexpr(9)  # of a source: see manyhop.features.gather_gpu._rows
FIELDS = tl.constexpr(5)  # of a request: addresses of ids, of their order and of the output, how many, first program
_RUN = tl.constexpr(64)  # requests for the same row that one read answers at most


@triton.jit(do_not_specialize=["table", "calls", "flag"])
def gather_rows(
    table, calls, flag,
    NUM: tl.constexpr, MIXED: tl.constexpr, CHECK: tl.constexpr, HOT: tl.constexpr, SORTED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Copy the rows of ``NUM`` requests.

    table: address of ``[NUM, COLUMNS] int64``. calls: ``NUM * FIELDS`` integers. flag: address of an int32, which gets
    the number of a request with a bad id, plus 1 (CHECK). MIXED: words are not all of 16 bytes. HOT: some rows lie in a
    cache. SORTED: ids are in ascending order, and row ``r`` goes to place ``order[r]`` of the output.
    """
    program = tl.program_id(0).to(tl.int64)
    request = program * 0
    index, order, out, count, first = calls[0], calls[1], calls[2], calls[3], calls[4]
    for k in tl.static_range(1, NUM):
        here = program >= calls[FIELDS * k + 4]
        request = tl.where(here, k, request)
        index = tl.where(here, calls[FIELDS * k], index)
        if SORTED:
            order = tl.where(here, calls[FIELDS * k + 1], order)
        out = tl.where(here, calls[FIELDS * k + 2], out)
        count = tl.where(here, calls[FIELDS * k + 3], count)
        first = tl.where(here, calls[FIELDS * k + 4], first)
    entry = table.to(tl.pointer_type(tl.int64)) + request * COLUMNS
    tile = program - first
    if MIXED:
        size = tl.load(entry + 4)
        if size == 16:
            _copy(entry, index, order, out, count, tile, flag, request, tl.int64, 2, CHECK, HOT, SORTED, TILE)
        elif size == 8:
            _copy(entry, index, order, out, count, tile, flag, request, tl.int64, 1, CHECK, HOT, SORTED, 2 * TILE)
        elif size == 4:
            _copy(entry, index, order, out, count, tile, flag, request, tl.int32, 1, CHECK, HOT, SORTED, 2 * TILE)
        elif size == 2:
            _copy(entry, index, order, out, count, tile, flag, request, tl.int16, 1, CHECK, HOT, SORTED, 2 * TILE)
        else:
            _copy(entry, index, order, out, count, tile, flag, request, tl.int8, 1, CHECK, HOT, SORTED, 2 * TILE)
    else:
        _copy(entry, index, order, out, count, tile, flag, request, tl.int64, 2, CHECK, HOT, SORTED, TILE)


@triton.jit
def _copy(
    entry, index, order, out, count, tile, flag, request,
    WORD: tl.constexpr, LANES: tl.constexpr, CHECK: tl.constexpr, HOT: tl.constexpr,
    SORTED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copy one tile of words of ``LANES`` times ``WORD``."""
    SIZE: tl.constexpr = LANES * WORD.primitive_bitwidth // 8
    source = tl.load(entry)
    stride = tl.load(entry + 1)
    num_rows = tl.load(entry + 2)
    words = tl.load(entry + 3)
    wide = tl.load(entry + 5)

    start = tile * TILE
    r, column, inside = rows_of_tile(start, count, words, TILE)
    row = load_id(index, r, wide, inside)
    known = inside
    if CHECK:
        known = inside & (row >= 0) & (row < num_rows)
        tl.store(
            flag.to(tl.pointer_type(tl.int32)) + tl.zeros([TILE], tl.int32),
            (request + 1).to(tl.int32) + tl.zeros([TILE], tl.int32),
            mask=inside & ~known,
        )
    place = source + row * stride
    if HOT:
        groups = tl.load(entry + 6)
        slot = hot_slot(groups, row, known & (groups != 0))
        hit = slot >= 0
        place = tl.where(hit, tl.load(entry + 7) + slot * words * SIZE, place)
        if groups != 0:
            begins = (inside & (column == 0)).to(tl.int64)
            counts = tl.load(entry + 8).to(tl.pointer_type(tl.int64))
            tl.atomic_add(counts, tl.sum(begins, 0), sem="relaxed")
            tl.atomic_add(counts + 1, tl.sum(tl.where(hit, begins, 0), 0), sem="relaxed")
    place += column * SIZE
    if SORTED:
        order = order.to(tl.pointer_type(tl.int64))
        leads = inside & (((r % _RUN) == 0) | (load_id(index, r - 1, wide, inside & (r > 0)) != row))
        value = load_words(place, known & leads, WORD, LANES)
        asks, step = leads, tl.full([], 0, tl.int64)
        going = tl.full([], 1, tl.int32)
        while going > 0:
            target = tl.load(order + r + step, mask=asks, other=0) * words + column
            store_words(out + target * SIZE, value, asks, WORD, LANES)
            step += 1
            asks = asks & (((r + step) % _RUN) != 0) & (r + step < count)
            asks = asks & (load_id(index, r + step, wide, asks) == row)
            going = tl.max(asks.to(tl.int32), 0)
    else:
        value = load_words(place, known, WORD, LANES)
        store_words(out + (start + tl.arange(0, TILE)) * SIZE, value, inside, WORD, LANES)


@triton.jit
def rows_of_tile(start, count, words, TILE: tl.constexpr):
    """Return the row, and the word in it, of each word of a tile that begins with word ``start``; and whether there is
    one.
    """
    first = start // words
    w = (start - first * words).to(tl.int32) + tl.arange(0, TILE)  # words from the beginning of the first row
    r = w // words.to(tl.int32)
    column = w - r * words.to(tl.int32)
    r = first + r
    return r, column.to(tl.int64), r < count


@triton.jit
def load_id(index, r, wide, mask):
    """Return row numbers, of 4 or 8 bytes, as int64."""
    narrow_id = tl.load(index.to(tl.pointer_type(tl.int32)) + r, mask=mask & (wide == 0), other=0)
    wide_id = tl.load(index.to(tl.pointer_type(tl.int64)) + r, mask=mask & (wide != 0), other=0)
    return tl.where(wide != 0, wide_id, narrow_id.to(tl.int64))


@triton.jit
def load_words(address, mask, WORD: tl.constexpr, LANES: tl.constexpr):
    if LANES == 1:
        return tl.load(address.to(tl.pointer_type(WORD)), mask=mask)
    else:
        lane = tl.arange(0, LANES)[None, :]
        return tl.load(tl.multiple_of(address.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16]), mask=mask[:, None])


@triton.jit
def store_words(address, value, mask, WORD: tl.constexpr, LANES: tl.constexpr):
    if LANES == 1:
        tl.store(address.to(tl.pointer_type(WORD)), value, mask=mask)
    else:
        lane = tl.arange(0, LANES)[None, :]
        tl.store(tl.multiple_of(address.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16]), value, mask=mask[:, None])
