"""The shuffle of an epoch, equal to ``manyhop.loading.pipeline.permute``."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives import draw, mix


@triton.jit(
    do_not_specialize=[
        "outs",
        "tables",
        "batches",
        "tiles",
        "size",
        "n",
        "key",
        "low_bits",
        "high_bits",
        "rounds",
        "swap",
    ]
)
def look_up(
    outs,
    tables,
    batches,
    tiles,
    size,
    n,
    key,
    low_bits,
    high_bits,
    rounds,
    swap,
    MOST: tl.constexpr,
    NUM: tl.constexpr,
    SHUFFLE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the items of up to ``MOST`` batches, and their entries in ``NUM`` tables.

    outs: addresses of ``[MOST, size] int64``: for the items, then for each table. tables: addresses of ``[n] int64``.
    batches: their numbers. tiles: programs of a batch. size: items of a batch,
    the last one of the epoch may have fewer. n: items of the epoch. The others name the permutation.
    """
    program = tl.program_id(0).to(tl.int64)
    k = program // tiles
    batch = batches[0]
    for j in tl.static_range(1, MOST):
        batch = tl.where(k == j, batches[j], batch)
    place = (program - k * tiles) * TILE + tl.arange(0, TILE)
    first = batch * size
    inside = (place < size) & (first + place < n)
    x = (first + tl.where(inside, place, 0)).to(tl.uint64)
    if SHUFFLE:
        bound = n.to(tl.uint64)
        key, low, high = key.to(tl.uint64), low_bits.to(tl.uint64), high_bits.to(tl.uint64)
        x = _pass(x, key, low, high, rounds)
        outside = x >= bound
        going = tl.max(outside.to(tl.int32), 0)
        while going > 0:
            x = tl.where(outside, _pass(x, key, low, high, rounds), x)
            outside = x >= bound
            going = tl.max(outside.to(tl.int32), 0)
        x = tl.where(x < 2, x ^ swap.to(tl.uint64), x)
    item, place = x.to(tl.int64), k * size + place
    tl.store(outs[0].to(tl.pointer_type(tl.int64)) + place, item, mask=inside)
    for j in tl.static_range(NUM):
        value = tl.load(tables[j].to(tl.pointer_type(tl.int64)) + item, mask=inside)
        tl.store(outs[j + 1].to(tl.pointer_type(tl.int64)) + place, value, mask=inside)


@triton.jit
def _pass(x, key, low, high, rounds):
    """All rounds of the network; there is an even number of them."""
    one = tl.full([], 1, tl.uint64)
    low_mask, high_mask = (one << low) - 1, (one << high) - 1
    turn = rounds * 0
    while turn < rounds:
        x = x ^ (mix(draw(key, turn) + (x >> low)) & low_mask)
        x = x ^ ((mix(draw(key, turn + 1) + (x & low_mask)) & high_mask) << low)
        turn += 2
    return x
