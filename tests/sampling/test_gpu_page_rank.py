"""Neighbours by PageRank on a GPU are those of the reference bit for bit; here by triton's interpreter."""

import pytest
import torch
from cpu_cases import one_type
from test_page_rank import EDGE, graph_of

from manyhop.errors import InputError
from manyhop.graph import place
from manyhop.sampling import CPUPageRankSampler, GPUPageRankSampler, PageRankSpec, ReferencePageRankSampler
from manyhop.sampling.gpu import walk_sampler
from manyhop.sampling.gpu.kernels.walks import NO_ROOM, NO_SLOTS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def same(found, expected):
    for name in ("begin", "node", "value"):
        assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), name


def check(graph, nodes, **options):
    spec = PageRankSpec(edge_type=EDGE, **options)
    found = GPUPageRankSampler(place(graph, DEVICE), spec, device=DEVICE).sample(nodes)
    assert found.node.device.type == DEVICE
    same(found, ReferencePageRankSampler(graph, spec).sample(nodes))
    return found


@pytest.mark.parametrize("top_k", [None, 1, 7, 1000])
@pytest.mark.parametrize(("alpha", "eps"), [(0.2, 1e-2), (0.05, 0.03), (1.0, 1e-2), (0.5, 10.0)])
def test_as_the_reference(alpha, eps, top_k):
    check(graph_of(), torch.tensor([5, 59, 0, 5]), alpha=alpha, eps=eps, top_k=top_k)


def test_columns_longer_than_a_warp_with_parallel_edges_and_loops():
    hub = torch.tensor([3, 3, *range(40), 3, 0, 0, 41, 0])  # of node 0: some several times, itself, too
    row = torch.cat([hub, torch.arange(42)])
    col = torch.cat([hub * 0, (torch.arange(42) * 7 + 1) % 42])
    for dtype in (torch.int32, torch.int64):
        graph = one_type(42, row.to(dtype), col.to(dtype))
        for top_k in (None, 5):
            check(graph, torch.tensor([0, 3]), eps=1e-2, top_k=top_k)


def test_equal_ranks_come_by_id():
    leaves = torch.arange(1, 30).flip(0)
    graph = one_type(30, leaves, leaves * 0)
    found = check(graph, torch.tensor([0]), eps=1e-3, top_k=9)
    assert found.node.tolist() == list(range(9))


def test_tables_and_results_grow(monkeypatch):
    monkeypatch.setattr(walk_sampler, "_LOG_SLOTS", 6)
    monkeypatch.setattr(walk_sampler, "_ROOM", 1)
    monkeypatch.setattr(walk_sampler, "_FIRST_PIECE", 2)
    monkeypatch.setattr(walk_sampler, "_PIECE", 3)
    monkeypatch.setattr(walk_sampler, "_PROGRAMS", 2)
    seen, launch = set(), GPUPageRankSampler._launch

    def watched(self, nodes, todo, size, *others):
        found = launch(self, nodes, todo, size, *others)
        seen.update(size[todo].tolist())
        return found

    monkeypatch.setattr(GPUPageRankSampler, "_launch", watched)
    graph = graph_of()
    check(graph, torch.arange(9), eps=1e-2, top_k=4)
    assert NO_SLOTS.value in seen
    check(graph, torch.arange(9), eps=1e-2)
    assert NO_ROOM.value in seen


def test_no_nodes_and_wrong_ones():
    assert check(graph_of(), torch.arange(0)).begin.tolist() == [0]
    sampler = GPUPageRankSampler(place(graph_of(), DEVICE), PageRankSpec(edge_type=EDGE), device=DEVICE)
    with pytest.raises(InputError, match=r"in \[0, 60\), got 60"):
        sampler.sample(torch.tensor([60], device=DEVICE))


@pytest.mark.gpu
@pytest.mark.parametrize("top_k", [None, 32, 5000])
def test_many_seeds_in_a_large_graph(top_k):
    g = torch.Generator().manual_seed(0)
    n, m = 200_000, 4_000_000
    row, col = (torch.rand(m, generator=g) ** 3 * n).long(), torch.randint(0, n, (m,), generator=g)
    graph = one_type(n, row, col)
    spec = PageRankSpec(edge_type=EDGE, eps=1e-5, top_k=top_k)
    nodes = torch.randint(0, n, (3000,), generator=g)
    found = GPUPageRankSampler(place(graph, DEVICE), spec, device=DEVICE).sample(nodes.to(DEVICE))
    same(found, CPUPageRankSampler(graph, spec).sample(nodes, num_threads=torch.get_num_threads()))
