"""Seed edges: endpoints, negatives, and where they lie in the sample."""

import itertools

import pytest
import torch

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.sampling import BatchKey, EdgeRequest, EdgeSampler, NegativeSpec, NeighborSpec, ReferenceSampler

KEY = BatchKey(1, 0, 3)
N = HOMOGENEOUS_NODE
E = HOMOGENEOUS_EDGE
RATES = ("user", "rates", "item")
RATED = ("item", "rated_by", "user")
GENERATOR = torch.Generator().manual_seed(0)
ROW, COL = torch.randint(0, 20, (2, 60), generator=GENERATOR)
TIME = torch.arange(20) % 7


def homogeneous(*, times=False):
    return build_graph({N: 20}, {E: EdgeInput(row=ROW, col=COL)}, node_time={N: TIME} if times else None)


def bipartite(*, times=False):
    edges = {RATES: EdgeInput(row=ROW, col=COL % 12), RATED: EdgeInput(row=COL % 12, col=ROW)}
    node_time = {"user": TIME, "item": TIME[:12]} if times else None
    return build_graph({"user": 20, "item": 12}, edges, node_time=node_time)


def samplers(graph, edge_type, *, disjoint=False, temporal=None, negatives=None, **weights):
    spec = NeighborSpec(fanouts={t: (3, 2) for t in graph.edge_types}, disjoint=disjoint, temporal=temporal)
    node_sampler = ReferenceSampler(graph, spec)
    return EdgeSampler(node_sampler, graph, edge_type, negatives=negatives, disjoint=disjoint, **weights)


def ask(sampler, src, dst, **times):
    request = EdgeRequest(
        key=KEY,
        edge_type=sampler.edge_type,
        src=torch.tensor(src, dtype=torch.int64),
        dst=torch.tensor(dst, dtype=torch.int64),
        **{k: torch.tensor(v) for k, v in times.items()},
    )
    return sampler.sample(request)


SRC, DST = [4, 9, 4, 0, 4], [1, 3, 1, 4, 11]
CASES = [(homogeneous, E), (bipartite, RATES)]


@pytest.mark.parametrize(("make", "edge_type"), CASES)
class TestNotDisjoint:
    def test_seeds_are_sorted_unique_endpoints(self, make, edge_type):
        out = ask(samplers(make(), edge_type), SRC, DST)
        src_nodes, dst_nodes = out.subgraph.node[edge_type[0]], out.subgraph.node[edge_type[2]]
        assert src_nodes[out.src_index].tolist() == SRC
        assert dst_nodes[out.dst_index].tolist() == DST
        if edge_type == E:
            assert src_nodes[:6].tolist() == [0, 1, 3, 4, 9, 11]
            assert out.subgraph.num_sampled_nodes[N][0] == 6
        else:
            assert src_nodes[:3].tolist() == [0, 4, 9]
            assert dst_nodes[:4].tolist() == [1, 3, 4, 11]
        assert out.dst_neg_index is None
        assert out.num_pos == 5
        assert out.time_max is None
        assert out.subgraph.tree is None

    @pytest.mark.parametrize(("amount", "num_neg"), [(1, 5), (0.3, 2), (2.5, 13)])
    def test_binary(self, make, edge_type, amount, num_neg):
        graph = make()
        out = ask(samplers(graph, edge_type, negatives=NegativeSpec(mode="binary", amount=amount)), SRC, DST)
        assert out.src_index.shape == out.dst_index.shape == (5 + num_neg,)
        assert out.subgraph.node[edge_type[0]][out.src_index[:5]].tolist() == SRC
        assert out.subgraph.node[edge_type[2]][out.dst_index[:5]].tolist() == DST

    def test_triplet(self, make, edge_type):
        out = ask(samplers(make(), edge_type, negatives=NegativeSpec(mode="triplet", amount=3)), SRC, DST)
        assert out.src_index.shape == out.dst_index.shape == (5,)
        assert out.dst_neg_index.shape == (5, 3)
        assert out.subgraph.node[edge_type[0]][out.src_index].tolist() == SRC

    def test_no_seed_edges(self, make, edge_type):
        kinds = (None, NegativeSpec(mode="binary"), NegativeSpec(mode="triplet", amount=2))
        for negatives, disjoint in itertools.product(kinds, (False, True)):
            out = ask(samplers(make(), edge_type, negatives=negatives, disjoint=disjoint), [], [])
            assert out.src_index.numel() == out.dst_index.numel() == out.num_pos == 0
            if negatives is not None and negatives.mode == "triplet":
                assert out.dst_neg_index.shape == (0, 2)


