"""The triton functions that pick entries of columns, against the functions of the numpy reference."""

import gpu_pick_kernels as kernels
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import next_power_of_2

from manyhop.sampling import random as reference
from manyhop.sampling.reference import picks as reference_picks

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="calls kernels on the CPU, which the interpreter does"
)

U64 = st.integers(0, 2**64 - 1)
WIDTHS = (1, 2, 5, 16, 40)
HUGE = 2**31 + 12345


def signed(numbers: list[int]) -> torch.Tensor:
    """``[n] int64`` with the bits of the numbers' low 64 bits."""
    return torch.from_numpy(np.array([x & (2**64 - 1) for x in numbers], dtype=np.uint64).view(np.int64))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(U64, U64, st.integers(1, 2**32 - 1)), min_size=16, max_size=16))
def test_numbers(cases: list[tuple[int, int, int]]) -> None:
    key, x, n = (signed(list(column)) for column in zip(*cases, strict=True))
    out = torch.zeros(7, 16, dtype=torch.int64)
    kernels.numbers[(1,)](key, x, n, out, 16)
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


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, list[int], list[int], list[int]]:
    """A width, and items: keys, lengths of columns, fanouts up to the width (each item has its own)."""
    width = draw(st.sampled_from(WIDTHS))
    length = st.one_of(st.integers(0, 2 * width + 2), st.integers(0, 1000), st.sampled_from([HUGE, 2**32 - 1]))
    items = draw(st.lists(st.tuples(U64, length, st.integers(0, width)), min_size=1, max_size=24))
    keys, lengths, fanouts = (list(column) for column in zip(*items, strict=True))
    return width, keys, lengths, fanouts


def expected(mode: str, key: int, d: int, k: int) -> list[int]:
    if k == 0:
        return []
    if mode == "last":
        return list(range(max(d - k, 0), d))
    return reference_picks.uniform(np.uint64(key), d, k, replace=mode == "replace").tolist()


@pytest.mark.parametrize("mode", ["uniform", "replace", "last"])
@settings(max_examples=60, deadline=None)
@given(case=columns())
def test_unweighted_picks(mode: str, case: tuple[int, list[int], list[int], list[int]]) -> None:
    width, keys, lengths, fanouts = case
    n, tile, room = len(keys), 8, next_power_of_2(width)
    out = torch.full((n, room), -1, dtype=torch.int64)
    taken = torch.full((n,), -1, dtype=torch.int32)
    k = torch.tensor(fanouts, dtype=torch.int32)
    kernels.unweighted[(-(-n // tile),)](signed(keys), torch.tensor(lengths), k, out, taken, n, mode, width, room, tile)
    for i, (key, d, fanout) in enumerate(zip(keys, lengths, fanouts, strict=True)):
        want = expected(mode, key, d, fanout)
        assert out[i, : int(taken[i])].tolist() == want


def test_the_hash_table_keeps_the_smallest_position_of_a_key() -> None:
    """Whatever the order in which lanes come: these come with descending positions."""
    key = torch.randint(0, 20, (128,), generator=torch.Generator().manual_seed(0))
    position = torch.arange(127, -1, -1)
    table, out, failed = torch.zeros(65, dtype=torch.int64), torch.zeros(128, dtype=torch.int64), torch.zeros(1)
    kernels.inserted[(1,)](table, 63, key, position, out, failed.int(), 128, 20, 128)
    smallest = torch.full((20,), 128).scatter_reduce(0, key, position, "amin")
    assert torch.equal(out, smallest[key])
