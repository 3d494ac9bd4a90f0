"""Distinct rows among sorted ids, the ranks that own them, and the order of received ids."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["ids", "count", "counts"])
def count_rows(ids, count, counts, WIDE_IDS: tl.constexpr, BLOCK: tl.constexpr):
    """Count the rows that begin in each ``BLOCK`` of ascending ids.

    ids: address of ``[count]`` int64 (WIDE_IDS) or int32. counts: of ``[ceil(count / BLOCK)] int64``.
    """
    program = tl.program_id(0).to(tl.int64)
    i = program * BLOCK + tl.arange(0, BLOCK)
    leads = _leads(ids, i, count, WIDE_IDS)
    tl.store(counts.to(tl.pointer_type(tl.int64)) + program, tl.sum(leads, 0))


@triton.jit(do_not_specialize=["ids", "count", "counts", "before", "rows"])
def number_rows(ids, count, counts, before, rows, WIDE_IDS: tl.constexpr, BLOCK: tl.constexpr):
    """Write how many rows begin before each position, and each row once.

    counts: what ``count_rows`` has written. before: address of ``[count + 1] int64``. rows: of ``[count]``, of which as
    many are written as there are rows.
    """
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    base = tl.zeros([], tl.int64)
    for begin in range(0, program, BLOCK):
        other = begin + lane
        base += tl.sum(tl.load(counts.to(tl.pointer_type(tl.int64)) + other, mask=other < program, other=0), 0)
    i = program * BLOCK + lane
    leads = _leads(ids, i, count, WIDE_IDS)
    number = base + tl.cumsum(leads, 0)
    target = before.to(tl.pointer_type(tl.int64)) + i
    tl.store(target + 1, number, mask=i < count)
    tl.store(target, tl.zeros([BLOCK], tl.int64), mask=i == 0)
    row = tl.load(_ids_at(ids, WIDE_IDS) + i, mask=i < count, other=0)
    tl.store(_ids_at(rows, WIDE_IDS) + number - 1, row, mask=leads != 0)


@triton.jit(do_not_specialize=["ids", "count", "before", "bounds", "ranks", "bounds_of_rank", "total", "at", "routes"])
def find_routes(
    ids, count, before, bounds, ranks, bounds_of_rank, total, at, routes, WIDE_IDS: tl.constexpr, LANES: tl.constexpr
):
    """Write how many gradients, and how many rows, come before each bound.

    before: what ``number_rows`` has written. bounds: address of ``[ranks, bounds_of_rank]``, like ids: rows. at: of
    int64 of this shape. routes: of ``[ranks, bounds_of_rank + 1] int64``, of which the last column gets ``total``.
    """
    i = tl.arange(0, LANES).to(tl.int64)
    mask = i < ranks * bounds_of_rank
    rank = i // bounds_of_rank
    zeros = tl.zeros([LANES], tl.int64)
    row = tl.load(_ids_at(bounds, WIDE_IDS) + i, mask=mask, other=0)
    position = _search(_ids_at(ids, WIDE_IDS), row, zeros, zeros + tl.where(mask, count, 0), zeros)
    number = tl.load(before.to(tl.pointer_type(tl.int64)) + position, mask=mask, other=0)
    tl.store(at.to(tl.pointer_type(tl.int64)) + i, position, mask=mask)
    target = routes.to(tl.pointer_type(tl.int64)) + i + rank
    tl.store(target, number, mask=mask)
    tl.store(target + 1, zeros + total, mask=mask & (i % bounds_of_rank == bounds_of_rank - 1))


@triton.jit(do_not_specialize=["ids", "rows", "order"])
def merge_runs(ids, rows, order, begins, WIDE_IDS: tl.constexpr, RUNS: tl.constexpr, BLOCK: tl.constexpr):
    """Sort ids that consist of ascending runs; equal ones keep their order.

    ids, rows: addresses of ids before and after. order: of int64: the position of each before. begins: where each run
    begins, and where the last one ends.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < begins[RUNS]
    id_of = _ids_at(ids, WIDE_IDS)
    row = tl.load(id_of + i, mask=inside, other=0)
    place = tl.zeros([BLOCK], tl.int64)
    for k in tl.static_range(RUNS):
        begin, end = begins[k], begins[k + 1]
        own = (i >= begin) & (i < end)
        low = tl.zeros([BLOCK], tl.int64) + begin
        high = tl.where(own | (inside == 0), low, low - begin + end)
        low = _search(id_of, row, low, high, (i >= end).to(tl.int64))
        place += tl.where(own, i, low) - begin
    tl.store(_ids_at(rows, WIDE_IDS) + place, row, mask=inside)
    tl.store(order.to(tl.pointer_type(tl.int64)) + place, i, mask=inside)


@triton.jit
def _search(id_of, row, low, high, with_equal):
    """Return the position in ``[low, high)`` of the first id that is not below the row, or above it: with_equal 1."""
    going = tl.max((low < high).to(tl.int32), 0)
    while going > 0:
        middle = (low + high) // 2
        active = low < high
        found = tl.load(id_of + middle, mask=active, other=0)
        before = active & ((found < row) | ((found == row) & (with_equal != 0)))
        low = tl.where(before, middle + 1, low)
        high = tl.where(active & (before == 0), middle, high)
        going = tl.max((low < high).to(tl.int32), 0)
    return low


@triton.jit
def _leads(ids, i, count, WIDE_IDS: tl.constexpr):
    """Return 1 where a row begins, as int64."""
    id_of = _ids_at(ids, WIDE_IDS)
    row = tl.load(id_of + i, mask=i < count, other=0)
    last = tl.load(id_of + i - 1, mask=(i > 0) & (i < count), other=0)
    return ((i < count) & ((i == 0) | (row != last))).to(tl.int64)


@triton.jit
def _ids_at(ids, WIDE_IDS: tl.constexpr):
    """Return the pointer to ids, int64 or int32."""
    return ids.to(tl.pointer_type(tl.int64 if WIDE_IDS else tl.int32))
