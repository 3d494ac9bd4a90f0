"""LABOR against exact distributions: what a node picks, and what nodes pick together that share neighbours.

A graph consists of many copies of a few nodes, whose neighbours have numbers of their own: one batch gives an outcome
per copy. The controls draw anew for each node that asks, or for each hop or batch. The CPU kernels, which equal the
reference bit for bit.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from chi_square import check, image, joint, uniform
from cpu_cases import one_type
from numpy.polynomial import Polynomial
from scipy.optimize import brentq

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.sampling import BatchKey, CPULaborSampler, LaborSpec, NodeRequest

COPIES = 20_000
COLUMNS = [(2, 3, 4, 5, 6), (5, 6, 7)]  # the neighbours of node 0 and of node 1, which share two
WEIGHTS = [(1.0, 2.0, 3.0, 0.5, 1.0), (1.0, 1.0, 4.0)]
SIZE = 8  # nodes of a copy
K = 2


def graph_of(copies):
    row = np.concatenate(COLUMNS)
    col = np.repeat([0, 1], [len(c) for c in COLUMNS])
    first = SIZE * np.arange(copies)[:, None]
    weight = np.tile(np.concatenate(WEIGHTS), copies)
    return one_type(SIZE * copies, (row + first).ravel(), (col + first).ravel(), weight=weight)


def picked(*, batch=0, fanouts=(K,), frontier=(0, 1), **options):
    """per hop, destination and copy: the picked neighbours, sorted. ``result[hop][dst][copy]``."""
    graph = graph_of(COPIES)
    sampler = CPULaborSampler(graph, LaborSpec(fanouts={HOMOGENEOUS_EDGE: fanouts}, **options))
    seeds = (SIZE * torch.arange(COPIES)[:, None] + torch.tensor(frontier)).flatten()
    out = sampler.sample(NodeRequest(key=BatchKey(5, 0, batch), seeds={HOMOGENEOUS_NODE: seeds}))
    row, col = (out.node[HOMOGENEOUS_NODE][x].tolist() for x in (out.row[HOMOGENEOUS_EDGE], out.col[HOMOGENEOUS_EDGE]))
    hops, at = [], 0
    for n in out.num_sampled_edges[HOMOGENEOUS_EDGE]:
        found = [[[] for _ in range(COPIES)] for _ in COLUMNS]
        for u, v in zip(row[at : at + n], col[at : at + n], strict=True):
            found[v % SIZE][v // SIZE].append(u % SIZE)
        hops.append([[tuple(sorted(x)) for x in of_node] for of_node in found])
        at += n
    return hops


def together(*parts):
    return list(zip(*parts, strict=True))


def independent(probabilities):
    """Both nodes' picks, each neighbour by itself: it is picked by those whose probability its number is below."""
    neighbors = sorted(set(itertools.chain(*COLUMNS)))
    parts = []
    for u in neighbors:
        p = [probability.get(u, 0.0) for probability in probabilities]
        low, high = min(p), max(p)
        larger = p.index(high)
        parts.append({(): 1 - high, (larger,): high - low, (0, 1): low})

    def picks(outcome):
        return tuple(tuple(u for u, who in zip(neighbors, outcome, strict=True) if a in who) for a in (0, 1))

    return image(joint(*parts), picks)


def scale(a, pi, k):
    """The solution of equation 22 of the paper, by bisection."""
    n, total = len(a), sum(a)
    target = total**2 / k - total**2 / n + sum(x * x for x in a)
    return brentq(lambda c: sum(x * x / min(1, c * p) for x, p in zip(a, pi, strict=True)) - target, 1e-9, 1e9)


