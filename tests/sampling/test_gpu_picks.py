"""The triton functions that pick entries of columns, against the functions of the numpy reference."""

import gpu_pick_kernels as kernels
import numpy as np
import pytest
import torch
from cpu_cases import weights
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import next_power_of_2

from manyhop.sampling import random as reference
from manyhop.sampling.reference import picks as reference_picks
from manyhop.sampling.reference.picks import alias_table

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


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("probes", [2, 8])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_limits_in_time(probes: int, window: bool, data: st.DataObject) -> None:
    moment = st.one_of(st.integers(-5, 5), st.sampled_from([-(2**63), 2**63 - 1]))
    column = st.lists(moment, max_size=40).map(sorted)
    items = data.draw(st.lists(st.tuples(column, moment, moment), min_size=1, max_size=12))
    n, tile = len(items), 8
    times = [column for column, _, _ in items]
    d = torch.tensor([len(column) for column in times])
    low, high = torch.tensor([item[1] for item in items]), torch.tensor([item[2] for item in items])
    table = torch.tensor([t for column in times for t in column] + [0])
    first, length = torch.full((n,), -1), torch.full((n,), -1)
    grid = (-(-n // tile),)
    kernels.cut[grid](table, d.cumsum(0) - d, d, low, high, first, length, n, window, probes, tile)
    for i, (column, earliest, latest) in enumerate(items):
        begin, end = reference_picks.temporal(np.array(column, np.int64), earliest if window else None, latest)
        assert int(length[i]) == end - begin
        assert int(first[i]) == begin or begin == end


@st.composite
def weighted_columns(draw: st.DrawFn) -> list[float]:
    """Long ones with many zeros, or short ones, some with weights so large that what is left must be scanned."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        return (rng.random(100) * (rng.random(100) < 0.3)).tolist()
    return weights(rng, draw(st.integers(0, 20))).tolist()


@pytest.mark.parametrize("replace", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_weighted_picks(replace: bool, data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([2, 5, 16]))
    items = data.draw(
        st.lists(st.tuples(U64, weighted_columns(), st.integers(0, width)), min_size=1, max_size=8), label="items"
    )
    n, tile, room = len(items), 8, next_power_of_2(width)
    tables = [alias_table(column) for _, column, _ in items]
    weight = torch.tensor([w for _, column, _ in items for w in column] + [0.0], dtype=torch.float64)
    alias = torch.from_numpy(np.concatenate([*tables, np.zeros(1, np.int64)]))
    d = torch.tensor([len(column) for _, column, _ in items])
    p = torch.tensor([int(np.count_nonzero(column)) for _, column, _ in items])
    k = torch.tensor([fanout for _, _, fanout in items], dtype=torch.int32)
    keys = signed([key for key, _, _ in items])
    out, taken = torch.full((n, room), -1), torch.full((n,), -1, dtype=torch.int32)
    kernels.by_weight[(-(-n // tile),)](
        alias, weight, keys, d.cumsum(0) - d, d, p, k, out, taken, n, replace, width, room, tile
    )
    for i, (key, column, fanout) in enumerate(items):
        find = reference_picks.by_alias(tables[i])
        want = reference_picks.weighted(np.uint64(key), np.array(column), find, fanout, replace=replace)
        assert out[i, : int(taken[i])].tolist() == (want.tolist() if fanout > 0 else [])


def test_the_hash_table_keeps_the_smallest_position_of_a_key() -> None:
    """Whatever the order in which lanes come: these come with descending positions."""
    key = torch.randint(0, 20, (128,), generator=torch.Generator().manual_seed(0))
    position = torch.arange(127, -1, -1)
    table, out, failed = torch.zeros(65, dtype=torch.int64), torch.zeros(128, dtype=torch.int64), torch.zeros(1)
    kernels.inserted[(1,)](table, 63, key, position, out, failed.int(), 128, 20, 128)
    smallest = torch.full((20,), 128).scatter_reduce(0, key, position, "amin")
    assert torch.equal(out, smallest[key])
