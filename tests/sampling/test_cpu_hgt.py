"""The CPU backend of HGT sampling equals the reference, bit for bit."""

import pickle

import pytest
import torch
from cpu_cases import assert_equal, graphs, requests
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.sampling import BatchKey, HGTSpec, NodeRequest, ReferenceHGTSampler
from manyhop.sampling.cpu import workspace
from manyhop.sampling.cpu.hgt_sampler import CPUHGTSampler


@settings(max_examples=100, deadline=None)
@given(data=st.data(), all_hashed=st.booleans())
def test_equals_the_reference(data, all_hashed):
    graph = data.draw(graphs())
    num_hops = data.draw(st.integers(0, 3))
    numbers = st.tuples(*[st.sampled_from([0, 1, 2, 4, 40])] * num_hops)
    limit = data.draw(st.sampled_from([None, 1, 2, 3, 5, 17, 50]))
    spec = HGTSpec(num_samples={t: data.draw(numbers) for t in graph.node_types}, max_neighbors=limit)
    before, workspace.TABLE_OF_ALL_NODES = workspace.TABLE_OF_ALL_NODES, 0 if all_hashed else 1 << 25
    try:
        sampler = CPUHGTSampler(graph, spec)
        for _ in range(data.draw(st.integers(1, 3))):
            request = data.draw(requests(graph))
            assert_equal(sampler.sample(request), ReferenceHGTSampler(graph, spec).sample(request))
    finally:
        workspace.TABLE_OF_ALL_NODES = before


@pytest.mark.parametrize("limit", [None, 1, 50, 499, 500, 1024])
def test_many_neighbors_and_many_draws(limit):
    """Columns that are cut to a choice of neighbours, and numbers of samples beyond what the vector paths hold."""
    generator = torch.Generator().manual_seed(0)
    n = 1500
    row = torch.randint(0, n, (60_000,), generator=generator)
    col = torch.cat([torch.randint(0, n, (50_000,), generator=generator), torch.arange(10_000) % 20])
    graph = build_graph({HOMOGENEOUS_NODE: n}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, col=col)})
    spec = HGTSpec(num_samples={HOMOGENEOUS_NODE: (100, 300, 10)}, max_neighbors=limit)
    seeds = torch.cat([torch.arange(100), torch.tensor([3, 3, 7])])
    request = NodeRequest(key=BatchKey(1, 2, 3), seeds={HOMOGENEOUS_NODE: seeds})
    expected = ReferenceHGTSampler(graph, spec).sample(request)
    sampler = CPUHGTSampler(graph, spec)
    assert_equal(sampler.sample(request), expected)
    assert_equal(pickle.loads(pickle.dumps(sampler)).sample(request), expected)
