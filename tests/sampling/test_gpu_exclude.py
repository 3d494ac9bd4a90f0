"""Excluded edges on the GPU: equal to the reference, bit for bit; in triton's interpreter where there is no GPU."""

from dataclasses import replace

import pytest
import torch
from cpu_cases import MODES, assert_equal, graphs, requests, some_edges, specs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_gpu_sampler import (
    DEVICE,
    assert_all_equal,
    few_programs,  # noqa: F401  # a fixture
    request_of,
    sampler_of,
    small_graph,
    smaller,
    spec_of,
)

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, place
from manyhop.sampling import BatchKey, EdgeRequest, EdgeSampler, GPUEdgeSampler, GPUSampler, ReferenceSampler
from manyhop.sampling.gpu.launch import sequence


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12 if DEVICE == "cuda" else 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_equals_the_reference(mode, data):
    graph_options, spec_options, request_options = MODES[mode]
    graph = data.draw(graphs(**graph_options))
    spec = smaller(data.draw(specs(graph, **spec_options)))
    sampler, reference = GPUSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceSampler(graph, spec)
    for _ in range(2):  # the second launch meets what the first left in the workspace
        batches = [data.draw(requests(graph, **request_options)) for _ in range(data.draw(st.integers(1, 2)))]
        batches = [replace(r, exclude=some_edges(data.draw, graph)) if data.draw(st.booleans()) else r for r in batches]
        for sample, request in zip(sampler.begin(batches).finish(), batches, strict=True):
            assert_equal(sample, reference.sample(request))


def without(request, picked, device="cpu"):
    return replace(request, exclude={HOMOGENEOUS_EDGE: picked[::3].flip(0).to(device)})


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"expand": "all"}], ids=str)
@pytest.mark.slow
def test_several_programs(monkeypatch, options):
    """Edges move over those that other programs drop; ids may lie on the GPU; launches with and without alternate."""
    for tile in ("COUNT_TILE", "EMIT_TILE", "ENTER_TILE", "FINISH_TILE"):
        monkeypatch.setattr(sequence, tile, 128)
    graph, spec = small_graph(), spec_of(4, 3, **options)
    sampler, plain = sampler_of(graph, spec), [request_of(140), request_of(20, 1)]
    picked = [ReferenceSampler(graph, spec).sample(request).edge_id[HOMOGENEOUS_EDGE] for request in plain]
    assert_all_equal(sampler, plain)
    batches = [without(request, ids) for request, ids in zip(plain, picked, strict=True)]
    assert_all_equal(sampler, [batches[0], plain[1]])
    on_device = [without(plain[0], picked[0], DEVICE), plain[1]]
    for got, request in zip(sampler.begin(on_device).finish(), [batches[0], plain[1]], strict=True):
        assert_equal(got, ReferenceSampler(graph, spec).sample(request))
    assert_all_equal(sampler, plain)


@pytest.mark.parametrize("kept", [0, 3])
def test_all_edges_but_a_few(kept):
    """The second hop ends with fewer edges than the first one picks: that must fit in each launch, as in the first."""
    graph, spec = small_graph(), spec_of(4, 3)
    ids = torch.arange(graph.csc[HOMOGENEOUS_EDGE].row.numel() - kept)
    sampler, request = sampler_of(graph, spec), replace(request_of(140), exclude={HOMOGENEOUS_EDGE: ids})
    for _ in range(3):
        assert_all_equal(sampler, [request])
        assert all((pool._capacity.edges[-1] >= pool._capacity.edges).all() for pool in sampler._pools.values())


def test_around_seed_edges():
    graph, spec = small_graph(), spec_of(4, 3)
    edges = torch.arange(0, 60, 3)
    csc = graph.csc[HOMOGENEOUS_EDGE]
    dst = torch.repeat_interleave(torch.arange(150), csc.colptr.diff())
    src, dst, ids = csc.row[edges].long(), dst[edges], csc.perm[edges].long()
    request = EdgeRequest(
        key=BatchKey(0, 0, 1), edge_type=HOMOGENEOUS_EDGE, src=src, dst=dst, exclude={HOMOGENEOUS_EDGE: ids}
    )
    sampler = sampler_of(graph, spec)
    got = GPUEdgeSampler(sampler, sampler.graph, HOMOGENEOUS_EDGE, device=DEVICE).sample(request)
    expected = EdgeSampler(ReferenceSampler(graph, spec), graph, HOMOGENEOUS_EDGE).sample(request)
    assert_equal(got.subgraph, expected.subgraph)
    assert not torch.isin(got.subgraph.edge_id[HOMOGENEOUS_EDGE].cpu(), ids).any()
    assert got.subgraph.node[HOMOGENEOUS_NODE].numel() > 0
