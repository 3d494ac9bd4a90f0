"""The counter-based generator against published values and plain Python integers."""

import numpy as np
import pytest

from manyhop.sampling.random import Use, as_u64, below, draw, fold, make_key, unit

M = (1 << 64) - 1
EDGES = [0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, M]


def test_splitmix64_sequences():
    """The first outputs of splitmix64 for two seeds, as published with other implementations of it."""
    assert [int(r) for r in draw(np.uint64(1234567), np.arange(5))] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(r) for r in draw(np.uint64(0), np.arange(3))] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_make_key_folds_from_the_left():
    expected = np.uint64(0)
    for part in (int(Use.HGT_PICK), 7, 0, 3):
        expected = fold(expected, part)
    assert make_key(Use.HGT_PICK, 7, 0, 3) == expected


def test_keys_differ():
    keys = {int(make_key(use, *parts)) for use in Use for parts in [(), (0,), (0, 0), (1, 0), (0, 1), (-1,), (M - 1,)]}
    assert len(keys) == 7 * len(Use)


def test_seeds_count_modulo_two_to_the_64():
    assert make_key(Use.NEIGHBOR, -1) == make_key(Use.NEIGHBOR, M) == make_key(Use.NEIGHBOR, 2**70 + M)
    assert as_u64(np.array([-1, 5])).tolist() == [M, 5]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 2**16, 2**31, 2**32 - 1])
def test_below_is_exact(n):
    rng = np.random.default_rng(0)
    r = np.concatenate([np.array(EDGES, np.uint64), rng.integers(0, M, 1000, np.uint64, endpoint=True)])
    assert below(r, n).tolist() == [int(x) * n >> 64 for x in r.tolist()]


def test_unit():
    assert unit(np.array(EDGES, np.uint64)).tolist() == [(x >> 11) / 2**53 for x in EDGES]
    assert unit(np.uint64(M)) < 1.0
