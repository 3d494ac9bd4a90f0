"""Keys of batches, made where they are used."""

import triton
import triton.language as tl

from manyhop.sampling.gpu.kernels.primitives.random import fold, mix

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def batch_key(key, use: tl.constexpr):
    """The key of a use in a batch; at ``key``: seed, epoch and batch, the low 64 bits of each as int64."""
    made = mix(tl.full([], (use + 1) * GAMMA % (1 << 64), tl.uint64))
    made = fold(made, tl.load(key))
    made = fold(made, tl.load(key + 1))
    return fold(made, tl.load(key + 2))
