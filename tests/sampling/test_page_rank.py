"""Neighbours by personalised PageRank: the compiled sampler is the reference bit for bit, and ranks are right."""

import pytest
import torch
from cpu_cases import one_type

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.sampling import CPUPageRankSampler, PageRankSpec, ReferencePageRankSampler


def graph_of(num_nodes=60, num_edges=400, dtype=torch.int64):
    g = torch.Generator().manual_seed(num_edges)
    row, col = torch.randint(0, num_nodes - 3, (2, num_edges), generator=g)  # three nodes without edges; some parallel
    return one_type(num_nodes, row.to(dtype), col.to(dtype))


def both(graph, spec, nodes, **options):
    found = CPUPageRankSampler(graph, spec).sample(nodes, **options)
    expected = ReferencePageRankSampler(graph, spec).sample(nodes)
    for name in ("begin", "node", "value"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    return found


@pytest.mark.parametrize("top_k", [None, 1, 7, 1000])
@pytest.mark.parametrize(("alpha", "eps"), [(0.2, 1e-5), (0.05, 1e-3), (1.0, 1e-4), (0.5, 10.0)])
def test_as_the_reference(alpha, eps, top_k):
    nodes = torch.cat([torch.arange(12), torch.arange(54, 60), torch.arange(2)])
    found = both(graph_of(), PageRankSpec(edge_type=EDGE, alpha=alpha, eps=eps, top_k=top_k), nodes)
    sizes = found.begin.diff()
    assert bool((sizes >= 1).all())
    assert top_k is None or int(sizes.max()) <= top_k
    assert sizes[15:18].tolist() == [1, 1, 1]


def test_more_nodes_than_the_first_tables_have_room_for(monkeypatch):
    graph = graph_of(4000, 24_000, torch.int32)
    both(graph, PageRankSpec(edge_type=EDGE, eps=1e-4), torch.tensor([5, 8]))
    monkeypatch.setattr("manyhop.sampling.cpu.walk_sampler._ROOM", 100)
    monkeypatch.setattr("manyhop.sampling.cpu.walk_sampler._PIECE", 3)
    for top_k in (None, 70):
        both(graph_of(), PageRankSpec(edge_type=EDGE, top_k=top_k), torch.arange(20), num_threads=3)


def test_ranks_are_those_of_the_linear_system():
    graph, alpha, eps = graph_of(), 0.2, 1e-7
    csc = graph.csc[EDGE]
    degree = csc.colptr.diff()
    step = torch.zeros(60, 60, dtype=torch.float64)  # step[v, u]: from v to an in-neighbour u
    step.index_put_(
        (torch.arange(60).repeat_interleave(degree), csc.row.long()), torch.ones(400).double(), accumulate=True
    )
    step /= degree.clamp(min=1)[:, None]
    exact = alpha * torch.linalg.inv(torch.eye(60) - (1 - alpha) * step)
    spec = PageRankSpec(edge_type=EDGE, alpha=alpha, eps=eps)
    found = CPUPageRankSampler(graph, spec).sample(torch.arange(60))
    rank = torch.zeros(60, 60, dtype=torch.float64)
    rank[torch.arange(60).repeat_interleave(found.begin.diff()), found.node] = found.value
    assert bool((rank <= exact + 1e-12).all())
    assert float((exact - rank).max()) < 400 * eps  # what is left is below eps for each edge
    best = CPUPageRankSampler(graph, PageRankSpec(edge_type=EDGE, alpha=alpha, eps=eps, top_k=5)).sample(
        torch.arange(57)
    )
    assert torch.equal(best.value.view(57, 5), rank[:57].topk(5).values)


def test_no_nodes():
    spec = PageRankSpec(edge_type=EDGE)
    assert both(graph_of(), spec, torch.arange(0)).begin.tolist() == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha above 0 and at most 1, got 0.0"),
        ({"alpha": 1.1}, "alpha above 0 and at most 1, got 1.1"),
        ({"eps": 0.0}, "positive number"),
        ({"top_k": 0}, "at least 1"),
        ({"edge_type": ("a", "b", "c")}, "Unknown edge type"),
    ],
    ids=str,
)
def test_wrong_specs(options, message):
    for sampler in (CPUPageRankSampler, ReferencePageRankSampler):
        with pytest.raises(InputError, match=message):
            sampler(graph_of(), PageRankSpec(**({"edge_type": EDGE} | options)))


def test_wrong_nodes():
    with pytest.raises(InputError, match=r"in \[0, 60\), got 60"):
        CPUPageRankSampler(graph_of(), PageRankSpec(edge_type=EDGE)).sample(torch.tensor([60]))
