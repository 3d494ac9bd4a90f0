"""Edges that a batch must not have: dropped after picking, in every mode, by the reference and by the CPU backend."""

import pytest
import torch
from cpu_cases import E, N, assert_equal, one_type, request_of, spec_of
from test_cpu_sampler import larger_graph

from manyhop.errors import InputError
from manyhop.sampling import (
    BatchKey,
    CPUHGTSampler,
    CPUSampler,
    EdgeRequest,
    EdgeSampler,
    HGTSpec,
    ReferenceHGTSampler,
    ReferenceSampler,
)

BACKENDS = [ReferenceSampler, CPUSampler]
KEY = BatchKey(3, 0, 0)


def line():
    """0 <- 1 <- 2 <- 3 and 0 <- 4, in another order than stored: ids 0: 2 <- 3, 1: 0 <- 4, 2: 1 <- 2, 3: 0 <- 1."""
    return one_type(5, [3, 4, 2, 1], [2, 0, 1, 0])


def sample(backend, graph, ids, seeds=(0,), fanouts=(-1, -1, -1), **options):
    exclude = {E: torch.tensor(ids, dtype=torch.int64)}
    return backend(graph, spec_of(*fanouts, **options)).sample(request_of(seeds, exclude=exclude))


@pytest.mark.parametrize("backend", BACKENDS)
class TestWhatIsLeft:
    def test_nodes_reached_only_through_them_are_absent(self, backend):
        got = sample(backend, line(), [2])
        assert got.node[N].tolist() == [0, 4, 1]
        assert got.edge_id[E].tolist() == [1, 3]
        assert got.num_sampled_nodes == {N: [1, 2, 0, 0]}
        assert got.num_sampled_edges == {E: [2, 0, 0]}

    def test_ids_of_no_edge(self, backend):
        assert_equal(sample(backend, line(), [-1, 4, 2**62]), sample(backend, line(), []))

    def test_nobody_picks_another_in_their_place(self, backend):
        graph = larger_graph(200, 3000, 200)
        plain = sample(backend, graph, [], seeds=(7, 3, 7), fanouts=(6,))
        gone = plain.edge_id[E][[0, 5, 8]]
        got = sample(backend, graph, gone.tolist(), seeds=(7, 3, 7), fanouts=(6,))
        left = ~torch.isin(plain.edge_id[E], gone)
        assert got.edge_id[E].tolist() == plain.edge_id[E][left].tolist()
        assert left.sum() < 18

    def test_every_time_an_edge_is_picked(self, backend):
        got = sample(backend, one_type(3, [1, 2], [0, 0]), [0], fanouts=(64,), replace=True)
        assert 0 < got.edge_id[E].numel() < 64
        assert set(got.edge_id[E].tolist()) == {1}

    def test_induced_edges(self, backend):
        got = sample(backend, one_type(2, [1, 0, 1], [0, 1, 0]), [1, 2], fanouts=(-1,), subgraph="induced")
        assert got.edge_id[E].tolist() == [0]

    def test_reverses_of_what_is_left(self, backend):
        got = sample(backend, line(), [2], subgraph="bidirectional", reverse={E: E})
        assert sorted(got.edge_id[E].tolist()) == [1, 1, 3, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_around_seed_edges(backend):
    graph = line()
    request = EdgeRequest(
        key=KEY,
        edge_type=E,
        src=torch.tensor([1]),
        dst=torch.tensor([0]),
        exclude={E: torch.tensor([3])},
    )
    got = EdgeSampler(backend(graph, spec_of(-1, -1)), graph, E).sample(request)
    assert sorted(got.subgraph.edge_id[E].tolist()) == [0, 1, 2]


class TestErrors:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize(
        ("exclude", "message"),
        [
            ({("a", "b", "c"): torch.tensor([0])}, "Unknown edge type"),
            ({E: torch.tensor([0], dtype=torch.int32)}, "int64"),
            ({E: torch.tensor([[0]])}, "1-dimensional"),
        ],
    )
    def test_what_is_no_list_of_edges(self, backend, exclude, message):
        with pytest.raises(InputError, match=message):
            backend(line(), spec_of(1)).sample(request_of([0], exclude=exclude))

    @pytest.mark.parametrize("backend", [ReferenceHGTSampler, CPUHGTSampler])
    def test_hgt(self, backend):
        sampler = backend(line(), HGTSpec(num_samples={N: (2,)}))
        with pytest.raises(InputError, match="HGT"):
            sampler.sample(request_of([0], exclude={E: torch.tensor([0])}))
