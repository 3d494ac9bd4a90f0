"""The CPU backend equals the reference, bit for bit, in every field, in all modes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal, graphs, requests, specs
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.sampling import ReferenceSampler, _cpu_workspace
from manyhop.sampling._cpu_sampler import CPUSampler

MODES = {
    "uniform": ({}, {}, {}),
    "weighted": ({"weighted": True}, {"weighted": True}, {}),
    "temporal uniform": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True}),
    "temporal last": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True}),
    "window": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True, "window": True}),
    "last in a window": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True, "window": True}),
}


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_the_reference(mode, data):
    graph_options, spec_options, request_options = MODES[mode]
    graph = data.draw(graphs(**graph_options))
    spec = data.draw(specs(graph, **spec_options))
    sampler, reference = CPUSampler(graph, spec), ReferenceSampler(graph, spec)
    for _ in range(data.draw(st.integers(1, 3))):  # the second batch meets what the first left in the workspace
        request = data.draw(requests(graph, **request_options))
        assert_equal(sampler.sample(request), reference.sample(request))