@pytest.mark.parametrize(("make", "edge_type"), CASES)
class TestDisjoint:
    def test_one_tree_per_endpoint(self, make, edge_type):
        negatives = NegativeSpec(mode="binary", amount=1.5)
        out = ask(samplers(make(), edge_type, negatives=negatives, disjoint=True), SRC, DST)
        n = 5 + 8
        src_type, _, dst_type = edge_type
        assert out.subgraph.node[src_type][out.src_index[:5]].tolist() == SRC
        assert out.subgraph.node[dst_type][out.dst_index[:5]].tolist() == DST
        assert out.subgraph.tree[src_type][out.src_index].tolist() == list(range(n))
        assert out.subgraph.tree[dst_type][out.dst_index].tolist() == list(range(n, 2 * n))
        assert len(set(zip(out.src_index.tolist(), [src_type] * n, strict=True))) == n

    def test_temporal_binary(self, make, edge_type):
        graph = make(times=True)
        negatives = NegativeSpec(mode="binary", amount=3.5)
        sampler = samplers(graph, edge_type, negatives=negatives, disjoint=True, temporal="uniform")
        out = ask(sampler, SRC, DST, time_max=[0, 2, 4, 5, 6])
        assert out.time_max.tolist() == ([0, 2, 4, 5, 6] * 5)[: 5 + 18]
        for t, index in ((edge_type[0], out.src_index), (edge_type[2], out.dst_index)):
            nodes = out.subgraph.node[t]
            assert (TIME[nodes[index[5:]]] <= out.time_max[5:]).all()
            limit = out.time_max[out.subgraph.tree[t] % 23]
            sampled = torch.ones(nodes.numel(), dtype=torch.bool)
            sampled[out.src_index if t == edge_type[0] else out.dst_index] = False
            sampled[out.dst_index if t == edge_type[2] else out.src_index] = False
            assert (TIME[nodes[sampled]] <= limit[sampled]).all()

    def test_temporal_triplet(self, make, edge_type):
        graph = make(times=True)
        negatives = NegativeSpec(mode="triplet", amount=3)
        sampler = samplers(graph, edge_type, negatives=negatives, disjoint=True, temporal="last")
        time = torch.tensor([0, 2, 4, 5, 6])
        out = ask(sampler, SRC, DST, time_max=time.tolist())
        assert out.time_max.tolist() == time.tolist()
        drawn = out.subgraph.node[edge_type[2]][out.dst_neg_index]
        assert (TIME[drawn] <= time[:, None]).all()
        assert (out.subgraph.tree[edge_type[2]][out.dst_neg_index] % 5 == torch.arange(5)[:, None]).all()

    def test_window(self, make, edge_type):
        sampler = samplers(make(times=True), edge_type, disjoint=True, temporal="uniform")
        out = ask(sampler, SRC, DST, time_max=[6] * 5, time_min=[3] * 5)
        for t, index in ((edge_type[0], out.src_index), (edge_type[2], out.dst_index)):
            nodes = out.subgraph.node[t]
            first_new = 10 if edge_type == E else index.numel()
            assert (TIME[nodes[first_new:]] >= 3).all()


class TestErrors:
    @pytest.mark.parametrize(
        ("negatives", "weights", "message"),
        [
            (NegativeSpec(mode="ternary"), {}, "ternary"),
            (NegativeSpec(mode="binary", amount=0), {}, "amount=0"),
            (NegativeSpec(mode="binary", amount=float("nan")), {}, "amount=nan"),
            (NegativeSpec(mode="triplet", amount=1.5), {}, "whole number"),
            (NegativeSpec(mode="triplet"), {"src_weight": torch.ones(20)}, "leave src_weight out"),
            (None, {"dst_weight": torch.ones(20)}, "for negatives only"),
            (NegativeSpec(mode="binary"), {"dst_weight": torch.ones(19)}, "shape \\[20\\]"),
        ],
    )
    def test_at_construction(self, negatives, weights, message):
        with pytest.raises(InputError, match=message):
            samplers(homogeneous(), E, negatives=negatives, **weights)

    def test_unknown_edge_type(self):
        with pytest.raises(InputError, match="Unknown edge type"):
            samplers(homogeneous(), RATES)

    @pytest.mark.parametrize(
        ("src", "dst", "times", "message"),
        [
            ([1, 2], [1], {}, "as many sources"),
            ([20], [1], {}, "got 20"),
            ([1], [-1], {}, "got -1"),
            ([1, 2], [3, 4], {"time_max": [1]}, "time_max as an int64 tensor of shape \\[2\\]"),
            ([1], [3], {"time_min": [1]}, "time_max with time_min"),
            ([1], [3], {"time_max": [1]}, "disjoint=True"),
        ],
    )
    def test_of_a_request(self, src, dst, times, message):
        with pytest.raises(InputError, match=message):
            ask(samplers(homogeneous(), E), src, dst, **times)

    def test_another_edge_type(self):
        sampler = samplers(bipartite(), RATES)
        request = EdgeRequest(key=KEY, edge_type=RATED, src=torch.tensor([1]), dst=torch.tensor([1]))
        with pytest.raises(InputError, match="rated_by"):
            sampler.sample(request)

    def test_disjoint_must_agree(self):
        node_sampler = ReferenceSampler(homogeneous(), NeighborSpec(fanouts={E: (2,)}, disjoint=True))
        with pytest.raises(InputError, match="disjoint=False"):
            ask(EdgeSampler(node_sampler, homogeneous(), E), [1], [2])
