"""Samples by cuGraph's rules, from a stand-in of pylibcugraph: their structure is that of the contract."""

import sys

import cugraph_stand_in
import numpy as np
import pytest
import torch
from cpu_cases import E, N, one_type, request_of, spec_of
from reference_worlds import SEEDS, SPECS, TYPES, check, fanouts, make_world, request

from manyhop.errors import InputError
from manyhop.sampling import NeighborSpec
from manyhop_cugraph.engine import CuGraphSampler
from manyhop_cugraph.graph import SpreadGraph

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def pylibcugraph(monkeypatch):
    monkeypatch.setitem(sys.modules, "pylibcugraph", None)
    return cugraph_stand_in.install(monkeypatch.setattr)


def sampler_of(graph, spec):
    return CuGraphSampler(SpreadGraph(graph, CPU, timeout=10), spec)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("fan", [(2, 3), (-1, 2), (0, 2), (3, 0, 1), (1,)])
def test_samples_have_the_structure_of_the_contract(kind, fan):
    for seed in range(3):
        world = make_world(seed, weights=kind == "weighted")
        spec = NeighborSpec(fanouts=fanouts(*fan), **SPECS[kind])
        asked = [request(seeds, batch) for batch, seeds in enumerate(SEEDS)]
        sampler = sampler_of(world.graph, spec)
        before = len(cugraph_stand_in.calls)
        for one, sample in zip(asked, sampler.begin(asked).finish(), strict=True):
            check(world, spec, one.seeds, sample)
        asks = fan[0] != 0 or (kind == "all" and any(fan))
        assert len(cugraph_stand_in.calls) == before + asks, "all batches in one call"


def test_different_fanouts_of_types():
    world = make_world(4)
    spec = NeighborSpec(fanouts=dict(zip(TYPES, [(1, 2), (0, -1), (3, 0), (2, 2)], strict=True)))
    asked = [request(seeds, batch) for batch, seeds in enumerate(SEEDS)]
    for one, sample in zip(asked, sampler_of(world.graph, spec).begin(asked).finish(), strict=True):
        check(world, spec, one.seeds, sample)


def homogeneous(num_nodes=40, num_edges=300, **columns):
    row, col = np.random.default_rng(0).integers(0, num_nodes, (2, num_edges))
    return row, col, one_type(num_nodes, row, col, **columns)


def test_calls_are_bounded():
    _, _, graph = homogeneous()
    spec = spec_of(2, 2)
    sampler = sampler_of(graph, spec)
    asked = [request({N: [k, k + 1]}, k) for k in range(10)]
    sampler.capacity = 6
    del cugraph_stand_in.calls[:]
    samples = sampler.begin(asked).finish()
    assert cugraph_stand_in.calls == [6, 6, 6, 2]
    assert [s.node[N][:2].tolist() for s in samples] == [[k, k + 1] for k in range(10)]


@pytest.mark.parametrize(("expand", "edges"), [("new", 5 + 3 * 34 + 2 * 2), ("all", 5 + 3 * 34 + 3 * 2)])
def test_fanouts_of_types_bound_the_edges_of_a_seed(expand, edges):
    from manyhop_cugraph.engine import EDGES_PER_CALL

    given = dict(zip(TYPES, [(1, 2), (3, 0), (0, -1), (2, 2)], strict=True))  # from "b" on, most edges are sampled
    sampler = sampler_of(make_world(4).graph, NeighborSpec(fanouts=given, expand=expand))
    assert sampler.capacity == EDGES_PER_CALL // edges
    assert sampler.request_size == sampler.capacity // 2


@pytest.mark.parametrize("kind", SPECS)
def test_requests_of_several_loaders_share_a_call(kind):
    world = make_world(1, weights=kind == "weighted")
    spec = NeighborSpec(fanouts=fanouts(2, 3), **SPECS[kind])
    asked = [request(seeds, batch) for batch, seeds in enumerate(SEEDS)]
    sampler = sampler_of(world.graph, spec)
    groups = [asked[:2], asked[2:3], asked[3:]]
    pending = [sampler.begin(group) for group in groups]
    del cugraph_stand_in.calls[:]
    for group, one in [*zip(groups, pending, strict=True)][::-1]:
        for single, sample in zip(group, one.finish(), strict=True):
            check(world, spec, single.seeds, sample)
    assert len(cugraph_stand_in.calls) == 1


def test_requests_with_times_share_a_call():
    time = torch.arange(300) * 7 % 50
    _, _, graph = homogeneous(time=time)
    spec = spec_of(-1, temporal="uniform", disjoint=True)
    limits = [10, 20, 40]
    sampler = sampler_of(graph, spec)
    pending = [sampler.begin([request({N: [1, 2]}, time_max={N: [limit] * 2})]) for limit in limits]
    del cugraph_stand_in.calls[:]
    for limit, one in zip(limits, pending, strict=True):
        (sample,) = one.finish()
        assert int(time[sample.edge_id[E]].max()) in range(limit - 9, limit + 1)
    assert cugraph_stand_in.calls == [6]


