"""Picks from one column against their exact distributions. Every control is biased in a way that samplers have been."""

import itertools

import numpy as np
import pytest
from chi_square import check, image, joint, product, proportional, subsets, successive, uniform

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


def floyd_off_by_one(key, d, k):
    """Never picks the last entry first, as a well-known implementation."""
    picked = {}
    for j in range(k):
        q = int(below(draw(key, j), max(d - k + j, 1)))
        picked[d - k + j if q in picked else q] = None
    return np.array(list(picked))


@pytest.mark.parametrize(("d", "k"), [(4, 1), (5, 2), (6, 3), (5, 4)])
def test_uniform(d, k):
    check(
        subsets(range(d), k),
        sets(picks.uniform(key, d, k, replace=False) for key in keys()),
        sets(floyd_off_by_one(key, d, k) for key in keys()),
    )


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


@pytest.mark.parametrize(("d", "k"), [(2, 3), (4, 2), (3, 4)])
def test_uniform_with_replacement(d, k):
    def stuck(key):
        """Every other slot repeats the draw before it."""
        return below(draw(key, np.arange(k) // 2 * 2), d)

    check(
        uniform(itertools.product(range(d), repeat=k)),
        tuples(picks.uniform(key, d, k, replace=True) for key in keys()),
        tuples(stuck(key) for key in keys()),
    )


def test_hubs():
    """Sixteen random bits modulo the degree, as samplers have done it, favour the first entries of a hub."""
    d, first = 40_000, 25_536
    r = draw(keys(50_000), 0)
    bits = (r >> np.uint64(48)).astype(np.int64)
    exact = {True: first / d, False: 1 - first / d}
    check(exact, (below(r, d) < first).tolist(), (bits % d < first).tolist())


WEIGHTS = [[1.0, 2.0, 3.0], [0.0, 5.0, 1.0, 0.0, 0.5, 2.0], [1.0, 1.0, 1.0, 1.0], [4.0, 0.0]]


def weighted(weights, k, n=N, *, table=None, replace=False):
    """Picks of ``n`` keys, by the alias table of the weights or another one."""
    weights = np.array(weights)
    find = picks.by_alias(alias_table(weights) if table is None else table)
    return tuples(picks.weighted(key, weights, find, k, replace=replace) for key in keys(n))


def without_aliases(weights):
    """Every entry is full: uniform."""
    return np.arange(len(weights))


def one_too_far(weights):
    """Every alias is the entry behind the right one."""
    threshold, alias = np.divmod(alias_table(weights).view(np.uint64), 1 << 32)
    return (threshold << np.uint64(32) | (alias + np.uint64(1)) % np.uint64(len(weights))).view(np.int64)


@pytest.mark.parametrize("wrong", [without_aliases, one_too_far])
@pytest.mark.parametrize("weights", WEIGHTS[:2])
@pytest.mark.parametrize("k", [1, 2])
def test_weighted_with_replacement(weights, k, wrong):
    check(
        product(*[proportional(weights)] * k),
        weighted(weights, k, replace=True),
        weighted(weights, k, table=wrong(weights), replace=True),
    )


@pytest.mark.parametrize(("weights", "k"), [(WEIGHTS[0], 1), (WEIGHTS[0], 2), (WEIGHTS[1], 2), (WEIGHTS[1], 3)])
def test_weighted(weights, k):
    find = picks.by_alias(alias_table(weights))

    def no_repeats(key):
        """A draw that hits a picked entry moves on to the next free one."""
        picked = {}
        for j in range(k):
            q = find(draw(key, j))
            while q in picked or weights[q] == 0:
                q = (q + 1) % len(weights)
            picked[q] = None
        return tuple(picked)

    control = [no_repeats(key) for key in keys()] if k > 1 else weighted(weights, k, table=without_aliases(weights))
    check(successive(weights, k), weighted(weights, k), control)


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
    weights = np.array(WEIGHTS[1])
    right, wrong = picks.by_sums(np.cumsum(weights)), picks.by_sums(np.cumsum(np.sqrt(weights)))
    check(
        successive(weights.tolist(), 2),
        tuples(picks.weighted(key, weights, right, 2, replace=False) for key in keys()),
        tuples(picks.weighted(key, weights, wrong, 2, replace=False) for key in keys()),
    )


TIME = np.array([0, 1, 1, 2, 3, 3, 5])


@pytest.mark.parametrize(("t_min", "t_max", "k"), [(None, 3, 2), (1, 3, 2), (None, 5, 3), (3, 4, 1)])
def test_temporal(t_min, t_max, k):
    allowed = [i for i, t in enumerate(TIME) if t <= t_max and (t_min is None or t >= t_min)]

    def pick(key, t_min, t_max):
        begin, end = picks.temporal(TIME, t_min, t_max)
        return begin + picks.uniform(key, end - begin, k, replace=False)

    check(
        subsets(allowed, k),
        sets(pick(key, t_min, t_max) for key in keys()),
        sets(pick(key, t_min, t_max - 1 if t_max != 4 else 5) for key in keys()),  # off by one time
    )


@pytest.mark.parametrize(("t_min", "t_max", "k"), [(None, 3, 2), (1, 3, 4), (None, 5, 1)])
def test_last(t_min, t_max, k):
    begin, end = picks.temporal(TIME, t_min, t_max)
    allowed = [i for i, t in enumerate(TIME) if t <= t_max and (t_min is None or t >= t_min)]
    check(
        {tuple(allowed[-k:]): 1.0},
        tuples(begin + picks.last(end - begin, k) for _ in range(1000)),
        tuples(begin + picks.uniform(key, end - begin, k, replace=False) for key in keys(1000)),
    )


class TestIndependence:
    """Two picks of the same column, by keys that differ in one part, tell nothing about each other."""

    base = make_key(Use.NEIGHBOR, 1, 0)

    def chain(self, *parts):
        key = self.base
        for part in parts:
            key = fold(key, part)
        return key

    @pytest.mark.parametrize("part", ["batch", "hop", "edge type", "tree", "node", "copy", "slot"])
    def test_of_keys_that_differ_in(self, part):
        b = np.arange(N)
        first = self.chain(b, 0, 0, 0, 9)
        second = {
            "batch": self.chain(b + 1, 0, 0, 0, 9),
            "hop": self.chain(b, 1, 0, 0, 9),
            "edge type": self.chain(b, 0, 1, 0, 9),
            "tree": self.chain(b, 0, 0, 1, 9),
            "node": self.chain(b, 0, 0, 0, 10),
            "copy": self.chain(b, 0, 0, 0, 9, 1),
            "slot": first,
        }[part]
        slot = 1 if part == "slot" else 0
        if part == "batch":
            first, second = first[::2], second[::2]
        x, y = below(draw(first, 0), 5), below(draw(second, slot), 5)
        pairs = list(zip(x.tolist(), y.tolist(), strict=True))
        same = list(zip(x.tolist(), x.tolist(), strict=True))
        check(uniform(itertools.product(range(5), repeat=2)), pairs, same)

    def test_of_whole_picks_in_two_hops(self):
        b = np.arange(N)
        hops = [[picks.uniform(k, 5, 2, replace=False) for k in self.chain(b, hop, 0, 0, 9)] for hop in (0, 1)]
        pairs = list(zip(*(sets(h) for h in hops), strict=True))
        check(joint(subsets(range(5), 2), subsets(range(5), 2)), pairs, [(p, p) for p, _ in pairs])
