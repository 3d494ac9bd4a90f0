"""Which rows are in a cache, and where."""

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
    """The place in the cache of each row, -1 for those that are not in it.

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
    """How many bits of int64 are set."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (x * 0x0101010101010101) >> 56
