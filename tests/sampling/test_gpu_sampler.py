"""The GPU backend of neighbour sampling equals the reference, bit for bit, in every field, in all modes; in triton's
interpreter where there is no GPU."""

from dataclasses import replace

import fast_interpreter  # noqa: F401
import pytest
import torch
from cpu_cases import assert_equal, graphs, requests, specs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhop.graph import place
from manyhop.sampling import GPUSampler, ReferenceSampler
from manyhop.sampling._gpu import workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODES = {
    "uniform": ({}, {}, {}),
    "weighted": ({"weighted": True}, {"weighted": True}, {}),
    "temporal uniform": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True}),
    "temporal last": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True}),
    "window": ({"timed": True}, {"temporal": "uniform", "disjoint": True}, {"timed": True, "window": True}),
    "last in a window": ({"timed": True}, {"temporal": "last", "disjoint": True}, {"timed": True, "window": True}),
}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter takes its time for every program."""
    if DEVICE == "cpu":
        for tile in ("COUNT_TILE", "EMIT_TILE", "ENTER_TILE", "SPREAD_TILE", "FINISH_TILE"):
            monkeypatch.setattr(workspace, tile, 1024)
        monkeypatch.setattr(workspace, "PROGRAMS", 8)


def smaller(spec):
    """What the interpreter has time for: two hops, no large fan-outs but one."""
    if DEVICE == "cuda":
        return spec
    return replace(
        spec, fanouts={t: tuple(min(k, 33 if i else 5) for i, k in enumerate(f[:2])) for t, f in spec.fanouts.items()}
    )


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40 if DEVICE == "cuda" else 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_equals_the_reference(mode, data):
    graph_options, spec_options, request_options = MODES[mode]
    graph = data.draw(graphs(**graph_options))
    spec = smaller(data.draw(specs(graph, **spec_options)))
    sampler, reference = GPUSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceSampler(graph, spec)
    for _ in range(2):  # the second launch meets what the first left in the workspace
        batches = [data.draw(requests(graph, **request_options)) for _ in range(data.draw(st.integers(1, 2)))]
        for sample, request in zip(sampler.begin(batches).finish(), batches, strict=True):
            assert_equal(sample, reference.sample(request))
