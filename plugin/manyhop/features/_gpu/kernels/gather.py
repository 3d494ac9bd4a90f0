"""The copy loop of the gather: rows of any tensors, one launch for all of them.

What a program copies is a tile of words, consecutive in the output, not a number of rows: rows of any length fill all
lanes.
"""

import triton
import triton.language as tl

from manyhop.features._gpu.kernels.hot import hot_slot

COLUMNS = tl.constexpr(9)  # of a source: see manyhop.features._gpu.gather._entry
FIELDS = tl.constexpr(4)  # of a request: address of its ids, how many, address of its output, first program


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

    table: address of ``[NUM, COLUMNS] int64``. calls: ``NUM * FIELDS`` integers. flag: address of an int32, which gets
    the number of a request with a bad id, plus 1 (CHECK). MIXED: words are not all of 16 bytes. HOT: some rows lie in a
    cache.
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
            _copy(entry, index, count, out, program, flag, request, tl.int64, 1, CHECK, HOT, 2 * TILE)
        elif size == 4:
            _copy(entry, index, count, out, program, flag, request, tl.int32, 1, CHECK, HOT, 4 * TILE)
        elif size == 2:
            _copy(entry, index, count, out, program, flag, request, tl.int16, 1, CHECK, HOT, 4 * TILE)
        else:
            _copy(entry, index, count, out, program, flag, request, tl.int8, 1, CHECK, HOT, 4 * TILE)
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
    target = out + (start + tl.arange(0, TILE)) * SIZE
    if LANES == 1:
        value = tl.load(place.to(tl.pointer_type(WORD)), mask=known)
        tl.store(target.to(tl.pointer_type(WORD)), value, mask=inside)
    else:
        lane = tl.arange(0, LANES)[None, :]
        a = tl.multiple_of(place.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16])
        b = tl.multiple_of(target.to(tl.pointer_type(WORD))[:, None] + lane, [1, 16])
        value = tl.load(a, mask=known[:, None])
        tl.store(b, value, mask=inside[:, None])
