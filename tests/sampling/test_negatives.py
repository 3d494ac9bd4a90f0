"""Drawn endpoints: ranges, times, weights, and never a true edge on request."""

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from manyhop.errors import InputError
from manyhop.graph import CSC, HOMOGENEOUS_EDGE, EdgeInput, build_graph
from manyhop.sampling import (
    BatchKey,
    EdgeRequest,
    EdgeSampler,
    NegativeSpec,
    NeighborSpec,
    ReferenceSampler,
    negatives,
)
from manyhop.sampling.lookup import EdgeLookup
from manyhop.sampling.negatives import MAX_ATTEMPTS, NegativeTable, draw_negatives
from manyhop.sampling.random import Use, below, draw, make_key, unit

KEY = BatchKey(7, 1, 5)


def lookup(num_src: int, num_dst: int, edges: Sequence[tuple[int, int]]) -> EdgeLookup:
    row, col = torch.tensor(list(edges), dtype=torch.int64).reshape(-1, 2).t()
    graph = build_graph({"a": num_src, "b": num_dst}, {("a", "to", "b"): EdgeInput(row=row, col=col)})
    return EdgeLookup(graph.csc["a", "to", "b"])


class TestEdgeLookup:
    def test_equals_a_python_set(self):
        rng = np.random.default_rng(0)
        edges = [(int(s), int(d)) for s, d in zip(rng.integers(0, 9, 40), rng.integers(0, 6, 40), strict=True)]
        found = lookup(9, 6, edges)
        src, dst = (x.ravel() for x in np.mgrid[0:9, 0:6])
        expected = [(s, d) in set(edges) for s, d in zip(src.tolist(), dst.tolist(), strict=True)]
        assert found.contains(src, dst).tolist() == expected
        assert found.destinations(3).tolist() == sorted({d for s, d in edges if s == 3})
        assert list(zip(*(x.tolist() for x in found.edges()), strict=True)) == sorted(set(edges))

    def test_pickles_and_builds_once_for_many_threads(self):
        found = lookup(9, 6, [(0, 1), (8, 5)])
        with ThreadPoolExecutor(8) as pool:
            tables = list(pool.map(lambda _: found.tables(), range(32)))
        assert all(t is tables[0] for t in tables)
        assert pickle.loads(pickle.dumps(found)).destinations(8).tolist() == [5]

    def test_without_edges(self):
        found = lookup(3, 2, [])
        assert found.contains(np.array([0, 2]), np.array([1, 1])).tolist() == [False, False]
        assert found.destinations(0).size == 0

    def test_too_many_pairs(self):
        csc = CSC(num_src=2**62, colptr=torch.zeros(4, dtype=torch.int64), row=torch.empty(0, dtype=torch.int64))
        with pytest.raises(InputError, match="2\\^63"):
            EdgeLookup(csc)


class TestTable:
    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            ([1.0, 2.0], "shape \\[3\\]"),
            ([1.0, -1.0, 1.0], "-1.0 for node 1"),
            ([1.0, 1.0, float("nan")], "nan for node 2"),
            ([float("inf"), 1.0, 1.0], "inf for node 0"),
            ([0.0, 0.0, 0.0], "positive, finite sum"),
        ],
    )
    def test_wrong_weights(self, weight, message):
        with pytest.raises(InputError, match=message):
            NegativeTable(3, torch.tensor(weight))

    @pytest.mark.parametrize(
        ("options", "message"), [((2**32,), r"2\^32"), ((3, None, torch.arange(2)), "one time per")]
    )
    def test_wrong_sizes(self, options, message):
        with pytest.raises(InputError, match=message):
            NegativeTable(*options)

    def test_draws_on_a_boundary_belong_to_the_next_node(self, monkeypatch):
        numbers = np.array(
            [0, 2**62 - 2**11, 2**62, 2**64 - 1], np.uint64
        )  # in [0, 1): 0, just below 1/4, 1/4, almost 1
        monkeypatch.setattr(negatives, "draw", lambda key, index: numbers[index])
        table = NegativeTable(5, torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0]))
        assert table.draw(np.uint64(0), np.arange(4), np.full(4, 5)).tolist() == [1, 1, 3, 3]
        tiny = NegativeTable(2, torch.tensor([5e-324, 0.0], dtype=torch.float64))  # rounding reaches the total
        assert tiny.draw(np.uint64(0), np.arange(4), np.full(4, 2)).tolist() == [0] * 4


