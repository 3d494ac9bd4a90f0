"""The kernels that find out what the hardware can do: random reads, and reads of a neighbour's memory."""

import triton
import triton.language as tl


@triton.jit
def random_reads(table, out, mask, B: tl.constexpr, R: tl.constexpr):
    """R independent reads of 8 bytes per thread, at positions in [0, mask] that nothing can foresee."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    total = tl.zeros([B], tl.int64)
    for r in tl.static_range(R):
        x = i * R + r
        x = (x ^ (x >> 15)) * 0x2C1B3C6D
        x = (x ^ (x >> 12)) * 0x297A2D39
        x = x ^ (x >> 15)
        total += tl.load(table + (x & mask))
    tl.store(out + i, total)


@triton.jit(do_not_specialize=["source", "out", "n"])
def copy_words(source, out, n, B: tl.constexpr):
    """n words of 8 bytes, in order, from one address to another: triton takes no tensors of other GPUs."""
    a, b = source.to(tl.pointer_type(tl.int64)), out.to(tl.pointer_type(tl.int64))
    for t in range(tl.program_id(0), tl.cdiv(n, B), tl.num_programs(0)):
        i = t.to(tl.int64) * B + tl.arange(0, B)
        tl.store(b + i, tl.load(a + i, mask=i < n, other=0), mask=i < n)
