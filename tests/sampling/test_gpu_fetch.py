"""Neighbours and edge ids that are read from memory of the host, a part of the table after the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal
from test_gpu_sampler import DEVICE, few_programs  # noqa: F401  # a fixture

from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import (
    BatchKey,
    CPULaborSampler,
    GPULaborSampler,
    GPUSampler,
    LaborSpec,
    NeighborSpec,
    NodeRequest,
    ReferenceSampler,
)
from manyhop.sampling.gpu import labor
from manyhop.sampling.gpu.launch import plan

LARGE, SMALL = ("a", "x", "a"), ("a", "y", "a")


@pytest.fixture(autouse=True)
def windows(monkeypatch):
    """Tables are on the host, and larger than a window."""
    monkeypatch.setattr(plan, "WINDOW_BITS", 6)
    if DEVICE == "cpu":
        monkeypatch.setattr(plan, "is_on_host", lambda table, device: True)


def graph_of(num_nodes=50):
    rng = np.random.default_rng(3)

    def edges(n):
        row, col = (torch.from_numpy((num_nodes * rng.random(n) ** 2).astype(np.int64)) for _ in range(2))
        return EdgeInput(row=row, col=col)

    return build_graph({"a": num_nodes}, {LARGE: edges(700), SMALL: edges(40)})


def placed(graph):
    if DEVICE == "cpu":
        return graph
    on_host = {t: {"row": csc.row.pin_memory(), "perm": csc.perm.pin_memory()} for t, csc in graph.csc.items()}
    return replace(graph, csc={t: replace(csc, **on_host[t]) for t, csc in place(graph, DEVICE).csc.items()})


def requests():
    rng = np.random.default_rng(1)
    seeds = [torch.from_numpy(rng.integers(0, 50, n)) for n in (7, 1)]
    return [NodeRequest(key=BatchKey(3, 1, b), seeds={"a": s}) for b, s in enumerate(seeds)]


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"replace": True}], ids=str)
def test_tables_in_windows(options):
    """Beside a table that has but one, which is read at once."""
    graph, spec = graph_of(), NeighborSpec(fanouts={LARGE: (5, 4), SMALL: (2, 2)}, **options)
    assert graph.csc[LARGE].perm is not None
    sampler, reference = GPUSampler(placed(graph), spec, device=DEVICE), ReferenceSampler(graph, spec)
    assert sampler._plan.edges[:, -1].tolist() == [11, 0]
    for sample, request in zip(sampler.begin(requests()).finish(), requests(), strict=True):
        assert_equal(sample, reference.sample(request))


def test_edges_that_are_left_out():
    graph, spec = graph_of(), NeighborSpec(fanouts={LARGE: (5, 4), SMALL: (2, 2)})
    sampler, reference = GPUSampler(placed(graph), spec, device=DEVICE), ReferenceSampler(graph, spec)
    some = {LARGE: torch.arange(0, 700, 2)}
    for request in requests():
        request = NodeRequest(key=request.key, seeds=request.seeds, exclude=some)
        assert_equal(sampler.sample(request), reference.sample(request))


def test_layer_neighbor_sampling(monkeypatch):
    monkeypatch.setattr(labor, "CHUNKS", 4)
    graph, spec = graph_of(), LaborSpec(fanouts={LARGE: (5, 4), SMALL: (2, 2)})
    sampler, cpu = GPULaborSampler(placed(graph), spec, device=DEVICE), CPULaborSampler(graph, spec)
    for request in requests():
        assert_equal(sampler.sample(request), cpu.sample(request))


def test_ids_of_64_bits_are_read_at_once():
    graph = graph_of()
    wide = {
        t: type(csc)(num_src=50, colptr=csc.colptr, row=csc.row.long(), perm=csc.perm) for t, csc in graph.csc.items()
    }
    graph = type(graph)(num_nodes=graph.num_nodes, csc=wide)
    spec = NeighborSpec(fanouts={LARGE: (5, 4), SMALL: (2, 2)})
    sampler, reference = GPUSampler(placed(graph), spec, device=DEVICE), ReferenceSampler(graph, spec)
    assert not sampler._plan.edges[:, -1].any()
    for request in requests():
        assert_equal(sampler.sample(request), reference.sample(request))