class TestTimes:
    time = torch.tensor([5, 3, 9, 3, 7])

    def test_never_later(self):
        table = NegativeTable(5, node_time=self.time)
        limit = np.array([3, 5, 6, 7, 8, 9, 100] * 30)
        _, nodes = draw_negatives(KEY, table, table, limit.size, limit)
        assert (self.time.numpy()[nodes] <= limit).all()
        assert set(nodes[limit == 3].tolist()) == {1, 3}
        assert set(nodes[limit >= 9].tolist()) == {0, 1, 2, 3, 4}

    def test_nobody_in_time(self):
        table = NegativeTable(5, node_time=self.time)
        src, dst = draw_negatives(KEY, table, NegativeTable(5), 20, np.full(20, 2))
        assert set(src.tolist()) == {1}  # the first of the earliest
        assert len(set(dst.tolist())) > 1  # no times: not restricted

    def test_weights_within_times(self):
        table = NegativeTable(5, torch.tensor([1.0, 0.0, 5.0, 0.0, 0.0]), self.time)
        limit = np.array([2, 3, 5, 8, 9] * 20)
        _, nodes = draw_negatives(KEY, np.zeros(100, np.int64), table, 100, limit)
        assert set(nodes[limit < 9].tolist()) == {0}  # the earliest of positive weight, also before its time
        assert set(nodes[limit == 9].tolist()) == {0, 2}


class TestNeverTrue:
    edges = tuple((s, d) for s in range(4) for d in range(5) if (s, d) not in {(0, 1), (2, 3), (2, 4)})

    def test_first_attempts_are_the_plain_draws(self):
        tables = NegativeTable(4), NegativeTable(5)
        plain = np.stack(draw_negatives(KEY, *tables, 50))
        kept = np.stack(draw_negatives(KEY, *tables, 50, avoid=lookup(4, 5, [(0, 0), (1, 1), (2, 2)])))
        true = ((plain[0] == plain[1]) & (plain[0] < 3)).nonzero()[0]
        assert 0 < true.size < 50
        assert (np.flatnonzero((plain != kept).any(0)) == true).all()
        src_key, dst_key = make_key(Use.NEGATIVE_SRC, *KEY), make_key(Use.NEGATIVE_DST, *KEY)
        for j in range(50):
            attempts = ((below(draw(src_key, j + a * 50), 4), below(draw(dst_key, j + a * 50), 5)) for a in range(16))
            assert tuple(kept[:, j]) == next((s, d) for s, d in attempts if s != d or s == 3)

    def test_pairs_in_time(self):
        time = torch.tensor([0, 0, 1, 1])
        early, late = NegativeTable(4, node_time=time), NegativeTable(4)
        avoid = lookup(4, 4, [(0, d) for d in range(4)] + [(1, d) for d in range(3)])
        src, dst = draw_negatives(KEY, early, late, 100, np.zeros(100, np.int64), avoid)
        assert set(zip(src.tolist(), dst.tolist(), strict=True)) == {(1, 3)}

    def test_times_are_given_up_rather_than_a_true_edge_returned(self):
        time = torch.tensor([0, 0, 1, 1])
        table = NegativeTable(4, node_time=time)
        avoid = lookup(4, 4, [(s, d) for s in range(2) for d in range(2)])
        limit = np.zeros(200, np.int64)
        src, dst = draw_negatives(KEY, table, table, 200, limit, avoid)
        assert not avoid.contains(src, dst).any()
        assert len(set(zip(src.tolist(), dst.tolist(), strict=True))) == 12
        _, dst = draw_negatives(KEY, np.zeros(50, np.int64), table, 50, limit[:50], avoid)
        assert set(dst.tolist()) == {2, 3}

    def test_candidates_stay_in_order_of_time_when_times_are_given_up(self):
        """By (time, id): nodes 3, 1, 4, 2, 0. Node 3 alone is in time, and every pair with it is an edge."""
        table = NegativeTable(5, node_time=torch.tensor([9, 1, 2, 0, 1]))
        others = np.array([1, 4, 2, 0])
        limit = np.zeros(40, np.int64)
        u_src, u_dst = (
            unit(draw(make_key(use, *KEY), np.arange(40) + MAX_ATTEMPTS * 40))
            for use in (Use.NEGATIVE_SRC, Use.NEGATIVE_DST)
        )
        _, dst = draw_negatives(KEY, np.full(40, 3), table, 40, limit, lookup(5, 5, [(3, 3)]))
        assert dst.tolist() == others[(u_dst * 4).astype(int)].tolist()
        avoid = lookup(5, 5, [(3, d) for d in range(5)] + [(s, 3) for s in range(5)])
        src, dst = draw_negatives(KEY, table, table, 40, limit, avoid)
        assert src.tolist() == others[(u_src * 4).astype(int)].tolist()
        assert dst.tolist() == others[(u_dst * 4).astype(int)].tolist()

    def test_weights_are_never_given_up(self):
        avoid = lookup(4, 5, self.edges)
        dst = NegativeTable(5, torch.tensor([1.0, 0.0, 1.0, 0.0, 1e-3]))
        src, d = draw_negatives(KEY, NegativeTable(4), dst, 50, avoid=avoid)
        assert set(zip(src.tolist(), d.tolist(), strict=True)) == {(2, 4)}
        with pytest.raises(InputError, match="source node 0"):
            draw_negatives(KEY, np.zeros(3, np.int64), dst, 3, avoid=avoid)
        only_zero = NegativeTable(5, torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))
        with pytest.raises(InputError, match="all pairs"):
            draw_negatives(KEY, NegativeTable(4), only_zero, 3, avoid=avoid)

    def test_light_free_destination_survives_rounding(self):
        # 1e-20 is lost in the sum of the weights, so plain draws cannot hit it, but it is the only free one.
        weight = torch.tensor([1e-20, 1.0, 1.0])
        avoid = lookup(2, 3, [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)])
        table = NegativeTable(3, weight)
        src, dst = draw_negatives(KEY, NegativeTable(2), table, 10, avoid=avoid)
        assert (src == 0).all()
        assert (dst == 0).all()

    def test_nothing_left(self):
        full = lookup(2, 2, [(0, 0), (0, 1), (1, 0), (1, 1)])
        table = NegativeTable(2)
        with pytest.raises(InputError, match="all pairs"):
            draw_negatives(KEY, table, table, 1, avoid=full)
        with pytest.raises(InputError, match="source node 1"):
            draw_negatives(KEY, np.array([1]), table, 1, avoid=full)


