"""The CPU backend of neighbour sampling equals the reference, bit for bit, in every field, in all modes."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import (
    MODES,
    E,
    N,
    assert_equal,
    check_equal,
    graphs,
    one_type,
    request_of,
    requests,
    some_edges,
    spec_of,
    specs,
    times,
    weights,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhop.errors import CapacityError, GraphError, InputError
from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import NeighborSpec, ReferenceSampler
from manyhop.sampling.cpu import tables, workspace
from manyhop.sampling.cpu.sampler import CPUSampler


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), all_hashed=st.booleans())
def test_equals_the_reference(mode, data, all_hashed):
    graph_options, spec_options, request_options = MODES[mode]
    graph = data.draw(graphs(**graph_options))
    spec = data.draw(specs(graph, **spec_options))
    limit, workspace.TABLE_OF_ALL_NODES = workspace.TABLE_OF_ALL_NODES, 0 if all_hashed else 1 << 25
    try:
        batches = [data.draw(requests(graph, **request_options)) for _ in range(data.draw(st.integers(1, 3)))]
        batches = [replace(r, exclude=some_edges(data.draw, graph)) if data.draw(st.booleans()) else r for r in batches]
        check_equal(CPUSampler(graph, spec), ReferenceSampler(graph, spec), batches)
    finally:
        workspace.TABLE_OF_ALL_NODES = limit


def larger_graph(num_nodes=3000, num_edges=60_000, hub_edges=5000, **options):
    """Columns of all lengths, among them empty ones, small ones and a hub; edge ids that are no positions."""
    rng = np.random.default_rng(5)
    dst = np.concatenate([(num_nodes * rng.random(num_edges) ** 3).astype(np.int64), np.full(hub_edges, 7)])
    src = rng.integers(0, num_nodes, len(dst))
    shuffle = rng.permutation(len(dst))
    weight = weights(rng, len(dst)) if options.get("weighted") else None
    time = times(rng, len(dst)) if options.get("timed") else None
    return one_type(num_nodes, src[shuffle], dst[shuffle], weight=weight, time=time)


def larger_request(graph, num_seeds=600, batch=0, timed=False):
    rng = np.random.default_rng(batch)
    seeds = rng.integers(0, graph.num_nodes[N], num_seeds)
    seeds[:3] = 7
    return request_of(seeds, batch, time_max={N: torch.from_numpy(rng.integers(-5, 6, num_seeds))} if timed else None)


@pytest.mark.parametrize(
    "options",
    [
        {"fanouts": (15, 5)},
        {"fanouts": (40, 2)},
        {"fanouts": (300,)},
        {"fanouts": (-1, 1)},
        {"fanouts": (7, 3), "expand": "all"},
        {"fanouts": (7, 3), "replace": True},
        {"fanouts": (70,), "replace": True},
        {"fanouts": (7, 3), "disjoint": True},
        {"fanouts": (3, 2), "subgraph": "induced"},
        {"fanouts": (3, 2), "subgraph": "induced", "disjoint": True},
        {"fanouts": (15, 5), "weighted": True},
        {"fanouts": (70,), "weighted": True},
        {"fanouts": (5, 2), "weighted": True, "replace": True},
        {"fanouts": (32, 1), "weighted": True},
        {"fanouts": (40,), "weighted": True, "replace": True},
        {"fanouts": (-1,), "weighted": True},
        {"fanouts": (10, 5), "temporal": "uniform", "disjoint": True},
        {"fanouts": (10, 5), "temporal": "last", "disjoint": True},
    ],
    ids=str,
)
def test_batches_of_many_chunks(options):
    """Frontiers and columns beyond the size of a chunk."""
    timed = "temporal" in options
    graph = larger_graph(weighted="weighted" in options, timed=timed)
    spec = NeighborSpec(**options | {"fanouts": {E: options["fanouts"]}})
    sampler, reference = CPUSampler(graph, spec), ReferenceSampler(graph, spec)
    for batch, num_seeds in enumerate([600, 40]):
        request = larger_request(graph, num_seeds, batch, timed)
        plain = reference.sample(request)
        assert_equal(sampler.sample(request), plain)
        request = replace(request, exclude={E: plain.edge_id[E][::3]})
        assert_equal(sampler.sample(request), reference.sample(request))


@pytest.mark.parametrize("ids", [None, torch.int32, torch.int64])
def test_edges_past_the_caches(ids):
    """Large batches, whose edges bypass the caches, and a small one between them."""
    rng = np.random.default_rng(6)
    dst = np.sort(rng.integers(0, 6000, 90_000))
    graph = one_type(6000, rng.integers(0, 6000, len(dst)), dst)
    if ids is not None:
        graph.csc[E] = replace(graph.csc[E], perm=torch.from_numpy(rng.permutation(len(dst))).to(ids))
    sampler, reference = CPUSampler(graph, spec_of(12, 4)), ReferenceSampler(graph, spec_of(12, 4))
    for batch, num_seeds in enumerate([5000, 20, 4000]):
        request = larger_request(graph, num_seeds, batch)
        expected = reference.sample(request)
        assert (expected.row[E].numel() >= tables.PAST) is (num_seeds > 1000)
        assert_equal(sampler.sample(request), expected)


@pytest.mark.parametrize("fanout", [3, 50, -1])
def test_hub_of_a_million_edges(fanout):
    n = 1_000_000
    row = torch.arange(n).flip(0)
    graph, spec, request = one_type(n, row, torch.full((n,), 1)), spec_of(fanout, 2), request_of([1, 5])
    sample = CPUSampler(graph, spec).sample(request)
    if fanout > 0:
        assert_equal(sample, ReferenceSampler(graph, spec).sample(request))
    else:
        assert sample.num_sampled_edges == {E: [n, 0]}
        assert torch.equal(sample.edge_id[E], torch.arange(n))
        assert torch.equal(sample.node[N][sample.row[E]], row)


@pytest.mark.parametrize("options", [{}, {"replace": True}], ids=str)
@pytest.mark.parametrize("fanout", [1, 15, 32, 50])
def test_weighted_hub_of_a_million_edges(fanout, options):
    """And columns around the length up to which picks are kept as bits; many of weight zero, one that dwarfs others."""
    n, lengths = 1_000_000, np.array([62, 63, 64, 65, 66, 40, 33])
    rng = np.random.default_rng(2)
    col = np.concatenate([np.zeros(n, np.int64), np.repeat(np.arange(1, 8), lengths)])
    weight = rng.random(len(col)) * (rng.random(len(col)) < 0.9)
    weight[-1] = 1e12
    graph = one_type(n, torch.arange(len(col)) % n, col, weight=weight)
    spec = spec_of(fanout, weighted=True, **options)
    batches = [request_of([0, 1, 2, 3, 4, 5, 6, 7] * 5 + [9], batch) for batch in range(3)]
    check_equal(CPUSampler(graph, spec), ReferenceSampler(graph, spec), batches)


@pytest.mark.parametrize("disjoint", [False, True])
def test_threads_agree(disjoint):
    """Many threads at once, on one sampler, give what one thread gives."""
    graph = larger_graph()
    sampler = CPUSampler(graph, spec_of(10, 10, disjoint=disjoint))
    work = [larger_request(graph, 100 + 10 * b, b) for b in range(40)]
    expected = [sampler.sample(r) for r in work]
    with ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(sampler.sample, work), expected, strict=True):
            assert_equal(got, want)


def test_a_broken_off_batch_leaves_no_trace():
    graph = larger_graph()

    def refuse(shape, dtype):
        raise MemoryError("no buffer left")

    spec = spec_of(10, 10)
    sampler, request = CPUSampler(graph, spec), larger_request(graph)
    expected = sampler.sample(request)
    good, sampler._empty = sampler._empty, refuse
    with pytest.raises(MemoryError, match="no buffer left"):
        sampler.sample(larger_request(graph, batch=3))
    sampler._empty = good
    assert_equal(sampler.sample(request), expected)


def test_stamps_start_again(monkeypatch):
    """After two billion nodes the tables of local ids are cleared."""
    monkeypatch.setattr(workspace, "LIMIT", 20_000)
    graph = larger_graph(300, 3000, 0)
    for disjoint in (False, True):
        spec = spec_of(4, 4, disjoint=disjoint)
        sampler, reference = CPUSampler(graph, spec), ReferenceSampler(graph, spec)
        for batch in range(60):
            request = larger_request(graph, 20, batch)
            got = sampler.sample(request)
            if batch % 7 == 0:
                assert_equal(got, reference.sample(request))


def test_too_many_nodes(monkeypatch):
    monkeypatch.setattr(workspace, "LIMIT", 1000)
    graph = larger_graph()
    sampler = CPUSampler(graph, spec_of(-1, -1))
    with pytest.raises(CapacityError, match="smaller fanouts or batches"):
        sampler.sample(larger_request(graph))


def test_picks_that_do_not_fit_in_memory(host_memory):
    """It raises before memory is taken, which the system may promise and not have."""
    host_memory(1 << 30)
    graph = larger_graph()
    sampler = CPUSampler(graph, spec_of(2**31 - 1, replace=True))
    with pytest.raises(CapacityError, match=r"needs about .* GiB, 1\.00 GiB are free\. Use smaller fanouts"):
        sampler.sample(request_of([7, 7]))


def test_picks_with_replacement_need_no_set():
    sampler = CPUSampler(larger_graph(), spec_of(10**8, replace=True))
    assert sampler._workspace().mode["set_mask"][0] < 2000


@pytest.mark.parametrize(("k", "replace"), [(2**31, True), (2**70, False)])
def test_fanouts_beyond_all_measure(k, replace):
    with pytest.raises(InputError, match=f"Expected smaller fanouts, got {k}"):
        CPUSampler(larger_graph(), spec_of(k, replace=replace))


def test_results_are_made_by_empty():
    """A pipeline passes recycled memory: every tensor of a result lies in it."""
    made = []

    def recycled(shape, dtype):
        made.append(torch.full(shape, -1, dtype=dtype))
        return made[-1]

    graph = larger_graph()
    spec = spec_of(3, 2, disjoint=True)
    sample = CPUSampler(graph, spec, empty=recycled).sample(larger_request(graph))
    memory = {t.untyped_storage().data_ptr() for t in made}
    for tensors in (sample.node, sample.row, sample.col, sample.edge_id, sample.tree):
        assert all(t.untyped_storage().data_ptr() in memory for t in tensors.values())
        assert all(int(t.min()) >= 0 for t in tensors.values())


def test_pickled_sampler():
    graph = larger_graph()
    sampler = CPUSampler(graph, spec_of(3, 2))
    request = larger_request(graph)
    assert_equal(pickle.loads(pickle.dumps(sampler)).sample(request), sampler.sample(request))


def test_seeds_of_any_layout():
    graph = larger_graph()
    sampler = CPUSampler(graph, spec_of(3, 2))
    pairs = torch.arange(20).reshape(10, 2)
    expected = sampler.sample(request_of(pairs[:, 0].clone()))
    for seeds in (pairs[:, 0], torch._neg_view(-pairs[:, 0].clone())):
        assert_equal(sampler.sample(request_of(seeds)), expected)


def test_bad_input():
    graph = larger_graph()
    spec = spec_of(3)
    sampler = CPUSampler(graph, spec)
    for bad in ([3000], [-1]):
        with pytest.raises(InputError, match=r"\[0, 3000\)"):
            sampler.sample(request_of(bad))
    with pytest.raises(InputError, match="fanouts"):
        CPUSampler(graph, replace(spec, fanouts={E: (-2,)}))
    csc = graph.csc[E]
    with pytest.raises(GraphError, match=r"row .* torch.int16"):
        CPUSampler(replace(graph, csc={E: replace(csc, row=csc.row.to(torch.int16))}), spec)


def check_disjoint(graph, batches, fanouts, **options):
    spec = spec_of(*fanouts, disjoint=True, **options)
    sampler = CPUSampler(graph, spec)
    check_equal(sampler, ReferenceSampler(graph, spec), [request_of(seeds, b) for b, seeds in enumerate(batches)])
    return int(sampler._workspace().nodes["num_runs"][0])


def test_trees_of_very_unequal_size():
    """A tree of thousands of nodes between trees of one, in a table that grows in mid-batch; then small batches."""
    n = 20_000
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(0, n, (60_000,), generator=generator)
    col = torch.cat([torch.full((3_000,), 5), torch.randint(0, 2_000, (57_000,), generator=generator)])
    lonely = torch.arange(10_000, 10_150)
    batches = [[5], torch.cat([lonely, torch.tensor([5, 5, 17]), lonely]), lonely, [7, 5, 3, 5]]
    check_disjoint(one_type(n, row, col), batches, (-1, 3, 2))


@pytest.mark.parametrize("step", [1, 1 << 8, 1 << 16, 1 << 24, 1 << 32, 1 << 40])
@pytest.mark.parametrize("disjoint", [False, True])
def test_ids_of_one_pattern(step, disjoint):
    """Global ids that agree in their low bits, of a node type that is too large for a slot per node."""
    n, edge_type = 60, ("far", "to", "near")
    edge = EdgeInput(row=torch.arange(n * n) % n * step, col=torch.arange(n * n) // n)
    graph = build_graph({"far": (1 << 26) + n * step, "near": n}, {edge_type: edge})
    spec = NeighborSpec(fanouts={edge_type: (40,)}, disjoint=disjoint)
    batches = [request_of({"near": torch.arange(k)}, batch) for batch, k in enumerate([n, 5])]
    check_equal(CPUSampler(graph, spec), ReferenceSampler(graph, spec), batches)


def test_more_runs_of_trees_than_are_searched():
    """With expand="all" the order of trees begins again more often from hop to hop, and the hash table takes over."""
    graph = larger_graph(300, 3000, 0)
    for options in ({}, {"subgraph": "induced"}):
        assert check_disjoint(graph, [range(40), range(7)], (1,) * 7, expand="all", **options) == 0
    assert 0 < check_disjoint(graph, [range(40), range(7)], (1,) * 3, expand="all") < tables.MOST_RUNS


def test_many_edge_types_and_trees():
    """Each edge type adds nodes in the order of trees anew."""
    rng = np.random.default_rng(0)
    edges = {
        (a, name, b): EdgeInput(
            row=torch.from_numpy(rng.integers(0, 200, 900)), col=torch.from_numpy(rng.integers(0, 200, 900))
        )
        for a in "ab"
        for b in "ab"
        for name in "xy"
    }
    graph = build_graph({"a": 200, "b": 200}, edges)
    spec = NeighborSpec(fanouts={t: (2, 1, 1) for t in edges}, disjoint=True)
    seeds = [{t: torch.from_numpy(rng.integers(0, 200, n)) for t in "ba"} for n in (3, 30, 1)]
    batches = [request_of(one, batch) for batch, one in enumerate(seeds)]
    check_equal(CPUSampler(graph, spec), ReferenceSampler(graph, spec), batches)
