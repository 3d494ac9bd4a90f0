"""The GPU backend of neighbour sampling equals the reference, bit for bit, in every field, in all modes; in triton's
interpreter where there is no GPU."""

import pytest
import torch
from cpu_cases import assert_equal, graphs, requests, specs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhop.sampling import ReferenceSampler
from manyhop.sampling._gpu.sampler import GPUSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODES = {
    "uniform": ({}, {}, {}),
    "weighted": ({"weighted": True}, {"weighted": True}, {}),
    "temporal uniform": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True}),
    "temporal last": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True}),
    "window": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True, "window": True}),
    "last in a window": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True, "window": True}),
}


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_equals_the_reference(mode, data):
    graph_options, spec_options, request_options = MODES[mode]
    graph = data.draw(graphs(**graph_options))
    spec = data.draw(specs(graph, **spec_options))
    sampler, reference = GPUSampler(graph, spec, device=DEVICE), ReferenceSampler(graph, spec)
    for _ in range(data.draw(st.integers(1, 2))):  # the second launch meets what the first left in the workspace
        batches = [data.draw(requests(graph, **request_options)) for _ in range(data.draw(st.integers(1, 3)))]
        for sample, request in zip(sampler.begin(batches).finish(), batches, strict=True):
            assert_equal(sample, reference.sample(request))
