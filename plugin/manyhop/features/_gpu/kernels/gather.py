"""The copy loop of the gather: rows of any tensors, one launch for all of them.

What a program copies is a tile of words, consecutive in the output, not a number of rows: rows of any length fill all
lanes.
"""

import triton
import triton.language as tl

COLUMNS = tl.constexpr(8)  # of the table of sources, see manyhop.features._gpu._table
FIELDS = tl.constexpr(
    4
)  # of a request in ``calls``: address of its ids, their number, address of its output, its first program


@triton.jit(do_not_specialize=["table", "calls", "flag"])
def gather_rows(
    table,
    calls,
    flag,
    NUM: tl.constexpr,
    MIXED: tl.constexpr,
    CHECK: tl.constexpr,
    HOT: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy the rows of ``NUM`` requests.

    table: address of ``[NUM, COLUMNS] int64``. calls: tuple of ``NUM * FIELDS`` integers. flag: address of an int32, set
    to the number of a request with a bad id, plus 1 (CHECK). MIXED: words are not all of 16 bytes. HOT: some rows lie in
    a cache.
    """
    program = tl.program_id(0).to(tl.int64)
    request = program * 0
    index, count, out, first = calls[0], calls[1], calls[2], calls[3]
    for k in tl.static_range(1, NUM):
        here = program >= calls[FIELDS * k + 3]
        request = tl.where(here, k, request)
        index = tl.where(here, calls[FIELDS * k], index)
        count = tl.where(here, calls[FIELDS * k + 1], count)
        out = tl.where(here, calls[FIELDS * k + 2], out)
        first = tl.where(here, calls[FIELDS * k + 3], first)
    entry = table.to(tl.pointer_type(tl.int64)) + request * COLUMNS
    program -= first
    if MIXED:
        size = tl.load(entry + 4)
        if size == 16:
            _copy(entry, index, count, out, program, flag, request, tl.int64, 2, CHECK, HOT, TILE)
        elif size == 8:
            _copy(entry, index, count, out, program, flag, request, tl.int64, 1, CHECK, HOT, TILE)
        elif size == 4:
            _copy(entry, index, count, out, program, flag, request, tl.int32, 1, CHECK, HOT, TILE)
        elif size == 2:
            _copy(entry, index, count, out, program, flag, request, tl.int16, 1, CHECK, HOT, TILE)
        else:
            _copy(entry, index, count, out, program, flag, request, tl.int8, 1, CHECK, HOT, TILE)
    else:
        _copy(entry, index, count, out, program, flag, request, tl.int64, 2, CHECK, HOT, TILE)


@triton.jit
def _copy(
    entry,
    index,
    count,
    out,
    tile,
    flag,
    request,
    WORD: tl.constexpr,
    LANES: tl.constexpr,
    CHECK: tl.constexpr,
    HOT: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy one tile of words of ``LANES`` times ``WORD``."""
    SIZE: tl.constexpr = LANES * WORD.primitive_bitwidth // 8
    source = tl.load(entry)
    stride = tl.load(entry + 1)
    num_rows = tl.load(entry + 2)
    words = tl.load(entry + 3)
    wide = tl.load(entry + 5)

    start = tile * TILE
    first_row = start // words
    w = (start - first_row * words).to(tl.int32) + tl.arange(0, TILE)  # words from the beginning of the first row
    r = w // words.to(tl.int32)
    column = (w - r * words.to(tl.int32)).to(tl.int64)
    r = first_row + r
    inside = r < count
    narrow_id = tl.load(index.to(tl.pointer_type(tl.int32)) + r, mask=inside & (wide == 0), other=0)
    wide_id = tl.load(index.to(tl.pointer_type(tl.int64)) + r, mask=inside & (wide != 0), other=0)
    row = tl.where(wide != 0, wide_id, narrow_id.to(tl.int64))
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
        place = _hot_place(entry, row, place, words * SIZE, known)
    place += column * SIZE
    target = out + (start + tl.arange(0, TILE)) * SIZE
    if LANES == 1:
        value = tl.load(place.to(tl.pointer_type(WORD)), mask=known, eviction_policy="evict_first")
        tl.store(target.to(tl.pointer_type(WORD)), value, mask=inside)
    else:
        lane = tl.arange(0, LANES)[None, :]
        a = tl.multiple_of(place.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16])
        b = tl.multiple_of(target.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16])
        value = tl.load(a, mask=known[:, None], eviction_policy="evict_first")
        tl.store(b, value, mask=inside[:, None])


@triton.jit
def _hot_place(entry, row, place, row_bytes, known):
    """Where rows lie: in the cache, or at ``place``."""
    hot_index = tl.load(entry + 6)
    hot_rows = tl.load(entry + 7)
    cached = known & (hot_index != 0)
    group = hot_index.to(tl.pointer_type(tl.int64)) + (row >> 6) * 2
    bits = tl.load(group, mask=cached, other=0)
    before = tl.load(group + 1, mask=cached, other=0)
    bit = row & 63
    one = tl.full([1], 1, tl.int64)
    below = bits & ((one << bit) - 1)
    hit = ((bits >> bit) & 1) != 0
    return tl.where(hit, hot_rows + (before + _popcount(below)) * row_bytes, place)


@triton.jit
def _popcount(x):
    """Set bits of int64, the sign bit apart."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (x * 0x0101010101010101) >> 56
