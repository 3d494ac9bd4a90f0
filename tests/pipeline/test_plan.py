"""The keyed permutation and the batch plan."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhop.errors import InputError
from manyhop.loading.pipeline import BatchPlan, permute
from manyhop.sampling.random import Use, fold, make_key

Permutation = Callable[[int, np.ndarray], np.ndarray]


def feistel(n: int, keys: np.ndarray) -> np.ndarray:
    """``[len(keys), n]``: one permutation per key."""
    return permute(np.tile(np.arange(n), len(keys)), n, np.repeat(keys, n)).reshape(-1, n)


def rotation(n: int, keys: np.ndarray) -> np.ndarray:
    """Biased on purpose: every element is everywhere equally often, but only n of n! permutations occur."""
    return (np.arange(n) + (keys % np.uint64(n)).astype(int)[:, None]) % n


def now_and_then_sorted(n: int, keys: np.ndarray) -> np.ndarray:
    """Biased on purpose: one permutation in fifty is the identity."""
    p = feistel(n, keys)
    p[keys % np.uint64(50) == 0] = np.arange(n)
    return p


def chi_square_z(observed: np.ndarray, expected: float, df: int | None = None, factor: float = 1.0) -> float:
    """Standard normal score of a chi-square statistic (Wilson and Hilferty)."""
    df = observed.size - 1 if df is None else df
    statistic = factor * float(((observed - expected) ** 2 / expected).sum())
    return ((statistic / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))


def keys_of(trials: int) -> np.ndarray:
    return np.asarray(fold(make_key(Use.SHUFFLE, 5), np.arange(trials)))


def permutation_z(permutation: Permutation, n: int, trials: int) -> float:
    """How far the permutations over many keys are from being equally frequent."""
    words = permutation(n, keys_of(trials)) @ n ** np.arange(n)
    seen = np.unique(words, return_counts=True)[1]
    assert seen.size <= math.factorial(n)
    return chi_square_z(np.pad(seen, (0, math.factorial(n) - seen.size)), trials / math.factorial(n))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_are_equally_likely(n: int) -> None:
    assert abs(permutation_z(feistel, n, 100_000)) < 4


@pytest.mark.parametrize("biased", [rotation, now_and_then_sorted])
def test_the_chi_square_test_rejects_biased_permutations(biased: Permutation) -> None:
    assert permutation_z(biased, 4, 100_000) > 10


def test_neighbours_are_not_kept_together() -> None:
    n = 100_000
    p = permute(np.arange(n), n, make_key(Use.SHUFFLE, 1, 2))
    counts = np.bincount((np.diff(p) % n) * 50 // n, minlength=50)
    assert abs(chi_square_z(counts, (n - 1) / 50)) < 4


@given(n=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70))
def test_is_a_bijection(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, make_key(Use.SHUFFLE, seed, 0))), np.arange(n))


def test_random_access_to_2_40_items() -> None:
    n, key = 1 << 40, np.uint64(3)
    i = np.array([0, 1, n - 1, 12345678901])
    out = permute(i, n, key)
    assert out.dtype == np.int64
    assert ((out >= 0) & (out < n)).all()
    assert [int(permute(k, n, key)[0]) for k in i] == out.tolist()


def test_permutation_is_frozen() -> None:
    """These numbers are users' batches: they change only together with CONTRACT_VERSION."""
    assert permute(np.arange(10), 10, make_key(Use.SHUFFLE, 1, 0)).tolist() == FROZEN_10
    assert permute(np.arange(5), 10**6, make_key(Use.SHUFFLE, 42, 3)).tolist() == FROZEN_MILLION


def test_definition_in_plain_integers() -> None:
    """The docstring of permute, one number at a time."""
    from manyhop.sampling.random import draw, mix

    def one(x: int, n: int, key: np.uint64) -> int:
        bits = max(1, math.ceil(math.log2(n)))
        low = bits // 2
        while True:
            left, right = x & ((1 << low) - 1), x >> low
            for turn in range(64 if bits <= 3 else 16 if bits <= 12 else 8):
                with np.errstate(over="ignore"):
                    f = int(mix(draw(key, turn) + np.uint64(left if turn % 2 else right)))
                if turn % 2:
                    right ^= f & ((1 << (bits - low)) - 1)
                else:
                    left ^= f & ((1 << low) - 1)
            x = left | right << low
            if x < n:
                break
        return 1 - x if x < 2 <= n and int(draw(key, 1 << 32)) >> 63 else x

    for n in (1, 2, 3, 5, 8, 100, 5000):
        for k in range(4):
            key = make_key(Use.SHUFFLE, 0, k)
            i = np.arange(n)[:: 1 + n // 20]
            assert permute(i, n, key).tolist() == [one(int(x), n, key) for x in i]


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """The first shuffle loads its kernel."""
    BatchPlan(10, 2, shuffle=True).indices(0, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 100, 4096, 4097, 2**20 + 3, 2**35 + 11, 2**40])
def test_the_compiled_shuffle_is_that_of_the_contract(n: int) -> None:
    expected = permute(np.arange(min(n, 700)), n, make_key(Use.SHUFFLE, 3, 5))
    assert np.array_equal(BatchPlan(n, 700, shuffle=True, seed=3).indices(5, 0), expected)


@given(
    n=st.integers(0, 60),
    size=st.integers(1, 20),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_plan_covers_each_item_once(n: int, size: int, shuffle: bool, drop_last: bool, epoch: int) -> None:
    plan = BatchPlan(n, size, shuffle=shuffle, drop_last=drop_last, seed=3)
    batches = [plan.indices(epoch, b).tolist() for b in range(len(plan))]
    items = [i for batch in batches for i in batch]
    assert len(set(items)) == len(items) == (n // size * size if drop_last else n)
    assert all(len(batch) == size for batch in batches[: n // size])
    if not shuffle:
        assert items == list(range(len(items)))


@pytest.mark.parametrize("size", [0, -1, None, True, 2.0])
def test_batch_size_is_checked(size: object) -> None:
    with pytest.raises(InputError, match="batch_size"):
        BatchPlan(10, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [-1, (1 << 40) + 1])
def test_number_of_items_is_checked(n: int) -> None:
    with pytest.raises(InputError, match="items"):
        BatchPlan(n, 2)


@pytest.mark.parametrize("batch", [-1, 5])
def test_batch_is_checked(batch: int) -> None:
    with pytest.raises(InputError, match="from 0 to 4"):
        BatchPlan(10, 2).indices(0, batch)


FROZEN_10 = [2, 5, 6, 0, 4, 1, 9, 3, 7, 8]
FROZEN_MILLION = [547361, 599810, 728693, 607305, 427017]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_items", [1, 2, 77, 5000])
def test_a_few_positions_need_no_compiled_code(shuffle, num_items):
    plan = BatchPlan(num_items, 50, shuffle, seed=-3)
    for batch in {0, len(plan) - 1}:
        assert np.array_equal(plan.few_indices(4, batch), plan.indices(4, batch))
    with pytest.raises(InputError, match="Expected a batch from 0"):
        plan.few_indices(0, len(plan))
