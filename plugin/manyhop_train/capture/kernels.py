"""Kernels at the beginning and end of a graph: read arguments, copy the batch, copy the results."""

import triton
import triton.language as tl

FIELDS = tl.constexpr(4)  # of a tensor: number of its argument, its address, bytes, first program
TILE = tl.constexpr(1 << 14)  # bytes of a program
_BYTES = tl.constexpr(1 << 10)  # of a step, where words are single bytes


@triton.jit(do_not_specialize=["ring", "count", "arguments"])
def fetch_arguments(ring, count, arguments, SLOTS: tl.constexpr, WIDTH: tl.constexpr):
    """Copy the arguments of the next replay from the memory of the host; a single program does.

    ring: address of ``[SLOTS, WIDTH] int64`` in that memory. count: address of the number of replays so far, which
    grows by 1. arguments: address of ``[WIDTH] int64``.
    """
    replay = tl.atomic_add(count.to(tl.pointer_type(tl.int64)), 1)
    at = tl.arange(0, WIDTH)
    row = ring.to(tl.pointer_type(tl.int64)) + (replay % SLOTS) * WIDTH
    tl.store(arguments.to(tl.pointer_type(tl.int64)) + at, tl.load(row + at))


@triton.jit(do_not_specialize=["calls", "arguments"])
def copy_tensors(calls, arguments, NUM: tl.constexpr, OUT: tl.constexpr):
    """Copy ``NUM`` tensors between fixed addresses and addresses in arguments; 0: no copy.

    calls: ``NUM * FIELDS`` integers. arguments: address of ``int64``. OUT: copy to the arguments, not from them.
    """
    program = tl.program_id(0).to(tl.int64)
    number, fixed, size, first = calls[0], calls[1], calls[2], calls[3]
    for k in tl.static_range(1, NUM):
        here = program >= calls[FIELDS * k + 3]
        number = tl.where(here, calls[FIELDS * k], number)
        fixed = tl.where(here, calls[FIELDS * k + 1], fixed)
        size = tl.where(here, calls[FIELDS * k + 2], size)
        first = tl.where(here, calls[FIELDS * k + 3], first)
    given = tl.load(arguments.to(tl.pointer_type(tl.int64)) + number)
    source, target = (fixed, given) if OUT else (given, fixed)
    size = tl.where(given == 0, 0, size)
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
