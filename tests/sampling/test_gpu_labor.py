"""Layer-neighbour sampling on the GPU equals the reference, bit for bit; interpreted where there is no GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import E, graphs, one_type, request_of, requests, some_edges
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_gpu_sampler import DEVICE, few_programs  # noqa: F401  # a fixture
from test_labor import assert_same

from manyhop.errors import InputError
from manyhop.graph import place
from manyhop.sampling import GPULaborSampler, LaborSpec, ReferenceLaborSampler
from manyhop.sampling.gpu import labor


@pytest.fixture(autouse=True)
def few_labor_programs(monkeypatch):
    """The interpreter takes its time for every program."""
    if DEVICE == "cpu":
        for name, value in (("CHUNKS", 4), ("PROGRAMS", 8)):
            monkeypatch.setattr(labor, name, value)


@st.composite
def specs(draw, graph, *, weighted):
    num_hops = draw(st.integers(0, 3 if DEVICE == "cuda" else 2))
    fanout = st.tuples(*[st.sampled_from([-1, 0, 1, 2, 3, 5, 17, 40])] * num_hops)
    return LaborSpec(
        fanouts={t: draw(fanout) for t in graph.edge_types},
        method=draw(st.sampled_from(["poisson", "exact"])),
        layer_dependency=draw(st.booleans()),
        batch_dependency=draw(st.sampled_from([1, 1, 0, 5])),
        weighted=weighted,
        expand=draw(st.sampled_from(["new", "all"])),
    )


@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=15 if DEVICE == "cuda" else 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_equals_the_reference(weighted, data):
    graph = data.draw(graphs(weighted=weighted))
    if weighted and all(csc.weight is None for csc in graph.csc.values()):
        return
    spec = data.draw(specs(graph, weighted=weighted))
    sampler, reference = GPULaborSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceLaborSampler(graph, spec)
    for _ in range(2):  # the second launch meets what the first left in the workspace
        batches = [data.draw(requests(graph)) for _ in range(data.draw(st.integers(1, 2)))]
        batches = [replace(r, exclude=some_edges(data.draw, graph)) if data.draw(st.booleans()) else r for r in batches]
        for sample, request in zip(sampler.begin(batches).finish(), batches, strict=True):
            assert_same(sample, reference.sample(request))


def hub_graph(hub=1100, num_nodes=60, num_edges=700):
    """Columns of up to 32 entries, up to 256, more, and of several blocks; equal keys, since edges are parallel."""
    rng = np.random.default_rng(4)
    dst = np.concatenate([(num_nodes * rng.random(num_edges) ** 2).astype(np.int64), np.full(hub, 5), np.full(300, 1)])
    src = rng.integers(0, num_nodes, dst.size)
    weight = np.where(rng.random(dst.size) < 0.2, 0.0, 100.0 ** rng.random(dst.size))
    return one_type(num_nodes, src, dst, weight=weight)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weighted": True, "fanouts": (300, 4)},
        {"method": "exact"},
        {"method": "exact", "weighted": True, "fanouts": (40, 2)},
    ],
    ids=str,
)
@pytest.mark.slow
def test_long_columns(monkeypatch, options):
    monkeypatch.setattr(labor, "ENTRY_TILE", 64)
    graph = hub_graph()
    spec = LaborSpec(**{"fanouts": (5, 3)} | options | {"fanouts": {E: options.get("fanouts", (5, 3))}})
    seeds = torch.tensor([5, 0, 1, 5, *range(30, 45)])
    wanted = [request_of(seeds[b:], b) for b in range(2)]
    sampler, reference = GPULaborSampler(place(graph, DEVICE), spec, device=DEVICE), ReferenceLaborSampler(graph, spec)
    for sample, request in zip(sampler.begin(wanted).finish(), wanted, strict=True):
        assert_same(sample, reference.sample(request))


@pytest.mark.parametrize("options", [{"importance": 1}, {"method": "exact", "replace": True}])
def test_what_is_not_there(options):
    with pytest.raises(InputError, match="CPULaborSampler"):
        GPULaborSampler(hub_graph(), LaborSpec(fanouts={E: (1,)}, **options), device=DEVICE)
