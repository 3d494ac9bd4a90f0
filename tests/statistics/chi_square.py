"""Exact distributions of samples, and the test that compares outcomes with them.

An outcome is anything hashable; a distribution maps outcomes to probabilities.
"""

import itertools
from collections import Counter

from scipy.stats import chi2

ALPHA = 1e-4
"""A right sampler passes; the seeds are fixed, so it passes always."""

REJECTED = 1e-12
"""A control that is biased on purpose must fall far below ``ALPHA``."""


def p_value(outcomes, exact):
    """Pearson's chi-square test. Outcomes expected fewer than five times are counted together."""
    counts = Counter(outcomes)
    assert abs(sum(exact.values()) - 1) < 1e-9
    if any(exact.get(o, 0) == 0 for o in counts):
        return 0.0
    n = counts.total()
    cells, rest = [], [0.0, 0.0]
    for outcome, probability in exact.items():
        cell = counts[outcome], n * probability
        if cell[1] >= 5:
            cells.append(cell)
        else:
            rest = [r + c for r, c in zip(rest, cell, strict=True)]
    if rest[1] >= 5:
        cells.append(tuple(rest))
    elif rest[1] > 0:
        cells[-1] = tuple(r + c for r, c in zip(rest, cells[-1], strict=True))
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1)) if len(cells) > 1 else 1.0


def check(exact, outcomes, control):
    """The outcomes fit the exact distribution; those of the biased control do not."""
    outcomes, control = list(outcomes), list(control)
    assert len(outcomes) >= 1000
    assert len(control) <= len(outcomes)
    assert p_value(outcomes, exact) > ALPHA
    assert p_value(control, exact) < REJECTED


def uniform(support):
    support = list(support)
    return dict.fromkeys(support, 1 / len(support))


def subsets(entries, k):
    """Every set of k entries, as a sorted tuple, equally likely."""
    return uniform(itertools.combinations(sorted(entries), k))


def proportional(weights):
    """Single entries, in proportion to ``weights`` (a list, or a dict of entries)."""
    weights = dict(enumerate(weights)) if not isinstance(weights, dict) else weights
    total = sum(weights.values())
    return {(o,): w / total for o, w in weights.items() if w > 0}


def product(*parts):
    """Independent parts; outcomes are tuples, joined."""
    joined = {}
    for combination in itertools.product(*(p.items() for p in parts)):
        probability = 1.0
        for _, p in combination:
            probability *= p
        joined[sum((o for o, _ in combination), ())] = probability
    return joined


def joint(*parts):
    """Independent parts; outcomes are tuples of the parts' outcomes."""
    return product(*({(o,): p for o, p in part.items()} for part in parts))


def successive(weights, k):
    """Sequences of k different entries: each in proportion to the weights of what is left."""
    weights = dict(enumerate(weights)) if not isinstance(weights, dict) else weights
    result = {}
    for sequence in itertools.permutations((o for o, w in weights.items() if w > 0), k):
        probability, left = 1.0, sum(weights.values())
        for entry in sequence:
            probability *= weights[entry] / left
            left -= weights[entry]
        result[sequence] = probability
    return result


def given(distribution, condition):
    """The distribution of what satisfies a condition."""
    kept = {o: p for o, p in distribution.items() if condition(o)}
    total = sum(kept.values())
    return {o: p / total for o, p in kept.items()}


def image(distribution, function):
    """The distribution of a function of the outcome."""
    result = Counter()
    for outcome, probability in distribution.items():
        result[function(outcome)] += probability
    return dict(result)
