"""Edges that a batch must not have: dropped after picking, in every mode, by the reference and by the CPU backend."""

import pytest
import torch
from cpu_cases import assert_equal
from test_cpu_sampler import larger_graph

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.sampling import (
    BatchKey,
    CPUHGTSampler,
    CPUSampler,
    EdgeRequest,
    EdgeSampler,
    HGTSpec,
    NeighborSpec,
    NodeRequest,
    ReferenceHGTSampler,
    ReferenceSampler,
)

BACKENDS = [ReferenceSampler, CPUSampler]
KEY = BatchKey(3, 0, 0)


def line():
    """0 <- 1 <- 2 <- 3 and 0 <- 4, in another order than stored: ids 0: 2 <- 3, 1: 0 <- 4, 2: 1 <- 2, 3: 0 <- 1."""
    edge = EdgeInput(row=torch.tensor([3, 4, 2, 1]), col=torch.tensor([2, 0, 1, 0]))
    return build_graph({HOMOGENEOUS_NODE: 5}, {HOMOGENEOUS_EDGE: edge})


def sample(backend, graph, ids, seeds=(0,), fanouts=(-1, -1, -1), **options):
    sampler = backend(graph, NeighborSpec(fanouts={HOMOGENEOUS_EDGE: fanouts}, **options))
    exclude = {HOMOGENEOUS_EDGE: torch.tensor(ids, dtype=torch.int64)}
    return sampler.sample(NodeRequest(key=KEY, seeds={HOMOGENEOUS_NODE: torch.tensor(seeds)}, exclude=exclude))


@pytest.mark.parametrize("backend", BACKENDS)
class TestWhatIsLeft:
    def test_nodes_reached_only_through_them_are_absent(self, backend):
        got = sample(backend, line(), [2])
        assert got.node[HOMOGENEOUS_NODE].tolist() == [0, 4, 1]
        assert got.edge_id[HOMOGENEOUS_EDGE].tolist() == [1, 3]
        assert got.num_sampled_nodes == {HOMOGENEOUS_NODE: [1, 2, 0, 0]}
        assert got.num_sampled_edges == {HOMOGENEOUS_EDGE: [2, 0, 0]}

    def test_ids_of_no_edge(self, backend):
        assert_equal(sample(backend, line(), [-1, 4, 2**62]), sample(backend, line(), []))

    def test_nobody_picks_another_in_their_place(self, backend):
        graph = larger_graph(200, 3000, 200)
        plain = sample(backend, graph, [], seeds=(7, 3, 7), fanouts=(6,))
        gone = plain.edge_id[HOMOGENEOUS_EDGE][[0, 5, 8]]
        got = sample(backend, graph, gone.tolist(), seeds=(7, 3, 7), fanouts=(6,))
        left = ~torch.isin(plain.edge_id[HOMOGENEOUS_EDGE], gone)
        assert got.edge_id[HOMOGENEOUS_EDGE].tolist() == plain.edge_id[HOMOGENEOUS_EDGE][left].tolist()
        assert left.sum() < 18

    def test_every_time_an_edge_is_picked(self, backend):
        graph = build_graph(
            {HOMOGENEOUS_NODE: 3}, {HOMOGENEOUS_EDGE: EdgeInput(row=torch.tensor([1, 2]), col=torch.tensor([0, 0]))}
        )
        got = sample(backend, graph, [0], fanouts=(64,), replace=True)
        assert 0 < got.edge_id[HOMOGENEOUS_EDGE].numel() < 64
        assert set(got.edge_id[HOMOGENEOUS_EDGE].tolist()) == {1}

    def test_induced_edges(self, backend):
        pair = EdgeInput(row=torch.tensor([1, 0, 1]), col=torch.tensor([0, 1, 0]))
        graph = build_graph({HOMOGENEOUS_NODE: 2}, {HOMOGENEOUS_EDGE: pair})
        got = sample(backend, graph, [1, 2], fanouts=(-1,), subgraph="induced")
        assert got.edge_id[HOMOGENEOUS_EDGE].tolist() == [0]

    def test_reverses_of_what_is_left(self, backend):
        got = sample(backend, line(), [2], subgraph="bidirectional", reverse={HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE})
        assert sorted(got.edge_id[HOMOGENEOUS_EDGE].tolist()) == [1, 1, 3, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_around_seed_edges(backend):
    graph = line()
    spec = NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (-1, -1)})
    request = EdgeRequest(
        key=KEY,
        edge_type=HOMOGENEOUS_EDGE,
        src=torch.tensor([1]),
        dst=torch.tensor([0]),
        exclude={HOMOGENEOUS_EDGE: torch.tensor([3])},
    )
    got = EdgeSampler(backend(graph, spec), graph, HOMOGENEOUS_EDGE).sample(request)
    assert sorted(got.subgraph.edge_id[HOMOGENEOUS_EDGE].tolist()) == [0, 1, 2]


class TestErrors:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize(
        ("exclude", "message"),
        [
            ({("a", "b", "c"): torch.tensor([0])}, "Unknown edge type"),
            ({HOMOGENEOUS_EDGE: torch.tensor([0], dtype=torch.int32)}, "int64"),
            ({HOMOGENEOUS_EDGE: torch.tensor([[0]])}, "1-dimensional"),
        ],
    )
    def test_what_is_no_list_of_edges(self, backend, exclude, message):
        sampler = backend(line(), NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (1,)}))
        with pytest.raises(InputError, match=message):
            sampler.sample(NodeRequest(key=KEY, seeds={HOMOGENEOUS_NODE: torch.tensor([0])}, exclude=exclude))

    @pytest.mark.parametrize("backend", [ReferenceHGTSampler, CPUHGTSampler])
    def test_hgt(self, backend):
        sampler = backend(line(), HGTSpec(num_samples={HOMOGENEOUS_NODE: (2,)}))
        request = NodeRequest(
            key=KEY, seeds={HOMOGENEOUS_NODE: torch.tensor([0])}, exclude={HOMOGENEOUS_EDGE: torch.tensor([0])}
        )
        with pytest.raises(InputError, match="HGT"):
            sampler.sample(request)
