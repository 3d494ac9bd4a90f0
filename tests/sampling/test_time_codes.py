"""Limits on times, found through codes of 16 bits, equal the bisection of the reference in columns of all kinds."""

import numpy as np
import pytest
import torch
from cpu_cases import INT64_MAX, INT64_MIN, E, N, check_equal, one_type, request_of, spec_of

from manyhop.graph.csc import BUCKETS, time_codes
from manyhop.sampling import CPUSampler, ReferenceSampler

LENGTHS = [0, 1, 31, 32, 33, 63, 64, 65, 100, 1000, 30_000, 0, 5, 32]


def column_times(rng, kind, n):
    """Times of one column: like those of all, all early or late (the expected place is wrong), few, extreme ones."""
    return {
        "alike": lambda: rng.integers(0, 1 << 20, n),
        "apart": lambda: rng.choice([0, 1 << 19, 1 << 20]) + rng.integers(0, 1000, n),
        "few": lambda: rng.integers(0, 4, n),
        "extreme": lambda: rng.choice([INT64_MIN, INT64_MIN + 1, 0, INT64_MAX - 1, INT64_MAX], n),
    }[kind]()


@pytest.mark.parametrize("kind", ["alike", "apart", "few", "extreme"])
def test_limits_equal_the_reference(kind):
    rng = np.random.default_rng(3)
    time = np.concatenate([column_times(rng, kind, n) for n in LENGTHS])
    col = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    graph = one_type(len(LENGTHS), np.zeros_like(col), col, time=time)
    spec = spec_of(3, temporal="uniform", disjoint=True)
    some = rng.choice(time, 20)
    near = [x + d for x in some.tolist() for d in (-1, 0, 1) if INT64_MIN <= x + d <= INT64_MAX]
    limits = np.array([*near, INT64_MIN, INT64_MAX])
    seeds = np.repeat(np.arange(len(LENGTHS)), len(limits))
    limit = torch.from_numpy(np.tile(limits, len(LENGTHS)))
    limited = [request_of(seeds, time_max={N: limit}, time_min=low) for low in (None, {N: limit.roll(7)})]
    check_equal(CPUSampler(graph, spec), ReferenceSampler(graph, spec), limited)


def test_codes_rank_the_times():
    time = torch.from_numpy(np.random.default_rng(0).integers(-(10**12), 10**12, 300_000))
    codes = time_codes(time)
    assert (np.diff(codes.bound) >= 0).all()
    assert np.array_equal(codes.code[: len(time)], np.searchsorted(codes.bound, time.numpy(), side="left"))
    assert np.bincount(codes.code[: len(time)], minlength=BUCKETS).max() < 4 * len(time) / BUCKETS


def test_times_are_coded_once_for_all_samplers():
    graph = one_type(2, [0, 1], [1, 0], time=[5, 6])
    csc = graph.csc[E]
    CPUSampler(graph, spec_of(1))
    assert "time_codes" not in vars(csc)  # no memory for samplers that are not temporal
    CPUSampler(graph, spec_of(1, temporal="last", disjoint=True))
    codes = vars(csc)["time_codes"]
    CPUSampler(graph, spec_of(1, temporal="uniform", disjoint=True))
    assert csc.time_codes is codes
