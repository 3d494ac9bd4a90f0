"""Questions about the edges of a graph, answered as a list of edges answers them."""

import pytest
import torch

from manyhop.errors import GraphError
from manyhop.graph import (
    EdgeInput,
    build_graph,
    endpoints,
    has_edges,
    in_degrees,
    out_degrees,
    reverse_edges,
    with_edge_ids,
    with_weights,
    without_edges,
)

LIKES, KNOWS = ("user", "likes", "film"), ("user", "knows", "user")
NUM_NODES = {"user": 5, "film": 4}
SRC = torch.tensor([4, 0, 0, 3, 0, 4])
DST = torch.tensor([1, 2, 2, 0, 1, 1])


@pytest.fixture
def graph():
    edges = {LIKES: EdgeInput(row=SRC, col=DST), KNOWS: EdgeInput(row=torch.empty(0).long(), col=torch.empty(0).long())}
    return build_graph(NUM_NODES, edges)


def test_numbers_and_tables(graph):
    assert [graph.num_edges(t) for t in graph.edge_types] == [6, 0]
    names = [list(csc.tables()) for csc in graph.csc.values()]
    assert names[0] == ["colptr", "row", "perm"]
    tables = graph.tables()
    assert len(tables) == sum(map(len, names))
    assert tables[0] is graph.csc[LIKES].colptr
    assert graph.nbytes == sum(table.nbytes for table in tables)
    assert graph.pointer_bytes == 8 * (5 + 6)
    assert graph.edge_ids()[LIKES] is graph.csc[LIKES].perm
    weighted = with_weights(graph, {LIKES: torch.rand(6)})
    assert {"weight", "alias"} <= set(weighted.csc[LIKES].tables())
    assert weighted.nbytes > graph.nbytes
    nothing = build_graph(NUM_NODES, {})
    assert (nothing.nbytes, nothing.tables()) == (0, [])


def test_ends_and_degrees(graph):
    row, col = endpoints(graph, LIKES)
    assert (row.tolist(), col.tolist()) == (SRC.tolist(), DST.tolist())
    assert in_degrees(graph, LIKES).tolist() == torch.bincount(DST, minlength=4).tolist()
    assert in_degrees(graph, LIKES, torch.tensor([2, 3, 2])).tolist() == [2, 0, 2]
    assert out_degrees(graph, LIKES).tolist() == torch.bincount(SRC, minlength=5).tolist()
    assert (in_degrees(graph, KNOWS).tolist(), out_degrees(graph, KNOWS).tolist()) == ([0] * 5, [0] * 5)


def test_whether_there_are_edges(graph):
    src, dst = (ids.flatten() for ids in torch.meshgrid(torch.arange(5), torch.arange(4), indexing="ij"))
    there = set(zip(SRC.tolist(), DST.tolist(), strict=True))
    assert has_edges(graph, LIKES, src, dst).tolist() == [
        pair in there for pair in zip(src.tolist(), dst.tolist(), strict=True)
    ]
    assert not has_edges(graph, KNOWS, torch.tensor([0]), torch.tensor([1])).any()


def test_reverses_have_the_same_ids(graph):
    reverse = reverse_edges(graph)
    assert reverse.edge_types == (("film", "likes", "user"), ("user", "knows", "user"))
    row, col = endpoints(reverse, ("film", "likes", "user"))
    assert (row.tolist(), col.tolist()) == (DST.tolist(), SRC.tolist())


def test_other_ids(graph):
    ids = torch.arange(6) * 7
    named = with_edge_ids(graph, {LIKES: ids, KNOWS: torch.empty(0).long()})
    assert named.edge_ids()[LIKES].tolist() == (7 * graph.csc[LIKES].perm).tolist()
    assert named.csc[LIKES].row is graph.csc[LIKES].row
    assert named.edge_ids()[LIKES].dtype == torch.int32
    assert with_edge_ids(graph, {LIKES: ids << 30}).edge_ids()[LIKES].dtype == torch.int64
    with pytest.raises(GraphError, match="Unknown edge type"):
        with_edge_ids(graph, {("a", "b", "c"): ids})


def test_no_edges_of_any_type(graph):
    empty = without_edges(graph, ("film", "made_by", "user"))
    assert empty.edge_types == (("film", "made_by", "user"),)
    assert empty.num_nodes == graph.num_nodes
    assert empty.csc["film", "made_by", "user"].num_src == 4
    assert in_degrees(empty, ("film", "made_by", "user")).tolist() == [0] * 5
