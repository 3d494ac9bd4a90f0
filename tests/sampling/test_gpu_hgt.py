"""The GPU backend of HGT sampling equals the reference, bit for bit; in triton's interpreter where there is no GPU."""

import weakref

import numpy as np
import pytest
import torch
from cpu_cases import N, assert_equal, graphs, one_type, request_of, requests
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.errors import InputError
from manyhop.graph import place
from manyhop.sampling import BatchKey, HGTSpec, ReferenceHGTSampler
from manyhop.sampling.gpu.hgt import GPUHGTSampler
from manyhop.sampling.gpu.kernels import hgt as kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check(graph, spec, batches):
    sampler, reference = GPUHGTSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceHGTSampler(graph, spec)
    got = sampler.begin(batches).finish()
    assert len(got) == len(batches)
    for a, request in zip(got, batches, strict=True):
        assert_equal(a, reference.sample(request))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_equals_the_reference(data):
    graph = data.draw(graphs())
    num_hops = data.draw(st.integers(0, 3))
    numbers = st.tuples(*[st.sampled_from([0, 1, 2, 4, 40])] * num_hops)
    limit = data.draw(st.sampled_from([1, 2, 3, 5, 17, 50]))
    spec = HGTSpec(num_samples={t: data.draw(numbers) for t in graph.node_types}, max_neighbors=limit)
    check(graph, spec, [data.draw(requests(graph)) for _ in range(data.draw(st.integers(1, 3)))])


def hubs(n=400):
    """Columns of more neighbours than are looked at, and copies of seeds."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(0, n, (12_000,), generator=generator)
    col = torch.cat([torch.randint(0, n, (8000,), generator=generator), torch.arange(4000) % 20])
    seeds = torch.tensor([3, 5, 3, 100, 7, 3])
    return one_type(n, row, col), [request_of(seeds + b, b) for b in range(2)]


@pytest.mark.parametrize(("num_samples", "limit"), [((20, 70, 10), 50), ((1, 1), 1), ((9, 9), 200)])
def test_many_neighbors_and_many_draws(num_samples, limit):
    graph, batches = hubs()
    check(graph, HGTSpec(num_samples={N: num_samples}, max_neighbors=limit), batches)


def test_one_candidate_outweighs_the_others():
    """Draws that hit picked candidates sixteen times, so that what is left is scanned."""
    n = 60
    row = torch.cat([torch.zeros(3000).long(), torch.arange(n)])
    col = torch.cat([torch.arange(3000) % n, torch.arange(n).flip(0)])
    batches = [request_of(torch.arange(40, 55), b, key=BatchKey(0, 0, b)) for b in range(2)]
    check(one_type(n, row, col), HGTSpec(num_samples={N: (9, 5)}), batches)


def test_nothing_keeps_a_sampler():
    """Its graph is in the memory of the GPU, which the garbage collector does not watch."""
    graph, batches = hubs()
    sampler = GPUHGTSampler(place(graph, DEVICE), HGTSpec(num_samples={N: (3,)}), device=DEVICE)
    sampler.begin(batches).finish()
    gone = weakref.ref(sampler)
    del sampler
    assert gone() is None


class TestRequests:
    def test_no_limit(self):
        with pytest.raises(InputError, match="max_neighbors"):
            GPUHGTSampler(hubs()[0], HGTSpec(num_samples={"_N": (3,)}, max_neighbors=None), device=DEVICE)

    def test_none(self):
        graph, _ = hubs()
        with pytest.raises(InputError, match="at least one request"):
            GPUHGTSampler(place(graph, DEVICE), HGTSpec(num_samples={"_N": (3,)}), device=DEVICE).begin([])

    def test_wrong_ids(self):
        graph, _ = hubs()
        sampler = GPUHGTSampler(place(graph, DEVICE), HGTSpec(num_samples={"_N": (3,)}), device=DEVICE)
        with pytest.raises(InputError, match="got 400"):
            sampler.sample(request_of(torch.tensor([400], device=DEVICE)))


def numbers(kind, n):
    rng = np.random.default_rng(n)
    return {
        "random": rng.random(n) ** 2,
        "halfway": rng.integers(0, 8, n) * 2.0 ** rng.integers(-54, -48, n),
        "wide": 10.0 ** rng.integers(-30, 30, n),
        "zeros first": np.where(np.arange(n) < n - 300, 0.0, rng.random(n)),
        "growing": 1.001 ** np.arange(n),
        "budgets": (1.0 / rng.integers(1, 51, n) + 1.0 / rng.integers(1, 51, n)) ** 2,
    }[kind]


@pytest.mark.parametrize("kind", ["random", "halfway", "wide", "zeros first", "growing", "budgets"])
@pytest.mark.parametrize("n", [0, 1, 100, 5000])
def test_running_sums_round_after_each_addition(kind, n):
    values = numbers(kind, n)
    scope = torch.zeros((1, kernels.SCOPE_COLUMNS.value), dtype=torch.int64)
    scope[0, kernels.LIST_END.value] = n
    counts = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    sums = torch.zeros(n + 1, dtype=torch.float64, device=DEVICE)
    number = torch.arange(1, n + 1, device=DEVICE)
    square = torch.from_numpy(values).to(DEVICE)
    kernels.sum_squares[(1,)](scope.to(DEVICE), counts, 1, number, square, sums, T=256)
    assert counts.tolist() == [0, 0, n]
    assert sums[:n].tolist() == np.cumsum(values).tolist()
