"""The kernel that copies a batch to where graphs read it: all tensors by one launch."""

import triton
import triton.language as tl

FIELDS = tl.constexpr(4)  # of a tensor: addresses of source and target, bytes, first program
TILE = tl.constexpr(1 << 14)  # bytes of a program
_BYTES = tl.constexpr(1 << 10)  # of a step, where words are single bytes


@triton.jit(do_not_specialize=["calls"])
def copy_tensors(calls, NUM: tl.constexpr):
    """Copy ``NUM`` tensors; ``calls``: ``NUM * FIELDS`` integers."""
    program = tl.program_id(0).to(tl.int64)
    source, target, size, first = calls[0], calls[1], calls[2], calls[3]
    for k in tl.static_range(1, NUM):
        here = program >= calls[FIELDS * k + 3]
        source = tl.where(here, calls[FIELDS * k], source)
        target = tl.where(here, calls[FIELDS * k + 1], target)
        size = tl.where(here, calls[FIELDS * k + 2], size)
        first = tl.where(here, calls[FIELDS * k + 3], first)
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
