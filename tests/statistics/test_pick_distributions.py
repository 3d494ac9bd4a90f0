"""What samplers do with one column in rare cases, against exact distributions: see test_sampler_distributions.py."""

import itertools

import numpy as np
import pytest
from chi_square import check, image, successive, uniform

from manyhop.sampling.random import Use, below, draw, fold, make_key
from manyhop.sampling.reference import picks as picks
from manyhop.sampling.reference.picks import alias_table

N = 5_000


def keys(n=N, seed=1):
    """The keys that node 9 has in ``n`` batches: hop 0, edge type 0, no trees."""
    per_batch = fold(make_key(Use.NEIGHBOR, seed, 0), np.arange(n))
    return fold(fold(fold(fold(per_batch, 0), 0), 0), 9)


def tuples(sampled):
    return [tuple(s.tolist()) for s in sampled]


def sets(sampled):
    return [tuple(sorted(s.tolist())) for s in sampled]


@pytest.mark.parametrize(("d", "k"), [(5, 2), (5, 3)])
def test_order_of_uniform_picks(d, k):
    """Not every order is equally likely in Floyd's algorithm: the exact one, by going through all its draws."""

    def floyd(draws):
        picked = {}
        for j, q in enumerate(draws):
            picked[d - k + j if q in picked else q] = None
        return tuple(picked)

    exact = image(uniform(itertools.product(*(range(d - k + j + 1) for j in range(k)))), floyd)
    check(
        exact,
        tuples(picks.uniform(key, d, k, replace=False) for key in keys()),
        sets(picks.uniform(key, d, k, replace=False) for key in keys()),
    )


def test_hubs():
    """Sixteen random bits modulo the degree, as samplers have done it, favour the first entries of a hub."""
    d, first = 40_000, 25_536
    r = draw(keys(50_000), 0)
    bits = (r >> np.uint64(48)).astype(np.int64)
    exact = {True: first / d, False: 1 - first / d}
    check(exact, (below(r, d) < first).tolist(), (bits % d < first).tolist())


def weighted(weights, k, n=N):
    """Picks of ``n`` keys."""
    weights = np.array(weights)
    find = picks.by_alias(alias_table(weights))
    return tuples(picks.weighted(key, weights, find, k, replace=False) for key in keys(n))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("weights", [[1e6, 1.0, 2.0, 3.0], [1.0, 2.0, 1e6, 4.0]])
def test_scan(weights, k, monkeypatch):
    """One weight dwarfs the others: the second pick always falls back to the scan."""
    scans = []
    scan = picks._scan

    def spy(u, weight, left):
        scans.append(len(left))
        return scan(u, weight, left)

    def blind(u, weight, left):
        return scan(u, np.ones_like(weight), left)

    monkeypatch.setattr(picks, "_scan", spy)
    sampled = weighted(weights, k, 2500)
    assert len(scans) >= 2450 * (k - 1)
    monkeypatch.setattr(picks, "_scan", blind)
    check(successive(weights, k), sampled, weighted(weights, k, 2500))


def test_scan_and_repeats_have_the_same_distribution(monkeypatch):
    weights = [3.0, 1.0, 2.0, 1.0]
    exact, control = successive(weights, 3), weighted([1.0] * 4, 3)
    for repeats in (1, 2, 50):
        monkeypatch.setattr(picks, "MAX_REPEATS", repeats)
        check(exact, weighted(weights, 3), control)


def test_weighted_by_running_sums():
    weights = np.array([0.0, 5.0, 1.0, 0.0, 0.5, 2.0])
    right, wrong = picks.by_sums(np.cumsum(weights)), picks.by_sums(np.cumsum(np.sqrt(weights)))
    check(
        successive(weights.tolist(), 2),
        tuples(picks.weighted(key, weights, right, 2, replace=False) for key in keys()),
        tuples(picks.weighted(key, weights, wrong, 2, replace=False) for key in keys()),
    )


def test_picks_of_two_nodes_are_independent():
    """For trees, copies, edge types, hops and batches, see test_sampler_distributions.py."""
    key = fold(fold(fold(fold(make_key(Use.NEIGHBOR, 1, 0), np.arange(N)), 0), 0), 0)
    x, y = (below(draw(fold(key, node), 0), 5).tolist() for node in (9, 10))
    check(uniform(itertools.product(range(5), repeat=2)), zip(x, y, strict=True), zip(x, x, strict=True))
