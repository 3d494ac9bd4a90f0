"""The GPU backend of neighbour sampling equals the reference, bit for bit, in every field, in all modes; in triton's
interpreter where there is no GPU."""

from dataclasses import replace

import cpu_cases
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from cpu_cases import MODES, E, N, assert_equal, graphs, one_type, requests, some_edges, spec_of, specs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhop.errors import CapacityError, GraphError, InputError
from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import BatchKey, GPUSampler, NeighborSpec, NodeRequest, ReferenceSampler
from manyhop.sampling.gpu import sampler as launches
from manyhop.sampling.gpu.kernels import primitives
from manyhop.sampling.gpu.launch import plan, sequence
from manyhop.sampling.gpu.launch.seeds import SeedGroup

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter takes its time for every program."""
    if DEVICE == "cpu":
        for tile in ("COUNT_TILE", "EMIT_TILE", "ENTER_TILE", "SPREAD_TILE", "FINISH_TILE"):
            monkeypatch.setattr(sequence, tile, 1024)
        monkeypatch.setattr(sequence, "PROGRAMS", 8)


def smaller(spec):
    """What the interpreter has time for: two hops, no large fanouts but one."""
    if DEVICE == "cuda":
        return spec
    return replace(
        spec, fanouts={t: tuple(min(k, 33 if i else 5) for i, k in enumerate(f[:2])) for t, f in spec.fanouts.items()}
    )


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=50 if DEVICE == "cuda" else 7, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.slow
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


def small_graph(num_nodes=150, num_edges=1500):
    rng = np.random.default_rng(3)
    dst = (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)
    return one_type(num_nodes, rng.integers(0, num_nodes, num_edges), dst)


def request_of(num_seeds, batch=0):
    seeds = np.random.default_rng(batch).integers(0, 150, num_seeds)
    seeds[:3] = 7
    return cpu_cases.request_of(seeds, batch)


def sampler_of(graph, spec):
    with torch.device("meta"):
        return GPUSampler(place(graph, DEVICE), spec, device=DEVICE)


def assert_all_equal(sampler, batches):
    reference = ReferenceSampler(sampler.graph if DEVICE == "cpu" else place(sampler.graph, "cpu"), sampler.spec)
    with torch.device("meta"):  # as if torch's default device were another one
        samples = sampler.begin(batches).finish()
    for sample, request in zip(samples, batches, strict=True):
        on_host = replace(request, seeds={t: seeds.cpu() for t, seeds in request.seeds.items()})
        assert_equal(sample, reference.sample(on_host))


def without(request, picked, device="cpu"):
    return replace(request, exclude={E: picked[::3].flip(0).to(device)})


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"expand": "all"}], ids=str)
@pytest.mark.slow
def test_several_programs_without_some_edges(monkeypatch, options):
    """Edges move over those that other programs drop; ids may lie on the GPU; launches with and without alternate."""
    for tile in ("COUNT_TILE", "EMIT_TILE", "ENTER_TILE", "FINISH_TILE"):
        monkeypatch.setattr(sequence, tile, 128)
    graph, spec = small_graph(), spec_of(4, 3, **options)
    sampler, plain = sampler_of(graph, spec), [request_of(140), request_of(20, 1)]
    picked = [ReferenceSampler(graph, spec).sample(request).edge_id[E] for request in plain]
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
    ids = torch.arange(graph.csc[E].row.numel() - kept)
    sampler, request = sampler_of(graph, spec), replace(request_of(140), exclude={E: ids})
    for _ in range(3):
        assert_all_equal(sampler, [request])
        assert all((pool._capacity.edges[-1] >= pool._capacity.edges).all() for pool in sampler._pools.values())


@pytest.mark.parametrize("fanout", [5, 70, -1])
@pytest.mark.parametrize("options", [{"replace": True}, {"weighted": True}, {"weighted": True, "replace": True}, {}])
@pytest.mark.parametrize("temporal", [None, "uniform", "last"])
def test_long_ranges(temporal, options, fanout):
    """Columns, and parts of them in time, that are longer than a large fanout; weights of zero, and large ones."""
    if temporal == "last" and "weighted" in options:
        pytest.skip("the last edges have no weights")
    rng = np.random.default_rng(1)
    weight = np.where(rng.random(400) < 0.2, 0.0, 10.0 ** rng.integers(-8, 8, 400))
    row, col, time = (rng.integers(0, n, 400) for n in (50, 2, 100))
    graph = one_type(50, row, col, time=time, weight=weight)
    times = {"time_max": {N: torch.tensor([90, 50, 20])}, "time_min": {N: torch.tensor([10, 0, 5])}}
    request = cpu_cases.request_of([0, 1, 0], 2, **(times if temporal else {}))
    spec = spec_of(fanout, disjoint=temporal is not None, temporal=temporal, **options)
    assert_all_equal(sampler_of(graph, spec), [request])


def test_several_programs_and_edge_types(monkeypatch):
    """The nodes that an edge type adds come behind those of the edge types before it."""
    for tile in ("COUNT_TILE", "EMIT_TILE"):
        monkeypatch.setattr(sequence, tile, 128)
    rng = np.random.default_rng(0)
    edge_types = [("a", "x", "b"), ("b", "x", "a"), ("a", "y", "b"), ("a", "x", "a")]
    edges = {
        t: EdgeInput(row=torch.from_numpy(rng.integers(0, 99, 900)), col=torch.from_numpy(rng.integers(0, 99, 900)))
        for t in edge_types
    }
    sampler = sampler_of(build_graph({"a": 99, "b": 99}, edges), NeighborSpec(fanouts=dict.fromkeys(edges, (4, 2))))
    seeds = {t: torch.from_numpy(rng.integers(0, 99, 50)) for t in "ba"}
    assert_all_equal(sampler, [NodeRequest(key=BatchKey(0, 0, b), seeds=seeds) for b in range(2)])


def test_room_is_learned(monkeypatch):
    """Launches that do not fit are repeated; later ones fit."""
    tiny = plan.Capacity(np.array([[64], [70], [80]]), np.array([[0], [5], [9]]))
    monkeypatch.setattr(launches, "first_guess", lambda *arguments: tiny)
    sampler = sampler_of(small_graph(), spec_of(4, 3))
    for batch in range(3):
        assert_all_equal(sampler, [request_of(40, batch)])
    (pool,) = sampler._pools.values()
    assert pool._capacity.edges[-1, 0] > 9
    assert len(pool._free) == 1


def test_room_of_later_hops_is_never_smaller():
    """Reports of the hops after one that did not fit are too small; all hops share the memory of the last one."""
    now = plan.Capacity(np.array([[10], [500], [600]]), np.array([[0], [500], [600]]))
    bound = plan.Capacity(np.full((3, 1), 1 << 20), np.full((3, 1), 1 << 20))
    larger = now.grown(np.array([[10], [9000], [800]]), np.array([[0], [9000], [9]]), bound)
    for room in (larger.nodes, larger.edges):
        assert (np.diff(room[:, 0]) >= 0).all()
        assert room[1, 0] >= 9000


def test_the_worst_case_may_find_new_nodes_in_any_hop():
    """All nodes may be there after the first hop, or some of them only after the second one, which ask then."""
    shape = plan.Shape(1, (10,), window=False)
    worst = plan.worst_case(small_graph(), spec_of(33, 1, 33), shape)
    assert worst.edges[3, 0] - worst.edges[2, 0] == 33 * 160
    assert worst.nodes[:, 0].tolist() == [10, 160, 160, 160]


@pytest.mark.parametrize(("batches", "nodes"), [(1 << 15, 1), (1, (1 << 29) + 1)])
def test_launches_that_are_too_large(batches, nodes):
    sampler = sampler_of(small_graph(), spec_of(1))
    room = plan.Capacity(np.full((2, 1), nodes), np.full((2, 1), 1))
    shape = plan.Shape(batches, (1,), window=False)
    with pytest.raises(CapacityError, match="in a launch"):
        sequence.KernelSequence(sampler._plan, shape, room)


@triton.jit
def find_key(table, key, out, mask, stamp, pos_bits, key_bits):
    keys = tl.zeros([64], tl.int64) + key
    tl.store(out + tl.arange(0, 64), primitives.find(table, mask, stamp, keys, keys >= 0, pos_bits, key_bits))


def test_the_search_in_a_full_table_ends():
    """Launches whose nodes do not fit fill the table; it is searched nevertheless before that is known."""
    table = (((7 << 20) | torch.arange(1024)) << 12).to(DEVICE)  # stamp, key, position
    out = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    find_key[(1,)](table, 5000, out, 1023, 7, 12, 20)
    assert (out == -1).all()


def test_room_is_learned_from_a_smaller_batch():
    sampler = sampler_of(small_graph(), spec_of(1))
    pending = sampler.begin([request_of(640)])
    assert_all_equal(sampler, [request_of(90, 1)])
    del pending
    (pool,) = sampler._pools.values()
    assert pool._capacity.nodes.min() >= 640
    assert_all_equal(sampler, [request_of(640)])


def test_few_seeds_share_a_pool():
    """Batches of other numbers of seeds, one after the other, need no new memory and kernels."""
    sampler, pools = sampler_of(small_graph(), spec_of(2)), set()
    for batch, seeds in enumerate((1, 8, 5, 6, 1)):
        assert_all_equal(sampler, [request_of(seeds, batch)])
        pools |= set(sampler._pools.values())
    assert len(pools) == 1


def test_stamps_begin_again():
    """The hash table is cleared when its stamps are used up."""
    sampler = sampler_of(small_graph(), spec_of(3))
    for batch in range(9):
        for pool in sampler._pools.values():
            for used in pool._free:
                used.extent.stamp_bits = 2
        assert_all_equal(sampler, [request_of(30, batch)])


def test_batches_that_do_not_fit_into_one_launch(monkeypatch):
    graph, spec, batches = small_graph(), spec_of(4, 3), [request_of(50, b) for b in range(4)]
    monkeypatch.setattr(plan, "POSITION_LIMIT", 13)
    assert_all_equal(sampler_of(graph, spec), batches)
    monkeypatch.setattr(plan, "POSITION_LIMIT", 9)
    with pytest.raises(CapacityError, match="smaller fanouts or batches"):
        sampler_of(graph, spec).begin(batches)


@pytest.mark.parametrize("layout", [lambda ids: ids[::2], lambda ids: torch._neg_view(-ids)])
def test_seeds_of_any_layout(layout):
    """Alone, and with others; keys of any size."""
    requests = [request_of(40, batch) for batch in range(2)]
    plain = [
        replace(
            r,
            key=BatchKey(-3, 1 << 63, (1 << 70) + 5),
            seeds={t: layout(s).resolve_neg().clone() for t, s in r.seeds.items()},
            exclude={E: torch.arange(0, 60, 3)},
        )
        for r in requests
    ]
    given = [
        replace(p, seeds={t: layout(s) for t, s in r.seeds.items()}, exclude={E: torch._neg_view(-p.exclude[E])})
        for p, r in zip(plain, requests, strict=True)
    ]
    sampler, reference = sampler_of(small_graph(), spec_of(4, 3)), ReferenceSampler(small_graph(), spec_of(4, 3))
    for k in (1, 2):
        for got, p in zip(sampler.begin(given[:k]).finish(), plain, strict=False):
            assert_equal(got, reference.sample(p))


def test_seeds_that_are_not_behind_the_head():
    """Where a launch has a batch of one type, its first kernel reads there before it knows."""
    sampler, request = sampler_of(small_graph(), spec_of(4, 3)), request_of(40)
    assert_all_equal(sampler, [request_of(40, 1)])
    seeds = request.seeds[N].to(DEVICE)
    assert_all_equal(sampler, SeedGroup([request.key], N, seeds, [40]))


def test_pending_batches_that_nobody_finishes():
    sampler = sampler_of(small_graph(), spec_of(4, 3))
    for batch in range(3):
        pending = sampler.begin([request_of(30, batch)])
        del pending
        assert_all_equal(sampler, [request_of(30, 10 + batch)])
    (pool,) = sampler._pools.values()
    assert len(pool._free) == 1


def test_bad_input():
    graph = small_graph()
    sampler = sampler_of(graph, spec_of(4, 3))
    for bad in ([150], [0, -1]):
        with pytest.raises(InputError, match=r"\[0, 150\)"):
            sampler.sample(cpu_cases.request_of(bad))
    empty = one_type(0, *torch.empty(2, 0, dtype=torch.int64))
    with pytest.raises(InputError, match=r"\[0, 0\)"):
        sampler_of(empty, spec_of(3)).begin([cpu_cases.request_of([0])])
    pending = sampler.begin([request_of(5)])
    pending.finish()
    with pytest.raises(InputError, match="finished already"):
        pending.finish()
    with pytest.raises(InputError, match="at least one"):
        sampler.begin([])
    with pytest.raises(InputError, match="CUDA device"):
        GPUSampler(graph, spec_of(3), device="meta")
    csc = replace(graph.csc[E], row=graph.csc[E].row.to(torch.int16))
    with pytest.raises(GraphError, match=r"row .* torch.int16"):
        sampler_of(replace(graph, csc={E: csc}), spec_of(3))
