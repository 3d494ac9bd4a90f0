"""Kernels at the beginning of a graph: read addresses, copy the batch."""

import triton
import triton.language as tl

FIELDS = tl.constexpr(3)  # of a tensor: its address, bytes, first program
TILE = tl.constexpr(1 << 14)  # bytes of a program
_BYTES = tl.constexpr(1 << 10)  # of a step, where words are single bytes


@triton.jit
def fetch_addresses(ring, count, addresses, SLOTS: tl.constexpr, WIDTH: tl.constexpr):
    """Copy the addresses of the next replay from the memory of the host, in a single program.

    ring: address of ``[SLOTS, WIDTH] int64`` in that memory. count: address of the number of replays so far, which
    grows by 1. addresses: address of ``[WIDTH] int64``.
    """
    replay = tl.atomic_add(count.to(tl.pointer_type(tl.int64)), 1)
    at = tl.arange(0, WIDTH)
    row = ring.to(tl.pointer_type(tl.int64)) + (replay % SLOTS) * WIDTH
    tl.store(addresses.to(tl.pointer_type(tl.int64)) + at, tl.load(row + at))


@triton.jit
def copy_tensors(sources, targets, NUM: tl.constexpr):
    """Copy ``NUM`` tensors. sources: address of their addresses. targets: ``NUM * FIELDS`` integers."""
    program = tl.program_id(0).to(tl.int64)
    number = tl.zeros([], tl.int64)
    target, size, first = targets[0], targets[1], targets[2]
    for k in tl.static_range(1, NUM):
        here = program >= targets[FIELDS * k + 2]
        number = tl.where(here, k, number)
        target = tl.where(here, targets[FIELDS * k], target)
        size = tl.where(here, targets[FIELDS * k + 1], size)
        first = tl.where(here, targets[FIELDS * k + 2], first)
    source = tl.load(sources.to(tl.pointer_type(tl.int64)) + number)
    begin = (program - first) * TILE
    bits = source | target | size
    if bits & 15 == 0:
        at = begin + 16 * tl.arange(0, TILE // 16).to(tl.int64)
        lane, inside = tl.arange(0, 2)[None, :], (at < size)[:, None]
        read = tl.multiple_of((source + at).to(tl.pointer_type(tl.int64))[:, None] + lane, [1, 16])
        write = tl.multiple_of((target + at).to(tl.pointer_type(tl.int64))[:, None] + lane, [1, 16])
        tl.store(write, tl.load(read, mask=inside), mask=inside)
    elif bits & 7 == 0:
        at = begin + 8 * tl.arange(0, TILE // 8).to(tl.int64)
        value = tl.load((source + at).to(tl.pointer_type(tl.int64)), mask=at < size)
        tl.store((target + at).to(tl.pointer_type(tl.int64)), value, mask=at < size)
    else:
        for step in range(0, TILE, _BYTES):
            at = begin + step + tl.arange(0, _BYTES).to(tl.int64)
            value = tl.load((source + at).to(tl.pointer_type(tl.int8)), mask=at < size)
            tl.store((target + at).to(tl.pointer_type(tl.int8)), value, mask=at < size)
