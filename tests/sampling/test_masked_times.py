"""Edges that a mask lets through, with times: every backend samples them as a graph that has no others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal, request_of, spec_of, times

from manyhop.errors import GraphError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph, place, with_mask
from manyhop.sampling import CPUSampler, GPUSampler, ReferenceSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_NODES, NUM_EDGES = 40, 600


def edges(which=slice(None), **options):
    rng = np.random.default_rng(1)
    row, col = (torch.from_numpy(rng.integers(0, NUM_NODES, NUM_EDGES)) for _ in range(2))
    edge = EdgeInput(row=row[which], col=col[which], time=torch.from_numpy(times(rng, NUM_EDGES))[which])
    return build_graph({HOMOGENEOUS_NODE: NUM_NODES}, {HOMOGENEOUS_EDGE: replace(edge, **options)})


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"temporal": "last"}], ids=str)
@pytest.mark.parametrize("some", ["half", "none"])
def test_equal_to_a_graph_without_the_others(backend, options, some):
    mask = torch.arange(NUM_EDGES) % 2 == 0 if some == "half" else torch.zeros(NUM_EDGES, dtype=torch.bool)
    masked, fewer = with_mask(edges(), {HOMOGENEOUS_EDGE: mask}), edges(mask)
    spec = spec_of(4, 3, disjoint=True, **({"temporal": "uniform"} | options))
    if backend == "gpu":
        sampler = GPUSampler(place(masked, DEVICE), spec, device=DEVICE)
    else:
        sampler = (CPUSampler if backend == "cpu" else ReferenceSampler)(masked, spec)
    request = request_of([3, 3, 7, 11, 0, 39], time_max={HOMOGENEOUS_NODE: torch.tensor([3, 0, 5, 6, -2, 4])})
    expected = ReferenceSampler(fewer, spec).sample(request)
    ids = mask.nonzero().view(-1)[expected.edge_id[HOMOGENEOUS_EDGE]]
    assert (ids.numel() > 20) == (some == "half")
    assert_equal(sampler.sample(request), replace(expected, edge_id={HOMOGENEOUS_EDGE: ids}))


def test_edges_with_weights_are_masked_before():
    weighted = edges(time=None, weight=torch.ones(NUM_EDGES))
    with pytest.raises(GraphError, match="Mask first, then add weights"):
        with_mask(weighted, {HOMOGENEOUS_EDGE: torch.ones(NUM_EDGES, dtype=torch.bool)})
