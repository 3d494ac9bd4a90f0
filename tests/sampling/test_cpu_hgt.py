"""The CPU backend of HGT sampling equals the reference, bit for bit."""

import pickle

import pytest
import torch
from cpu_cases import N, assert_equal, check_equal, graphs, one_type, request_of, requests
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.sampling import HGTSpec, ReferenceHGTSampler
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
        batches = [data.draw(requests(graph)) for _ in range(data.draw(st.integers(1, 3)))]
        check_equal(CPUHGTSampler(graph, spec), ReferenceHGTSampler(graph, spec), batches)
    finally:
        workspace.TABLE_OF_ALL_NODES = before


@pytest.mark.parametrize("limit", [None, 1, 50, 499, 500, 1024])
def test_many_neighbors_and_many_draws(limit):
    """Columns that are cut to a choice of neighbours, and numbers of samples beyond what the vector paths hold."""
    generator = torch.Generator().manual_seed(0)
    n = 1500
    row = torch.randint(0, n, (60_000,), generator=generator)
    col = torch.cat([torch.randint(0, n, (50_000,), generator=generator), torch.arange(10_000) % 20])
    graph = one_type(n, row, col)
    spec = HGTSpec(num_samples={N: (100, 300, 10)}, max_neighbors=limit)
    request = request_of(torch.cat([torch.arange(100), torch.tensor([3, 3, 7])]))
    expected = ReferenceHGTSampler(graph, spec).sample(request)
    sampler = CPUHGTSampler(graph, spec)
    assert_equal(sampler.sample(request), expected)
    assert_equal(pickle.loads(pickle.dumps(sampler)).sample(request), expected)
