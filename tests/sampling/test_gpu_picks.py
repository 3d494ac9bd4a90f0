"""The random numbers of kernels, against those of the numpy reference, for keys and bounds of any size."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.sampling import random as reference
from manyhop.sampling.gpu.kernels import primitives

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="calls kernels on the CPU, which the interpreter does"
)

U64 = st.integers(0, 2**64 - 1)


@triton.jit
def numbers(key, x, n, out, B: tl.constexpr):
    """``out [7, B] int64``: what each function of the generator makes of a key, a number and a bound."""
    i = tl.arange(0, B)
    k = tl.load(key + i).to(tl.uint64)
    r = primitives.draw(k, i)
    entry, fraction = primitives.below_with_fraction(r, tl.load(n + i))
    tl.store(out + i, primitives.mix(k).to(tl.int64))
    tl.store(out + B + i, primitives.fold(k, tl.load(x + i)).to(tl.int64))
    tl.store(out + 2 * B + i, r.to(tl.int64))
    tl.store(out + 3 * B + i, primitives.below(r, tl.load(n + i)).to(tl.int64))
    tl.store(out + 4 * B + i, entry.to(tl.int64))
    tl.store(out + 5 * B + i, fraction.to(tl.int64))
    tl.store(out + 6 * B + i, primitives.unit(r).to(tl.int64, bitcast=True))


def signed(numbers: list[int]) -> torch.Tensor:
    """``[n] int64`` with the bits of the numbers' low 64 bits."""
    return torch.from_numpy(np.array([x & (2**64 - 1) for x in numbers], dtype=np.uint64).view(np.int64))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(U64, U64, st.integers(1, 2**32 - 1)), min_size=16, max_size=16))
def test_numbers(cases: list[tuple[int, int, int]]) -> None:
    key, x, n = (signed(list(column)) for column in zip(*cases, strict=True))
    out = torch.zeros(7, 16, dtype=torch.int64)
    numbers[(1,)](key, x, n, out, 16)
    keys = key.numpy().view(np.uint64)
    r = reference.draw(keys, np.arange(16))
    split = [reference.below_with_fraction(a, int(b)) for a, b in zip(np.asarray(r), n.tolist(), strict=True)]
    expected = [
        reference.mix(keys),
        reference.fold(keys, x.numpy()),
        r,
        reference.below(r, n.numpy()),
        [entry for entry, _ in split],
        [fraction for _, fraction in split],
        reference.unit(r).view(np.int64),
    ]
    for got, want in zip(out, expected, strict=True):
        assert np.array_equal(got.numpy().view(np.uint64), np.asarray(want).astype(np.uint64))
