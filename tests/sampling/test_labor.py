"""Layer-neighbour sampling: the CPU backend equals the reference, bit for bit, and both do what LABOR is."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import E, N, assert_equal, check_equal, graphs, one_type, request_of, requests, some_edges
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cpu_sampler import larger_graph, larger_request

from manyhop.errors import GraphError, InputError
from manyhop.sampling import BatchKey, CPULaborSampler, LaborSpec, ReferenceLaborSampler

BACKENDS = [ReferenceLaborSampler, CPULaborSampler]


@st.composite
def specs(draw, graph, *, weighted):
    num_hops = draw(st.integers(0, 3))
    fanout = st.tuples(*[st.sampled_from([-1, 0, 1, 2, 3, 5, 17, 40])] * num_hops)
    exact = draw(st.booleans())
    return LaborSpec(
        fanouts={t: draw(fanout) for t in graph.edge_types},
        method="exact" if exact else "poisson",
        importance=0 if exact else draw(st.sampled_from([0, 0, 1, 2, -1])),
        layer_dependency=draw(st.booleans()),
        batch_dependency=draw(st.sampled_from([1, 1, 0, 2, 5])),
        weighted=weighted,
        replace=exact and draw(st.booleans()),
        expand=draw(st.sampled_from(["new", "all"])),
    )


def assert_same(got, expected):
    assert_equal(got, expected)
    assert (got.edge_weight is None) == (expected.edge_weight is None)
    for edge_type, weight in (expected.edge_weight or {}).items():
        assert got.edge_weight[edge_type].dtype == torch.float32
        assert got.edge_weight[edge_type].view(torch.int32).tolist() == weight.view(torch.int32).tolist()


@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_equals_the_reference(weighted, data):
    graph = data.draw(graphs(weighted=weighted))
    if weighted and all(csc.weight is None for csc in graph.csc.values()):
        return
    spec = data.draw(specs(graph, weighted=weighted))
    sampler, reference = CPULaborSampler(graph, spec), ReferenceLaborSampler(graph, spec)
    batches = [data.draw(requests(graph)) for _ in range(data.draw(st.integers(1, 3)))]
    batches = [replace(r, exclude=some_edges(data.draw, graph)) if data.draw(st.booleans()) else r for r in batches]
    check_equal(sampler, reference, batches, assert_same)


@pytest.mark.parametrize(
    "options",
    [
        {"fanouts": (15, 5)},
        {"fanouts": (15, 5), "importance": 1},
        {"fanouts": (7, 3), "importance": -1, "expand": "new"},
        {"fanouts": (5, 3), "weighted": True},
        {"fanouts": (5, 3), "weighted": True, "importance": 2},
        {"fanouts": (15, 5), "method": "exact"},
        {"fanouts": (300, 2), "method": "exact", "weighted": True},
        {"fanouts": (5, 3), "method": "exact", "replace": True},
        {"fanouts": (-1, 2), "batch_dependency": 3, "layer_dependency": True},
    ],
    ids=str,
)
def test_batches_of_many_chunks(options):
    graph = larger_graph(2000, 30_000, 3000, weighted="weighted" in options)
    spec = LaborSpec(**options | {"fanouts": {E: options["fanouts"]}})
    sampler, reference = CPULaborSampler(graph, spec), ReferenceLaborSampler(graph, spec)
    check_equal(sampler, reference, [larger_request(graph, n, b) for b, n in enumerate([300, 40])], assert_same)


def test_more_picks_with_replacement_than_there_are_edges():
    """The largest degree is no bound for these."""
    graph = one_type(4, [1, 2, 3], [0, 0, 0])
    spec = LaborSpec(fanouts={E: (70_000,)}, method="exact", replace=True)
    expected = ReferenceLaborSampler(graph, spec).sample(request_of([0]))
    assert expected.row[E].numel() == 70_000
    assert_same(CPULaborSampler(graph, spec).sample(request_of([0])), expected)


def test_threads_and_processes():
    graph = larger_graph()
    sampler = CPULaborSampler(graph, LaborSpec(fanouts={E: (10, 5)}, importance=1))
    wanted = [larger_request(graph, 100, batch) for batch in range(8)]
    expected = [sampler.sample(request) for request in wanted]
    with ThreadPoolExecutor(4) as pool:
        for got, sample in zip(pool.map(sampler.sample, wanted), expected, strict=True):
            assert_same(got, sample)
    assert_same(pickle.loads(pickle.dumps(sampler)).sample(wanted[0]), expected[0])


def two_stars(d=40, shared=30):
    """Nodes 0 and 1, whose neighbours are 2 and following, ``d`` each, of which they share some."""
    first, second = torch.arange(d) + 2, torch.arange(d) + 2 + d - shared
    row, col = torch.cat([first, second]), torch.arange(2).repeat_interleave(d)
    return one_type(2 + 2 * d, row, col, weight=1 + torch.arange(2 * d).double() % 7)


def sample(backend, graph, batch=0, seeds=(0, 1), seed=0, fanouts=(8,), **options):
    spec = LaborSpec(fanouts={E: fanouts}, **options)
    return backend(graph, spec).sample(request_of(seeds, key=BatchKey(seed, 0, batch)))


def neighbors(got, dst):
    row, col = got.row[E], got.col[E]
    return set(got.node[N][row[col == dst]].tolist())


@pytest.mark.parametrize("backend", BACKENDS)
class TestWhatLaborIs:
    """Its distribution: see test_labor_distributions.py."""

    def test_copies_of_a_seed_pick_the_same(self, backend):
        got = sample(backend, two_stars(), seeds=(0, 1, 0))
        assert neighbors(got, 0) == neighbors(got, 2) != neighbors(got, 1)

    def test_importance_prefers_what_many_share(self, backend):
        """Where a node of few neighbours takes most of them, one of many neighbours relies on those."""
        graph = one_type(42, torch.cat([torch.arange(40), torch.arange(10)]) + 2, torch.arange(50) // 40)

        def nodes(importance):
            samples = [sample(backend, graph, batch, importance=importance) for batch in range(60)]
            return np.mean([s.node[N].numel() for s in samples])

        assert nodes(0) > nodes(1) + 1 > nodes(-1) + 1

    @pytest.mark.parametrize("options", [{"importance": 1}, {"weighted": True}, {"weighted": True, "importance": -1}])
    def test_weights_of_edges_are_one_on_average(self, backend, options):
        got = sample(backend, two_stars(), **options)
        weight, col = got.edge_weight[E], got.col[E]
        for dst in (0, 1):
            assert weight[col == dst].mean() == pytest.approx(1)

    def test_all_neighbours(self, backend):
        got = sample(backend, two_stars(), fanouts=(-1,), weighted=True)
        share = 1 + torch.arange(80) % 7
        assert got.edge_id[E].tolist() == list(range(80))
        expected = torch.cat([share[:40] / share[:40].float().mean(), share[40:] / share[40:].float().mean()])
        assert torch.allclose(got.edge_weight[E], expected)


class TestErrors:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "other"}, "method"),
            ({"expand": "some"}, "expand"),
            ({"importance": -2}, "importance"),
            ({"batch_dependency": -1}, "batch_dependency"),
            ({"method": "exact", "importance": 1}, "Importance"),
            ({"replace": True}, "Poisson"),
            ({"fanouts": {E: (-2,)}}, "fanouts"),
            ({"fanouts": {}}, "missing"),
        ],
    )
    def test_specs(self, backend, options, message):
        with pytest.raises(InputError, match=message):
            backend(two_stars(), LaborSpec(**{"fanouts": {E: (1,)}} | options))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_no_weights(self, backend):
        with pytest.raises(GraphError, match="weights"):
            backend(larger_graph(10, 20, 1), LaborSpec(fanouts={E: (1,)}, weighted=True))
