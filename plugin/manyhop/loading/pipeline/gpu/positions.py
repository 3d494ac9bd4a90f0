"""Lookup of the items of batches on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhop.errors import InputError
from manyhop.loading.pipeline.plan import BatchPlan, network
from manyhop.sampling.gpu.kernels.primitives import draw, mix
from manyhop.system.triton_launch import Kernel

MOST: Final = 32
"""Largest number of batches per launch."""

MOST_TABLES: Final = 3
"""Largest number of tables per launch."""

_TILE = 128


class GPUPositions:
    """Looks up the items of batches on a GPU, multiple batches at once.

    Args:
        device: the GPU; a CPU if triton interprets its kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(
        self, plan: BatchPlan, epoch: int, batches: Sequence[int], tables: Sequence[Tensor] = ()
    ) -> tuple[list[Tensor], list[int]]:
        """Return ``plan.many_indices(epoch, batches)`` on the device, enqueued on the current stream.

        Args:
            batches: their numbers.
            tables: up to ``MOST_TABLES`` of ``[num_items] int64``, contiguous, on the device.

        Returns:
            ``[n] int64``: the positions, batch by batch, then the entries of each table at these positions; and the
            number of positions of each batch.

        Raises:
            InputError: no batches, unknown ones, or too many tables.
        """
        if len(batches) > MOST:
            parts = [self(plan, epoch, batches[i : i + MOST], tables) for i in range(0, len(batches), MOST)]
            columns = zip(*(rows for rows, _ in parts), strict=True)
            return [torch.cat(column) for column in columns], [size for _, sizes in parts for size in sizes]
        if not batches or not 0 <= min(batches) <= max(batches) < len(plan):
            raise InputError(f"Expected batches, each from 0 to {len(plan) - 1}, got {list(batches)}.")
        if len(tables) > MOST_TABLES:
            raise InputError(f"Expected at most {MOST_TABLES} tables to look up, got {len(tables)}.")
        size, n, device, num = plan.batch_size, plan.num_items, self._device, len(tables)
        found = torch.empty((num + 1, len(batches) * size), dtype=torch.int64, device=device)
        tiles = -(-size // _TILE)
        begin, pitch = found.data_ptr(), 8 * found.shape[1]
        _kernel(num, plan.shuffle)(
            device,
            tiles * len(batches),
            tuple([begin + pitch * k for k in range(MOST_TABLES + 1)]),
            (*[table.data_ptr() for table in tables], *[0] * (MOST_TABLES - num)),
            (*batches, *[0] * (MOST - len(batches))),
            tiles,
            size,
            n,
            *(network(plan, epoch) if plan.shuffle else (0, 0, 0, 0, 0)),
        )
        sizes = [min(size, n - batch * size) for batch in batches]
        rows = found.unbind()
        if min(sizes) == size:
            return list(rows), sizes
        return [torch.cat([row[k * size : k * size + m] for k, m in enumerate(sizes)]) for row in rows], sizes


@functools.cache
def _kernel(num_tables: int, shuffle: bool) -> Kernel:
    constants = (MOST, num_tables, shuffle, _TILE)
    return Kernel(look_up, constants, outs=MOST_TABLES + 1, tables=MOST_TABLES, batches=MOST)


@triton.jit
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
    batches: their numbers. tiles: programs of a batch. size: items of a batch; the last one of the epoch may have
    fewer. n: items of the epoch. The other arguments define the permutation.
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
    """Run all rounds of the network, an even number."""
    one = tl.full([], 1, tl.uint64)
    low_mask, high_mask = (one << low) - 1, (one << high) - 1
    turn = rounds * 0
    while turn < rounds:
        x = x ^ (mix(draw(key, turn) + (x >> low)) & low_mask)
        x = x ^ ((mix(draw(key, turn + 1) + (x & low_mask)) & high_mask) << low)
        turn += 2
    return x