def test_requests_share_calls_as_far_as_they_fit():
    _, _, graph = homogeneous()
    sampler = sampler_of(graph, spec_of(2))
    sampler.capacity = 8
    sizes = [3, 9, 4, 2, 5, 1]
    pending = [sampler.begin([request({N: list(range(size))}, size)]) for size in sizes]
    del pending[3], sizes[3]  # a loader that was left takes no part
    del cugraph_stand_in.calls[:]
    for size, one in zip(sizes, pending, strict=True):
        assert one.finish()[0].num_sampled_nodes[N][0] == size
    assert cugraph_stand_in.calls == [3, 9, 4, 5 + 1]


def test_a_bad_request_leaves_others_alone():
    _, _, graph = homogeneous()
    sampler = sampler_of(graph, spec_of(2))
    bad, good = (sampler.begin([request({N: [node]})]) for node in (40, 4))
    with pytest.raises(InputError, match="got 40"):
        bad.finish()
    assert good.finish()[0].node[N][0] == 4


def test_a_call_that_fails_is_not_made_again(monkeypatch):
    _, _, graph = homogeneous()
    sampler = sampler_of(graph, spec_of(2))
    first, second = (sampler.begin([request({N: [node]})]) for node in (3, 4))
    monkeypatch.setattr(sampler, "_edges", lambda *_: 1 / 0)
    for one in (first, second):
        with pytest.raises(ZeroDivisionError):
            one.finish()
    monkeypatch.undo()
    assert cugraph_stand_in.calls[-1] == 2


def test_calls_differ_and_repeat():
    _, _, graph = homogeneous()
    spec = spec_of(3)

    def ids():
        sampler = sampler_of(graph, spec)
        return [sampler.sample(request({N: [5, 6]})).edge_id[E].tolist() for _ in "12"]

    first, second = ids()
    assert first != second
    assert ids() == [first, second]


def test_times():
    generator = torch.Generator().manual_seed(0)
    time = torch.randint(0, 50, (300,), generator=generator)
    _, col, graph = homogeneous(time=time)
    latest, earliest = [30, 10, 49], [20, 0, 0]
    for temporal in ("uniform", "last"):
        spec = spec_of(3, 2, temporal=temporal, disjoint=True)
        asked = request({N: [1, 1, 2]}, time_max={N: latest},
                        time_min={N: earliest})  # fmt: skip
        sample = sampler_of(graph, spec).sample(asked)
        ids, tree = sample.edge_id[E], sample.tree[N]
        of_edge = tree[sample.col[E]]
        assert ids.numel() > 0
        assert bool((time[ids] <= torch.tensor(latest)[of_edge]).all())
        assert bool((time[ids] >= torch.tensor(earliest)[of_edge]).all())
        if temporal == "last":
            there = np.flatnonzero((col == 2) & (time.numpy() <= 49))
            best = sorted(time[there].tolist())[-3:]
            first = torch.arange(len(ids)) < sample.num_sampled_edges[E][0]
            first = ids[first & (of_edge == 2)]
            assert sorted(time[first].tolist()) == best


def test_batches_without_seeds_make_no_call():
    world = make_world(2)
    asked = [request({"a": []}, 0), request({}, 1)]
    before = len(cugraph_stand_in.calls)
    for sample in sampler_of(world.graph, NeighborSpec(fanouts=fanouts(2, 2))).begin(asked).finish():
        assert sample.num_sampled_nodes == {"a": [0, 0, 0], "b": [0, 0, 0], "c": [0, 0, 0]}
        assert all(edges.numel() == 0 for edges in sample.edge_id.values())
    assert len(cugraph_stand_in.calls) == before


def test_wide_ids():
    _, _, graph = homogeneous()
    from manyhop.graph import with_edge_ids

    assert not SpreadGraph(graph, CPU, timeout=10).is_wide
    far = with_edge_ids(graph, {E: torch.arange(300) + (1 << 33)})
    spread = SpreadGraph(far, CPU, timeout=10)
    assert spread.is_wide
    sample = CuGraphSampler(spread, spec_of(-1)).sample(request({N: [5]}))
    assert sample.edge_id[E].min() >= 1 << 33


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("times", {"subgraph": "induced"}, "got 'induced'"),
        ("times", {"temporal": "uniform", "disjoint": True}, "got some without"),
        ("weights", {}, "got weighted=False"),
    ],
)
def test_what_cugraph_lacks_is_an_error(columns, options, message):
    world = make_world(0, **{columns: True})
    with pytest.raises(InputError, match=message):
        sampler_of(world.graph, NeighborSpec(fanouts=fanouts(2), **options))


def test_bad_requests_are_errors():
    _, _, graph = homogeneous()
    sampler = sampler_of(graph, spec_of(2))
    with pytest.raises(InputError, match="got 40"):
        sampler.sample(request({N: [40]}))
    with pytest.raises(InputError, match="exclude"):
        sampler.sample(request_of([1], exclude={E: torch.tensor([1])}))