def test_no_negatives():
    table = NegativeTable(0)
    src, dst = draw_negatives(KEY, table, table, 0, avoid=lookup(0, 0, []))
    assert src.size == dst.size == 0


@pytest.mark.parametrize("disjoint", [False, True])
def test_given_destinations(disjoint):
    graph = build_graph({"_N": 9}, {HOMOGENEOUS_EDGE: EdgeInput(row=torch.arange(8), col=torch.arange(1, 9))})
    nodes = ReferenceSampler(graph, NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (2,)}, disjoint=disjoint))
    spec = NegativeSpec(mode="triplet", amount=3, given=True)
    sampler = EdgeSampler(nodes, graph, HOMOGENEOUS_EDGE, negatives=spec, disjoint=disjoint)
    neg_dst = torch.tensor([[8, 7, 8], [3, 0, 2]])
    request = EdgeRequest(
        key=BatchKey(0, 0, 0), edge_type=HOMOGENEOUS_EDGE, src=torch.tensor([1, 2]), dst=torch.tensor([2, 3]),
        neg_dst=neg_dst,
    )  # fmt: skip
    out = sampler.sample(request)
    node = out.subgraph.node["_N"]
    assert torch.equal(node[out.dst_neg_index], neg_dst)
    assert node[out.src_index].tolist() == [1, 2]
    assert node[out.dst_index].tolist() == [2, 3]
    for wrong, message in (
        (neg_dst[:1], r"of shape \[2, 3\]"),
        (neg_dst + 1, r"in \[0, 9\), got 9"),
        (None, "neg_dst"),
    ):
        with pytest.raises(InputError, match=message):
            sampler.sample(replace(request, neg_dst=wrong))
    with pytest.raises(InputError, match="given=True, only"):
        EdgeSampler(nodes, graph, HOMOGENEOUS_EDGE, disjoint=disjoint).sample(request)


@pytest.mark.parametrize("options", [{"mode": "binary"}, {"mode": "triplet", "exclude_true": True}])
def test_given_destinations_are_taken_as_they_are(options):
    graph = build_graph({"_N": 9}, {HOMOGENEOUS_EDGE: EdgeInput(row=torch.arange(8), col=torch.arange(1, 9))})
    with pytest.raises(InputError, match="Given negatives are destinations"):
        EdgeSampler.check(graph, HOMOGENEOUS_EDGE, negatives=NegativeSpec(given=True, **options))
