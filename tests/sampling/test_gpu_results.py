"""The memory of samples: of their size, or allocated before their sizes are known."""

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal
from test_gpu_sampler import DEVICE, few_programs  # noqa: F401  # a fixture

from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import BatchKey, GPUSampler, NeighborSpec, NodeRequest, ReferenceSampler
from manyhop.sampling.gpu import sampler as launches
from manyhop.sampling.gpu.launch import plan

TYPES = [("a", "x", "b"), ("b", "x", "a"), ("a", "y", "b")]


def graph_of(num_nodes=60, num_edges=500):
    rng = np.random.default_rng(3)

    def ends():
        return torch.from_numpy((num_nodes * rng.random(num_edges) ** 2).astype(np.int64))

    return build_graph({"a": num_nodes, "b": num_nodes}, {t: EdgeInput(row=ends(), col=ends()) for t in TYPES})


def request_of(num_seeds, batch=0, num_nodes=60):
    rng = np.random.default_rng(batch)
    seeds = {t: torch.from_numpy(rng.integers(0, num_nodes, num_seeds)) for t in "ba"}
    return NodeRequest(key=BatchKey(3, 1, batch), seeds=seeds)


def spec_of(*fanouts, **options):
    return NeighborSpec(fanouts=dict.fromkeys(TYPES, fanouts), **options)


def begin(sampler, requests):
    """The launch, and whether there is memory for its samples already."""
    pending = sampler.begin(requests)
    (launch,) = pending._launches
    return pending, launch._results is not None


@pytest.mark.parametrize("options", [{}, {"disjoint": True}], ids=str)
@pytest.mark.slow
def test_memory_ahead_of_sizes(monkeypatch, options):
    """Batches of several allocations, of different sizes; and launches that are begun before others are finished."""
    monkeypatch.setattr(launches, "MIN_FILL_RATIO", 0)
    graph, spec = graph_of(), spec_of(3, 2, **options)
    sampler, reference = GPUSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceSampler(graph, spec)
    sizes = (8, 1, 0, 5, 7)
    groups = [[request_of(n, 10 * g + b) for b, n in enumerate(sizes)] for g in range(2)]
    sampler.begin(groups[0]).finish()
    begun = [begin(sampler, requests) for requests in groups]
    assert all(ahead for _, ahead in begun)
    for (pending, _), requests in zip(begun, groups, strict=True):
        for sample, request in zip(pending.finish(), requests, strict=True):
            assert_equal(sample, reference.sample(request))
            for edge_type in TYPES:
                assert sample.edge_index(edge_type).data_ptr() == sample.row[edge_type].data_ptr()
    fewer, ahead = begin(sampler, groups[0][:4])
    assert not ahead
    fewer.finish()


def test_memory_ahead_that_is_too_small(monkeypatch):
    """The launch is made again, with memory of its own."""
    monkeypatch.setattr(launches, "MIN_FILL_RATIO", 0)
    graph, spec = graph_of(), spec_of(-1, 3)
    sampler, reference = GPUSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceSampler(graph, spec)
    sampler.sample(request_of(40))
    (pool,) = sampler._pools.values()
    small = pool._capacity = plan.Capacity(np.full((3, 2), 64), np.full((3, 3), 8))
    pool._free.clear()
    request = request_of(40, 1)
    pending, ahead = begin(sampler, [request])
    assert ahead
    assert_equal(pending.finish()[0], reference.sample(request))
    assert pool._capacity is not small


def test_little_memory_is_left_over(monkeypatch):
    """Samples that fill little of the room of a launch have memory of their size, unless that is little, too."""
    sampler = GPUSampler(place(graph_of(), DEVICE), spec_of(3, 2), device=DEVICE)
    begin(sampler, [request_of(2)])[0].finish()
    for batch in range(3):
        pending, ahead = begin(sampler, [request_of(2, batch)])
        assert ahead
        pending.finish()
        monkeypatch.setattr(launches, "SMALL_RESULTS", 0)
        pending, ahead = begin(sampler, [request_of(2, batch)])
        monkeypatch.undo()
        assert not ahead
        (sample,) = pending.finish()
        numbers = 3 * sum(row.numel() for row in sample.row.values()) + sum(n.numel() for n in sample.node.values())
        assert sample.node["a"].untyped_storage().nbytes() == 8 * numbers
    (pool,) = sampler._pools.values()
    assert 0 < pool._fill_ratio < launches.MIN_FILL_RATIO


def test_samples_may_be_changed_one_by_one():
    sampler = GPUSampler(place(graph_of(), DEVICE), spec_of(3, 2), device=DEVICE)
    first, second = sampler.begin([request_of(4), request_of(4, 1)]).finish()
    first.node["a"].add_(1)
    first.row[TYPES[0]].zero_()
    assert second.node["a"]._version == first.node["b"]._version == first.col[TYPES[0]]._version == 0


def test_samplers_begun_in_inference_mode():
    """What launches write to may be written to in any mode."""
    sampler = GPUSampler(place(graph_of(), DEVICE), spec_of(3), device=DEVICE)
    with torch.inference_mode():
        sampler.sample(request_of(4))
        first = sampler.sample(request_of(4))
    again = sampler.sample(request_of(4))
    assert torch.equal(first.node["a"], again.node["a"])
