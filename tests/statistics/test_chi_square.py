"""The test that tests the samplers: right on known cases, neither blind nor jumpy."""

import numpy as np
import pytest
from chi_square import ALPHA, given, image, joint, p_value, product, proportional, subsets, successive
from scipy.stats import chisquare, kstest


def test_is_pearsons():
    exact = {"a": 0.2, "b": 0.3, "c": 0.5}
    outcomes = ["a"] * 30 + ["b"] * 25 + ["c"] * 45
    assert p_value(outcomes, exact) == pytest.approx(chisquare([30, 25, 45], [20, 30, 50]).pvalue)


def test_rare_outcomes_are_counted_together():
    exact = {"a": 0.5, "b": 0.44, "c": 0.03, "d": 0.03}
    outcomes = ["a"] * 50 + ["b"] * 40 + ["c"] * 10
    assert p_value(outcomes, exact) == pytest.approx(chisquare([50, 40, 10], [50, 44, 6]).pvalue)


def test_impossible_outcomes_are_rejected():
    assert p_value(["a"] * 1000 + ["z"], {"a": 1.0}) == 0.0
    assert p_value(["a"] * 1000, {"a": 1.0}) == 1.0


def test_p_values_of_a_right_sampler_are_uniform():
    rng = np.random.default_rng(0)
    values = [p_value(rng.integers(0, 6, 600).tolist(), dict.fromkeys(range(6), 1 / 6)) for _ in range(400)]
    assert kstest(values, "uniform").pvalue > ALPHA


def test_distributions():
    assert successive([1, 2, 0, 1], 2)[1, 0] == pytest.approx(2 / 4 * 1 / 2)
    assert sum(successive([5, 2, 3, 1], 3).values()) == pytest.approx(1)
    assert product(proportional([1, 1]), proportional([1, 3]))[0, 1] == pytest.approx(3 / 8)
    assert joint(subsets(range(3), 2), subsets(range(3), 1))[(0, 1), (2,)] == pytest.approx(1 / 9)
    assert given({1: 0.5, 2: 0.25, 3: 0.25}, lambda x: x > 1) == {2: 0.5, 3: 0.5}
    assert image({1: 0.5, 2: 0.25, 3: 0.25}, lambda x: x % 2) == {1: 0.75, 0: 0.25}
