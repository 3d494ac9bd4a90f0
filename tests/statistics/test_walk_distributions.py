"""Random walks have exactly the distribution of their spec."""

import pytest
import torch
from chi_square import check
from cpu_cases import one_type

from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.sampling import BatchKey, CPUWalkSampler, WalkRequest, WalkSpec

# (neighbour, node, weight): 0 and 1 with two edges between them, 4 with an edge out only, 3 with one in only
EDGES = [(1, 0, 1.0), (1, 0, 2.0), (2, 0, 1.0), (0, 1, 3.0), (2, 1, 1.0), (0, 2, 1.0), (1, 2, 0.5), (3, 2, 1.0),
         (0, 4, 1.0), (2, 4, 2.0)]  # fmt: skip
IN = {v: [(u, w) for u, x, w in EDGES if x == v] for v in range(5)}
START = 4


def graph():
    row, col, weight = (torch.tensor(column) for column in zip(*EDGES, strict=True))
    return one_type(5, row, col, weight=weight)


def exact(spec):
    """Every walk from ``START``, with its probability."""
    walks = {(START,): 1.0}
    for t in range(len(spec.steps)):
        longer: dict = {}
        for walk, probability in walks.items():
            now, stop = walk[-1], 0.0 if spec.stop is None else spec.stop[t]
            share = {}
            for u, w in IN.get(now, []):
                bias = 1.0
                if t > 0:
                    back, near = u == walk[-2], any(x == walk[-2] for x, _ in IN[u])
                    bias = 1 / spec.p if back else 1.0 if near else 1 / spec.q
                share[u] = share.get(u, 0.0) + bias * (w if spec.weighted else 1.0)
            if not share or stop > 0:
                end = (*walk, -1)
                longer[end] = longer.get(end, 0.0) + probability * (stop if share else 1.0)
            for u, s in share.items():
                longer[(*walk, u)] = probability * (1 - stop) * s / sum(share.values())
        walks = longer
    return walks


@pytest.mark.parametrize(
    "options",
    [{"q": 0.2}, {"p": 0.2, "q": 3.0, "weighted": True}, {"p": 400.0, "q": 1.5}, {"stop": (0.1, 0.5, 0.0)}],
    ids=str,
)
def test_walks(options):
    spec = WalkSpec(steps=(EDGE,) * 3, **options)

    def outcomes(spec, n):
        sampler = CPUWalkSampler(graph(), spec)
        request = WalkRequest(key=BatchKey(11, 0, 0), start=torch.full((n,), START))
        return list(map(tuple, sampler.sample(request).node.tolist()))

    check(exact(spec), outcomes(spec, 20_000), outcomes(WalkSpec(steps=spec.steps), 20_000))
