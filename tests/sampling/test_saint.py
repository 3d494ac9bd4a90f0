"""The nodes of GraphSAINT's subgraphs: what the contract says, and with its probabilities."""

import pytest
import torch
from cpu_cases import one_type

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.sampling import BatchKey, ReferenceWalkSampler, WalkRequest, WalkSpec
from manyhop.sampling.random import Use, draw, make_key, unit
from manyhop.sampling.walks import SaintDraws

KEY = BatchKey(3, 1, 4)


def reversed_graph(edges, num_nodes=30):
    """Columns are sources."""
    src, dst = (torch.tensor(ends, dtype=torch.int64) for ends in zip(*edges, strict=True))
    return one_type(num_nodes, dst, src)


def some_edges():
    return torch.randint(0, 25, (90, 2), generator=torch.Generator().manual_seed(1)).tolist()


def shares(n):
    return [float(unit(draw(make_key(Use.SAINT, *KEY), i))) for i in range(n)]


def test_nodes_and_edges_by_the_contract():
    edges = sorted(some_edges(), key=lambda edge: edge[0])  # stored order
    graph = reversed_graph(edges)
    drawn = {edges[int(x * len(edges))][0] for x in shares(20)}
    assert SaintDraws(graph, "nodes", 20).draw(KEY).tolist() == sorted(drawn)
    weight = [sum(d == src for _, d in edges) + sum(s == dst for s, _ in edges) for src, dst in edges]
    ends: set[int] = set()
    for x in shares(20):
        left = int(x * sum(weight))
        ends.update(next(edge for i, edge in enumerate(edges) if sum(weight[: i + 1]) > left))
    assert SaintDraws(graph, "edges", 20).draw(KEY).tolist() == sorted(ends)


def test_walks_by_the_contract():
    graph = reversed_graph(some_edges())
    start = torch.tensor([int(x * 30) for x in shares(7)])
    walks = ReferenceWalkSampler(graph, WalkSpec(steps=(EDGE,) * 3)).sample(WalkRequest(key=KEY, start=start))
    assert SaintDraws(graph, "walks", 7, 3).draw(KEY).tolist() == sorted(set(walks.node.flatten().tolist()) - {-1})


def test_edges_none_of_which_counts_are_uniform():
    graph = reversed_graph([(0, 3), (1, 4), (2, 5)], 6)  # nothing leads into a source, nothing out of a destination
    found = {tuple(SaintDraws(graph, "edges", 1).draw(BatchKey(1, 0, b)).tolist()) for b in range(40)}
    assert found == {(0, 3), (1, 4), (2, 5)}


def test_an_empty_graph():
    graph = one_type(3, *torch.empty(2, 0, dtype=torch.int64))
    with pytest.raises(InputError, match="got 3 nodes and 0 edges"):
        SaintDraws(graph, "walks", 3)