def probabilities(k, rounds, *, weighted):
    columns = [
        dict(zip(c, w if weighted else (1.0,) * len(c), strict=True)) for c, w in zip(COLUMNS, WEIGHTS, strict=True)
    ]
    pi = [c if weighted else dict.fromkeys(c, 1.0) for c in columns]
    for turn in range(rounds + 1):
        c = [scale(a.values(), [p[u] for u in a], k) for a, p in zip(columns, pi, strict=True)]
        if turn == rounds:
            break
        nodes = set(itertools.chain(*COLUMNS))
        first = turn == 0
        grown = {u: max(x * (p[u] if first else 1) for x, p in zip(c, pi, strict=True) if u in p) for u in nodes}
        shared = {u: grown[u] * (1 if first else next(p[u] for p in pi if u in p)) for u in nodes}
        pi = [{u: shared[u] for u in column} for column in columns]
    return [{u: min(1.0, x * p[u]) for u in p} for x, p in zip(c, pi, strict=True)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [dict.fromkeys(c, K / len(c)) for c in COLUMNS]),
        ({"weighted": True}, probabilities(K, 0, weighted=True)),
        ({"importance": 1}, probabilities(K, 1, weighted=False)),
        ({"importance": 2, "weighted": True}, probabilities(K, 2, weighted=True)),
    ],
    ids=str,
)
def test_poisson(options, expected):
    """Numbers of neighbours are uniform, independent, and the same for both nodes; the probabilities are right."""
    (one,) = picked(**options)
    (other,) = picked(batch=1, **options)
    exact = independent(expected)
    check(exact, together(*one), together(one[0], other[1]))


def test_exact():
    """The first of a shuffle of all neighbours."""
    orders = uniform(itertools.permutations(range(2, 8)))
    exact = image(orders, lambda order: tuple(tuple(sorted([u for u in order if u in c][:K])) for c in COLUMNS))
    (one,) = picked(method="exact")
    (other,) = picked(batch=1, method="exact")
    check(exact, together(*one), together(one[0], other[1]))


def test_exact_with_replacement():
    """The smallest of all numbers, of which each neighbour has as many as the fanout."""
    numbers = list(itertools.combinations([u for u in COLUMNS[0] for _ in range(K)], K))
    exact = {pair: numbers.count(pair) / len(numbers) for pair in numbers}
    (one,) = picked(method="exact", replace=True)
    (control,) = picked(method="exact")
    check(exact, one[0], control[0])


def test_exact_with_weights():
    """Of the numbers, each uniform up to one over its weight, the smallest."""
    exact = {}
    for i, w in enumerate(WEIGHTS[0]):
        others = [Polynomial([1, -x]) for j, x in enumerate(WEIGHTS[0]) if j != i]
        integral = (w * math.prod(others, start=Polynomial([1]))).integ()
        exact[(COLUMNS[0][i],)] = integral(1 / max(WEIGHTS[0])) - integral(0)
    (one,) = picked(fanouts=(1,), method="exact", weighted=True)
    (control,) = picked(fanouts=(1,), method="exact")
    check(exact, one[0], control[0])


def both_times(p_again):
    """What node 0 picks at two times, if what it picked once it picks again with that probability."""
    p, d = K / len(COLUMNS[0]), len(COLUMNS[0])
    part = {(1, 1): p * p_again, (1, 0): p * (1 - p_again), (0, 1): p * (1 - p_again)}
    part[0, 0] = 1 - sum(part.values())

    def picks(outcome):
        return tuple(tuple(u for u, x in zip(COLUMNS[0], outcome, strict=True) if x[time]) for time in (0, 1))

    return image(joint(*[part] * d), picks)


def test_hops():
    """Each hop draws anew, or none does."""
    one, two = (hop[0] for hop in picked(fanouts=(K, K), frontier=(0,)))
    same = picked(fanouts=(K, K), frontier=(0,), layer_dependency=True)
    assert same[0] == same[1]
    check(both_times(K / len(COLUMNS[0])), together(one, two), together(same[0][0], same[1][0]))


def test_batches():
    """Of two batches that depend on each other, half of the neighbours draw anew."""
    now, later, other = (picked(batch=b, batch_dependency=2)[0][0] for b in (2, 3, 0))
    p = K / len(COLUMNS[0])
    check(both_times((1 + p) / 2), together(now, later), together(now, other))
    after = picked(batch=4, batch_dependency=2)[0][0]
    check(both_times((1 + p) / 2), together(later, after), together(later, other))
