"""Negatives against their exact distributions, over many batches."""

import itertools

import numpy as np
import pytest
import torch
from chi_square import check, given, joint, product, proportional, uniform

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, negatives
from manyhop.sampling.lookup import EdgeLookup
from manyhop.sampling.negatives import NegativeTable, draw_negatives

BATCHES, PER_BATCH = 300, 40
SRC_WEIGHT, DST_WEIGHT = [1.0, 0.0, 3.0, 2.0], [2.0, 1.0, 0.5, 0.0, 4.0]
SRC_TIME, DST_TIME = [3, 1, 4, 1], [2, 7, 1, 8, 2]
EDGES = [(0, 0), (0, 1), (0, 2), (2, 4), (2, 1), (3, 0), (3, 2), (1, 3)]


def lookup(edges, num_src=4, num_dst=5):
    row, col = torch.tensor(edges).t()
    graph = build_graph({"a": num_src, "b": num_dst}, {("a", "to", "b"): EdgeInput(row=row, col=col)})
    return EdgeLookup(graph.csc["a", "to", "b"])


def table(n, weight=None, time=None):
    return NegativeTable(
        n,
        None if weight is None else torch.tensor(weight),
        None if time is None else torch.tensor(time),
    )


def pairs(src, dst, *, limit=None, avoid=None, batches=BATCHES):
    result = []
    for batch in range(batches):
        time = None if limit is None else np.full(PER_BATCH, limit)
        s, d = draw_negatives(BatchKey(5, 0, batch), src, dst, PER_BATCH, time, avoid)
        result += zip(s.tolist(), d.tolist(), strict=True)
    return result


def in_time(weights, times, limit):
    return proportional({i: w for i, (w, t) in enumerate(zip(weights, times, strict=True)) if t <= limit})


@pytest.mark.parametrize("limit", [None, 2, 3, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_pairs(weighted, limit):
    weights = (SRC_WEIGHT, DST_WEIGHT) if weighted else ([1.0] * 4, [1.0] * 5)
    times = (SRC_TIME, DST_TIME) if limit is not None else ([0] * 4, [0] * 5)
    exact = product(*(in_time(w, t, limit or 0) for w, t in zip(weights, times, strict=True)))
    tables = [
        table(len(w), w if weighted else None, t if limit is not None else None)
        for w, t in zip(weights, times, strict=True)
    ]
    skewed = [
        table(len(w), (np.array(w) * np.arange(1, len(w) + 1)).tolist(), t) for w, t in zip(weights, times, strict=True)
    ]
    control = pairs(*skewed, limit=limit)
    if limit == 2 and weighted:  # one source is left: nothing to skew; drop the times instead
        control = pairs(*tables, limit=3)
    check(exact, pairs(*tables, limit=limit), control)


@pytest.mark.parametrize("attempts", [1, 2, 16])
@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_pairs_that_are_no_edges(weighted, limit, attempts, monkeypatch):
    """One and two attempts bring the exact draw after the attempts into play: the distribution is the same."""
    monkeypatch.setattr(negatives, "MAX_ATTEMPTS", attempts)
    weights = (SRC_WEIGHT, DST_WEIGHT) if weighted else ([1.0] * 4, [1.0] * 5)
    times = (SRC_TIME, DST_TIME) if limit is not None else ([0] * 4, [0] * 5)
    plain = product(*(in_time(w, t, limit or 0) for w, t in zip(weights, times, strict=True)))
    src, dst = (
        table(len(w), w if weighted else None, t if limit is not None else None)
        for w, t in zip(weights, times, strict=True)
    )
    avoid = lookup(EDGES)

    # The control keeps the source of a true edge and draws only its destination again.
    control = []
    for batch in range(BATCHES):
        time = None if limit is None else np.full(PER_BATCH, limit)
        s, _ = draw_negatives(BatchKey(5, 0, batch), src, dst, PER_BATCH, time)
        d = draw_negatives(BatchKey(5, 0, batch), s, dst, PER_BATCH, time, avoid)[1]
        control += zip(s.tolist(), d.tolist(), strict=True)
    check(
        given(plain, lambda pair: pair not in EDGES),
        pairs(src, dst, limit=limit, avoid=avoid, batches=BATCHES if attempts > 1 else BATCHES // 2),
        control[: BATCHES // 2 * PER_BATCH],
    )


@pytest.mark.parametrize("attempts", [1, 16])
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_destinations(weighted, exclude, attempts, monkeypatch):
    monkeypatch.setattr(negatives, "MAX_ATTEMPTS", attempts)
    weight = DST_WEIGHT if weighted else [1.0] * 5
    dst, skewed = table(5, weight if weighted else None), table(5, [1.0, 3.0, 9.0, 27.0, 81.0])
    avoid = lookup(EDGES) if exclude else None
    sources = np.array([0, 2, 3] * 14)

    def draws(source, dst):
        drawn = [draw_negatives(BatchKey(6, 1, b), sources, dst, sources.size, avoid=avoid)[1] for b in range(200)]
        return [(int(d),) for batch in drawn for d in batch[sources == source]]

    for source in (0, 2, 3):
        exact = given(proportional(weight), lambda d, s=source: not exclude or (s, d[0]) not in EDGES)
        if len(exact) > 1:
            check(exact, draws(source, dst), draws(source, skewed))
        else:
            assert set(draws(source, dst)) == set(exact)


def test_negatives_are_independent():
    """Neighbouring negatives of a batch, the two ends of a pair, and the same negative of neighbouring batches."""
    node = table(4)
    drawn = np.array([draw_negatives(BatchKey(8, 0, b), node, node, PER_BATCH) for b in range(BATCHES)])
    src, dst = drawn[:, 0], drawn[:, 1]
    exact = uniform(itertools.product(range(4), repeat=2))
    same = list(zip(src.ravel().tolist(), src.ravel().tolist(), strict=True))[: BATCHES * PER_BATCH // 2]
    for x, y in ((src[:, ::2], src[:, 1::2]), (src, dst), (src[::2], src[1::2]), (src[::2], dst[1::2])):
        check(exact, list(zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)), same)


def test_attempts_of_one_negative_do_not_meet_the_draws_of_another():
    """What replaces a true edge is independent of the negative before it."""
    node, avoid = table(4), lookup([(0, 0), (1, 1), (2, 2), (3, 3)], 4, 4)
    drawn = np.array(pairs(node, node, avoid=avoid)).reshape(-1, 2, 2)
    one = given(uniform(itertools.product(range(4), repeat=2)), lambda pair: pair[0] != pair[1])
    both = [(tuple(a), tuple(b)) for a, b in drawn.tolist()]
    check(joint(one, one), both, [(a, a) for a, _ in both])
