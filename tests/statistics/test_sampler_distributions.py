"""The sampler, which equals the reference bit for bit, against exact distributions; draws are independent."""

import numpy as np
import pytest
import torch
from chi_square import check, joint, product, proportional, subsets, successive, uniform

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest

P, Q = ("x", "p", "x"), ("x", "q", "x")
DEGREE = 5


def star(weights=None, times=None):
    """Node 0 has the in-neighbours 1 to 5 by both edge types; they have none."""
    row, col = torch.arange(1, DEGREE + 1), torch.zeros(DEGREE, dtype=torch.int64)
    edge = EdgeInput(
        row=row,
        col=col,
        weight=None if weights is None else torch.tensor(weights),
        time=None if times is None else torch.tensor(times),
    )
    return build_graph({"x": DEGREE + 1}, {P: edge, Q: edge})


def spec_of(k, **kwargs):
    return NeighborSpec(fanouts={P: k, Q: k}, **kwargs)


def sample(graph, spec, *, time_max=None, time_min=None, batch=0):
    """As many copies of node 0 as the sampler can take, with all the same times."""
    sampler, n = CPUSampler(graph, spec), 40_000
    times = [None if t is None else {"x": torch.full((n,), t)} for t in (time_max, time_min)]
    seeds = {"x": torch.zeros(n, dtype=torch.int64)}
    out = sampler.sample(NodeRequest(key=BatchKey(3, 0, batch), seeds=seeds, time_max=times[0], time_min=times[1]))
    return out, n


def picks(out, n, edge_type=P, hop=0):
    """``[n, k]``: entries that each copy picked in a hop, in slot order."""
    begin = sum(out.num_sampled_edges[edge_type][:hop])
    end = begin + out.num_sampled_edges[edge_type][hop]
    col, edge = out.col[edge_type][begin:end].numpy(), out.edge_id[edge_type][begin:end].numpy()
    edge = edge[col < n]
    assert (col[col < n].reshape(n, -1) == np.arange(n)[:, None]).all()
    return edge.reshape(n, -1)


def rows(array):
    return list(map(tuple, array.tolist()))


def sets(array):
    return rows(np.sort(array, axis=1))


WEIGHTS = [4.0, 1.0, 0.0, 2.5, 0.5]
DWARFED = [1e6, 1.0, 2.0, 3.0, 4.0]
TIMES = [2, 0, 1, 5, 1]


class TestColumn:
    """The control is in each case the same sampler with one setting changed."""

    @pytest.mark.parametrize("disjoint", [False, True])
    @pytest.mark.parametrize("k", [1, 2, 4])
    def test_uniform(self, k, disjoint):
        right = picks(*sample(star(), spec_of((k,), disjoint=disjoint)))
        wrong = picks(*sample(star(weights=WEIGHTS), spec_of((k,), disjoint=disjoint, weighted=True)))
        check(subsets(range(DEGREE), k), sets(right), sets(wrong))

    def test_with_replacement(self):
        right = picks(*sample(star(), spec_of((2,), replace=True)))
        check(product(*[uniform([(i,) for i in range(DEGREE)])] * 2), rows(right), sets(right))

    def test_weighted_with_replacement(self):
        right = picks(*sample(star(WEIGHTS), spec_of((2,), replace=True, weighted=True)))
        wrong = picks(*sample(star(), spec_of((2,), replace=True)))
        check(product(*[proportional(WEIGHTS)] * 2), rows(right), rows(wrong))

    @pytest.mark.parametrize("weights", [WEIGHTS, DWARFED])
    @pytest.mark.parametrize("k", [2, 3])
    def test_weighted(self, k, weights):
        right = picks(*sample(star(weights), spec_of((k,), weighted=True)))
        wrong = picks(*sample(star(), spec_of((k,))))
        check(successive(weights, k), rows(right), rows(wrong))

    @pytest.mark.parametrize(("time_max", "time_min"), [(2, None), (4, 1), (5, None)])
    def test_temporal(self, time_max, time_min):
        temporal = spec_of((2,), disjoint=True, temporal="uniform")
        allowed = [i for i, t in enumerate(TIMES) if t <= time_max and (time_min is None or t >= time_min)]
        right = picks(*sample(star(times=TIMES), temporal, time_max=time_max, time_min=time_min))
        wrong = picks(*sample(star(times=TIMES), temporal, time_max=5 if time_max < 5 else 4))
        check(subsets(allowed, 2), sets(right), sets(wrong))

    @pytest.mark.parametrize("replace", [False, True])
    @pytest.mark.parametrize(("weights", "window"), [(WEIGHTS, (2, None)), (WEIGHTS, (5, 1)), (DWARFED, (1, None))])
    def test_weighted_in_time(self, weights, window, replace):
        """Draws that leave the range are repeated; where one outside dwarfs the others, what is inside is scanned."""
        spec = spec_of((2,), disjoint=True, temporal="uniform", weighted=True, replace=replace)
        time_max, time_min = window
        inside = [t <= time_max and (time_min is None or t >= time_min) for t in TIMES]
        eligible = [w if is_inside else 0.0 for w, is_inside in zip(weights, inside, strict=True)]
        right = picks(*sample(star(weights, TIMES), spec, time_max=time_max, time_min=time_min))
        wrong = picks(*sample(star([1.0] * DEGREE, TIMES), spec, time_max=time_max, time_min=time_min))
        exact = product(*[proportional(eligible)] * 2) if replace else successive(eligible, 2)
        check(exact, rows(right), rows(wrong))

    def test_last(self):
        last = spec_of((2,), disjoint=True, temporal="last")
        right = picks(*sample(star(times=TIMES), last, time_max=4))
        wrong = picks(*sample(star(times=TIMES), spec_of((2,), disjoint=True, temporal="uniform"), time_max=4))
        check({(4, 0): 1.0}, rows(right), rows(wrong))


class TestIndependence:
    """Pairs of picks have the product distribution; a pick paired with itself is the control."""

    def check_pairs(self, first, second):
        first, second = sets(first), sets(second)
        one = subsets(range(DEGREE), 2)
        check(joint(one, one), zip(first, second, strict=True), zip(first, first, strict=True))

    @pytest.mark.parametrize("disjoint", [False, True])
    def test_neighbouring_seeds(self, disjoint):
        """Copies of one seed (folded as copies), or trees."""
        p = picks(*sample(star(), spec_of((2,), disjoint=disjoint)))
        self.check_pairs(p[::2], p[1::2])

    def test_edge_types(self):
        out, n = sample(star(), spec_of((2,)))
        self.check_pairs(picks(out, n, P), picks(out, n, Q))

    def test_hops(self):
        out, n = sample(star(), spec_of((2, 2), expand="all"))
        self.check_pairs(picks(out, n, hop=0), picks(out, n, hop=1))

    def test_batches(self):
        one, two = (picks(*sample(star(), spec_of((2,)), batch=b)) for b in (0, 1))
        self.check_pairs(one, two)

    def test_slots(self):
        p = picks(*sample(star(), spec_of((2,), replace=True)))
        one = uniform([(i,) for i in range(DEGREE)])
        first, second = rows(p[:, :1]), rows(p[:, 1:])
        check(joint(one, one), zip(first, second, strict=True), zip(first, first, strict=True))
