"""The numpy reference against properties that hold whatever is drawn."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal
from reference_worlds import NUM_NODES, TYPES, ask, check, column, edges_by_hop, fanouts, frontier, make_world, trees_of

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest, ReferenceSampler
from manyhop.sampling.contract import add_reverses
from manyhop.sampling.reference import picks as picks
from manyhop.sampling.reference.picks import alias_table

SEEDS = [{"a": [3, 0, 11]}, {"b": [5]}, {"a": [2, 2, 7, 2]}, {"b": [1, 8], "a": [0, 4]}, {"a": []}, {"c": [1]}]
FANOUTS = [(2, 2), (1, 3, 1), (-1, 2), (0, 4), (100, 1), ()]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("k", FANOUTS)
def test_uniform_and_weighted(seeds, k):
    modes = itertools.product((False, True), (False, True), (False, True), ("new", "all"))
    for n, (weighted, with_replacement, disjoint, expand) in enumerate(modes):
        world = make_world(n, weights=True)
        spec = NeighborSpec(
            fanouts=fanouts(*k), weighted=weighted, replace=with_replacement, disjoint=disjoint, expand=expand
        )
        out = ask(world, spec, seeds)
        check(world, spec, seeds, out, lambda t, v, _, w=world, p=weighted: column(w, t, v, positive=p))


@pytest.mark.parametrize("seeds", SEEDS[:4])
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("temporal", ["uniform", "last"])
def test_temporal(seeds, window, temporal):
    for n, k in enumerate(FANOUTS):
        world = make_world(n, times=True)
        rng = np.random.default_rng(n)
        time_max = {t: rng.integers(-1, 7, len(s)).tolist() for t, s in seeds.items()}
        time_min = {t: [x - 2 for x in times] for t, times in time_max.items()} if window else None
        spec = NeighborSpec(fanouts=fanouts(*k), temporal=temporal, disjoint=True)
        out = ask(world, spec, seeds, time_max=time_max, time_min=time_min)
        latest = [x for times in time_max.values() for x in times]

        def in_time(t, v, tree, world=world, latest=latest):
            edges = column(world, t, v, time=True)
            if t != TYPES[2]:  # has no times
                time = world.time[t][edges]
                edges = edges[(time <= latest[tree]) & (time >= (latest[tree] - 2 if window else -100))]
            return edges.tolist()

        check(world, spec, seeds, out, in_time)
        if temporal == "last":
            for t in TYPES:
                for hop, edges in enumerate(edges_by_hop(out, t)):
                    for i in frontier(out, t, hop, "new"):
                        allowed = in_time(t, int(out.node[t[2]][i]), int(out.tree[t[2]][i]))
                        expected = allowed if k[hop] == -1 else allowed[max(len(allowed) - k[hop], 0) :]
                        assert [e for _, j, e in edges if j == i] == expected


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("seeds", SEEDS)
def test_induced(seeds, disjoint):
    world = make_world(5)
    spec = NeighborSpec(fanouts=fanouts(2, 2), disjoint=disjoint, subgraph="induced")
    out = ask(world, spec, seeds)
    sampled = ask(world, replace(spec, subgraph="directional"), seeds)
    assert out.num_sampled_nodes is None
    assert out.num_sampled_edges is None
    for t in NUM_NODES:
        assert torch.equal(out.node[t], sampled.node[t])
    for t in TYPES:
        src, dst = (list(zip(trees_of(out, n), out.node[n].tolist(), strict=True)) for n in (t[0], t[2]))
        row = world.ends[t][0]
        expected = [
            (src.index((tree, int(row[e]))), i, int(e))
            for i, (tree, v) in enumerate(dst)
            for e in column(world, t, v)
            if (tree, int(row[e])) in src
        ]
        assert list(zip(out.row[t].tolist(), out.col[t].tolist(), out.edge_id[t].tolist(), strict=True)) == expected


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("seeds", SEEDS)
def test_bidirectional(seeds, disjoint):
    world = make_world(6)
    reverse = {TYPES[0]: TYPES[0], TYPES[1]: TYPES[2], TYPES[2]: TYPES[1]}
    spec = NeighborSpec(fanouts=fanouts(2, 2), disjoint=disjoint)
    sampled = ask(world, spec, seeds)
    out = ask(world, replace(spec, subgraph="bidirectional", reverse=reverse), seeds)
    assert out.num_sampled_edges is None
    for t in NUM_NODES:
        assert torch.equal(out.node[t], sampled.node[t])

    def pairs(sample, t, *, flip=False):
        ends = sample.row[t].tolist(), sample.col[t].tolist()
        return list(zip(*(ends[::-1] if flip else ends), strict=True))

    for t, r in reverse.items():
        expected = set(pairs(sampled, t)) | set(pairs(sampled, r, flip=True))
        assert pairs(out, t) == sorted(expected, key=lambda pair: pair[::-1])  # by (col, row), each once
        assert set(pairs(out, t)) == set(pairs(out, r, flip=True))
    assert pairs(out, TYPES[3]) == pairs(sampled, TYPES[3])
    assert torch.equal(out.edge_id[TYPES[3]], sampled.edge_id[TYPES[3]])
    assert out.edge_id[TYPES[1]] is None
    assert out.edge_id[TYPES[2]] is None
    ids = dict(zip(pairs(out, TYPES[0]), out.edge_id[TYPES[0]].tolist(), strict=True))
    first = {}
    for e, (j, i) in zip(sampled.edge_id[TYPES[0]].tolist(), pairs(sampled, TYPES[0]), strict=True):
        first.setdefault((j, i), e)
    assert ids == {p: first[p] if p in first else first[p[::-1]] for p in ids}


def test_reverses_of_several_samples_are_those_of_each():
    reverse = {TYPES[0]: TYPES[0], TYPES[2]: TYPES[1]}
    samples = [ask(make_world(6), NeighborSpec(fanouts=fanouts(2, 2)), seeds) for seeds in SEEDS]
    for together, sample in zip(add_reverses(samples, reverse), samples, strict=True):
        assert_equal(together, *add_reverses([sample], reverse))


def test_bidirectional_types_without_a_reverse_stay_as_sampled():
    """Neither sorted nor each pair once."""
    graph = build_graph({"a": 9}, {TYPES[0]: EdgeInput(row=torch.tensor([7, 2, 7]), col=torch.zeros(3).long())})
    request = NodeRequest(key=BatchKey(0, 0, 0), seeds={"a": torch.tensor([5, 0])})
    spec = NeighborSpec(fanouts={TYPES[0]: (-1,)}, subgraph="bidirectional", reverse={})
    out = ReferenceSampler(graph, spec).sample(request)
    assert out.node["a"].tolist() == [5, 0, 7, 2]
    assert out.row[TYPES[0]].tolist() == [2, 3, 2]
    assert out.col[TYPES[0]].tolist() == [1, 1, 1]
    assert out.edge_id[TYPES[0]].tolist() == [0, 1, 2]


def neighbors_of(out, t, i):
    return out.edge_id[t][out.col[t] == i].tolist()


class TestWhatADrawDependsOn:
    spec = NeighborSpec(fanouts=fanouts(2))

    def test_a_nodes_draws_do_not_depend_on_the_other_seeds(self):
        world = make_world(3)
        a, b = ask(world, self.spec, {"a": [1, 5, 9]}), ask(world, self.spec, {"a": [9, 0, 1]})
        for t in (TYPES[0], TYPES[2]):
            assert neighbors_of(a, t, 0) == neighbors_of(b, t, 2)
            assert neighbors_of(a, t, 2) == neighbors_of(b, t, 0)

    def test_key_copy_tree_hop_and_edge_type_matter(self):
        row = torch.arange(1000).repeat(2)
        ends = {t: EdgeInput(row=row, col=torch.zeros_like(row)) for t in (("x", "p", "x"), ("x", "q", "x"))}
        graph = build_graph({"x": 1000}, ends)
        (p, q), k = ends, (5, 5)
        spec = NeighborSpec(fanouts={p: k, q: k}, expand="all")
        key = BatchKey(1, 2, 3)

        def ids(*, key=key, spec=spec, t=p, i=0, hop=0):
            out = ReferenceSampler(graph, spec).sample(NodeRequest(key=key, seeds={"x": torch.tensor([0, 0])}))
            begin = sum(out.num_sampled_edges[t][:hop])
            end = begin + out.num_sampled_edges[t][hop]
            col = out.col[t][begin:end]
            return tuple(out.edge_id[t][begin:end][col == i].tolist())

        disjoint = replace(spec, disjoint=True)
        different = [
            ids(),
            ids(i=1),
            ids(hop=1),
            ids(t=q),
            ids(key=key._replace(seed=4)),
            ids(key=key._replace(epoch=4)),
            ids(key=key._replace(batch=4)),
            ids(spec=disjoint, i=1),
        ]
        assert len(set(different)) == len(different)
        assert ids(spec=disjoint) == ids()  # tree 0 and no tree fold the same number
        assert ids() == ids()

    def test_one_more_pick_keeps_the_others(self):
        """With replacement, a larger fanout adds draws and changes none."""
        world = make_world(3)
        spec = NeighborSpec(fanouts=fanouts(2), replace=True)
        a = ask(world, spec, {"a": [1]})
        b = ask(world, replace(spec, fanouts=fanouts(3)), {"a": [1]})
        assert neighbors_of(b, TYPES[0], 0)[:2] == neighbors_of(a, TYPES[0], 0)


def test_running_sums_on_a_boundary_belong_to_the_next_entry():
    find = picks.by_sums(np.cumsum([0.0, 1.0, 0.0, 3.0, 0.0]))
    assert [find(np.uint64(r)) for r in (0, 2**62 - 2**11, 2**62, 2**64 - 1)] == [1, 1, 3, 3]
    tiny = np.array([5e-324, 1e-323, 1e-323])  # rounding reaches the total: not the last entry, it has no weight
    assert picks.by_sums(tiny)(np.uint64(2**64 - 1)) == 1


def test_draws_on_a_threshold_belong_to_the_alias():
    """Two entries of weights 1 and 3: the first keeps half of what it holds."""
    find = picks.by_alias(alias_table([1.0, 3.0]))
    assert [find(np.uint64(r)) for r in (0, 2**62 - 1, 2**62, 2**63, 2**64 - 1)] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("d", [1, 3, 17])
def test_equal_weights_with_replacement_pick_as_without_weights(d):
    for key in range(20):
        by_weight = picks.weighted(
            np.uint64(key), np.full(d, 0.1), picks.by_alias(alias_table([0.1] * d)), 5, replace=True
        )
        assert by_weight.tolist() == picks.uniform(np.uint64(key), d, 5, replace=True).tolist()


def test_edge_index_of_separate_tensors():
    out = ask(make_world(1), NeighborSpec(fanouts=fanouts(3, 3)), {"a": [0, 1]})
    apart = replace(out, row={t: r.clone() for t, r in out.row.items()})
    assert torch.equal(apart.edge_index(TYPES[0]), out.edge_index(TYPES[0]))


def test_parallel_edges_are_different_entries():
    graph = build_graph({"x": 2}, {("x", "p", "x"): EdgeInput(row=torch.tensor([1, 1, 1]), col=torch.zeros(3).long())})
    sampler = ReferenceSampler(graph, NeighborSpec(fanouts={("x", "p", "x"): (2,)}))
    out = sampler.sample(NodeRequest(key=BatchKey(0, 0, 0), seeds={"x": torch.tensor([0])}))
    assert out.row["x", "p", "x"].tolist() == [1, 1]
    assert len(set(out.edge_id["x", "p", "x"].tolist())) == 2
    assert out.node["x"].tolist() == [0, 1]
