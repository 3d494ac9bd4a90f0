"""Induced subgraphs of several sets of nodes in one batch: the trees of seeds are given."""

import pytest
import torch
from cpu_cases import assert_equal

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest, ReferenceSampler

LIKES, BY = ("user", "likes", "item"), ("item", "by", "user")
SEEDS = {"user": torch.tensor([3, 1, 2, 1, 5]), "item": torch.tensor([0, 4, 0, 2])}
TREES = {"user": torch.tensor([0, 0, 1, 2, 2]), "item": torch.tensor([0, 1, 1, 2])}


@pytest.fixture
def graph():
    g = torch.Generator().manual_seed(1)
    users, items = torch.randint(0, 8, (40,), generator=g), torch.randint(0, 5, (40,), generator=g)
    return build_graph(
        {"user": 8, "item": 5}, {LIKES: EdgeInput(row=users, col=items), BY: EdgeInput(row=items, col=users)}
    )


def spec_of(graph, **options):
    options = {"subgraph": "induced", "disjoint": True, "hops": ()} | options
    return NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, options.pop("hops")), **options)


def request(**options):
    return NodeRequest(**({"key": BatchKey(1, 0, 0), "seeds": SEEDS, "tree": TREES} | options))


def check(sample, graph):
    """All edges of the graph between nodes of a tree, and no others."""
    for t, given in SEEDS.items():
        assert torch.equal(sample.node[t].cpu(), given)
        assert torch.equal(sample.tree[t].cpu(), TREES[t])
    for edge_type, csc in graph.csc.items():
        expected = set()
        for i, (u, a) in enumerate(zip(SEEDS[edge_type[0]].tolist(), TREES[edge_type[0]].tolist(), strict=True)):
            for j, (v, b) in enumerate(zip(SEEDS[edge_type[2]].tolist(), TREES[edge_type[2]].tolist(), strict=True)):
                n = int((csc.row[csc.colptr[v] : csc.colptr[v + 1]] == u).sum())
                expected |= {(i, j, k) for k in range(n) if a == b}
        found = list(zip(sample.row[edge_type].tolist(), sample.col[edge_type].tolist(), strict=True))
        assert {(i, j, found[:x].count((i, j))) for x, (i, j) in enumerate(found)} == expected


def test_edges_are_those_within_a_tree(graph):
    expected = ReferenceSampler(graph, spec_of(graph)).sample(request())
    check(expected, graph)
    assert_equal(CPUSampler(graph, spec_of(graph)).sample(request()), expected)


def test_wrong_trees(graph):
    for sampler in (ReferenceSampler, CPUSampler):
        with pytest.raises(InputError, match="no hops"):
            sampler(graph, spec_of(graph, hops=(2,))).sample(request())
        with pytest.raises(InputError, match="for 'item', got nothing"):
            sampler(graph, spec_of(graph)).sample(request(tree={"user": TREES["user"]}))


def test_trees_that_are_not_contiguous(graph):
    for n in (5, 40, 400) * 3:
        tree = torch.arange(n) // 8
        columns = torch.stack([tree, tree + 1], 1)
        seeds = {"user": torch.arange(n) % 8, "item": torch.arange(n) % 5}
        spec, given = spec_of(graph), request(seeds=seeds, tree={"user": columns[:, 0], "item": columns[:, 0]})
        assert_equal(CPUSampler(graph, spec).sample(given), ReferenceSampler(graph, spec).sample(given))
