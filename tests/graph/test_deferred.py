"""Edge lists that are grouped where they are read. Here the CPU stands for a GPU: torch sorts there."""

import pickle

import pytest
import torch

from manyhop.errors import GraphError
from manyhop.graph import EdgeInput, PlacedGraph, build_graph, columns, deferred, place, with_mask, with_weights

E = ("a", "to", "b")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """A hundred edges are many."""
    monkeypatch.setattr(columns, "SMALL", 100)


def draw(num_edges=5000, num_dst=300):
    g = torch.Generator().manual_seed(0)
    row = torch.randint(0, 777, (num_edges,), generator=g)
    return row, (torch.rand(num_edges, generator=g) ** 3 * num_dst).long()


def build(row, col, num_dst=300, defer=True, **edges):
    return build_graph({"a": 777, "b": num_dst}, {E: EdgeInput(row=row, col=col, **edges)}, defer=defer)


def same(csc, expected):
    got, expected = csc.tables(), expected.tables()
    assert got.keys() == expected.keys()
    return all(got[name].dtype == table.dtype and torch.equal(got[name], table) for name, table in expected.items())


@pytest.mark.parametrize("num_dst", [2, 300, 100_000])
def test_tables_are_the_same_wherever_they_are_made(num_dst):
    row, col = draw(num_dst=num_dst)
    expected = build(row, col, num_dst, defer=False)
    graph = build(row, col, num_dst)
    csc = graph.csc[E]
    assert (csc.num_src, csc.num_dst, csc.num_edges, graph.num_edges(E)) == (777, num_dst, 5000, 5000)
    assert (graph.nbytes, graph.pointer_bytes) == (expected.nbytes, expected.pointer_bytes)
    assert (csc.time, csc.weight, csc.time_codes) == (None, None, None)
    assert "num_edges=5000" in repr(csc)
    placed = PlacedGraph.of(graph, CPU, "device")
    assert not graph.is_made
    assert same(placed.graph.csc[E], expected.csc[E])
    assert csc.anywhere() is placed.graph.csc[E]
    assert graph.edge_ids()[E] is placed.graph.csc[E].perm
    assert csc.on(CPU) is placed.graph.csc[E]
    del placed
    assert not graph.is_made
    assert same(csc, expected.csc[E])
    assert graph.is_made
    assert csc.anywhere() is csc.made() is csc.on(CPU)
    assert same(place(graph, "cpu").csc[E], expected.csc[E])


def test_tables_on_a_gpu_are_copied_to_the_host(monkeypatch):
    row, col = draw()
    graph = build(row, col)
    placed = PlacedGraph.of(graph, CPU, "device")
    row.zero_()  # what there is stays
    assert same(graph.csc[E], placed.graph.csc[E])


def test_edges_that_were_changed_are_not_grouped():
    row, col = draw()
    graph = build(row, col)
    col[3] = 5
    with pytest.raises(GraphError, match="changed in place"):
        graph.tables()
    with pytest.raises(GraphError, match="changed in place"):
        PlacedGraph.of(graph, CPU, "device")


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_a_gpu_that_is_full_gets_the_tables_of_the_host(monkeypatch, full):
    row, col = draw()
    graph = build(row, col)

    def fail(*args):
        raise torch.OutOfMemoryError

    if full == "before":
        monkeypatch.setattr(deferred, "has_room", lambda *sizes: False)
    else:
        monkeypatch.setattr(deferred, "_sent", fail)
    assert same(PlacedGraph.of(graph, CPU, "device").graph.csc[E], build(row, col, defer=False).csc[E])
    assert graph.is_made


def test_other_graphs_are_made_of_it():
    row, col = draw()
    expected = build(row, col, defer=False)
    copy = pickle.loads(pickle.dumps(build(row, col)))
    assert same(copy.csc[E], expected.csc[E])
    weights, mask = {E: torch.rand(5000)}, {E: row > 300}
    for variant, of in ((with_weights, weights), (with_mask, mask)):
        assert same(variant(build(row, col), of).csc[E], variant(expected, of).csc[E])


def test_what_cannot_wait_is_made_at_once():
    row, col = draw()
    ids, time = torch.randperm(5000), torch.arange(5000)
    for edges in ({"weight": torch.rand(5000)}, {"time": time}, {"edge_id": ids}):
        assert build(row, col, **edges).is_made
    assert build(row, col.sort().values).is_made
    assert build(row[:100], col[:100]).is_made
    assert build(row, col, defer=False).is_made
    with torch.inference_mode():
        assert build(row.clone(), col.clone()).is_made
    with pytest.raises(GraphError, match="got -1"):
        build(row - 1, col)
    with pytest.raises(GraphError, match="not in order"):
        build(row, col, is_sorted=True)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_edges_in_memory_of_a_gpu_are_grouped_there(monkeypatch, in_order, dtype):
    row, col = (ids.to(dtype) for ids in draw())
    col = col.sort().values if in_order else col
    expected = build(row, col, defer=False)
    monkeypatch.setattr("manyhop.graph.build._on_gpu", lambda *tensors: True)
    for claimed in (False, in_order):
        graph = build(row, col, is_sorted=claimed)
        placed = PlacedGraph.of(graph, CPU, "device")
        assert not graph.is_made
        assert graph.nbytes == expected.nbytes
        assert same(placed.graph.csc[E], expected.csc[E])
        del placed
        assert same(graph.csc[E], expected.csc[E])  # made on the host
    if not in_order:
        with pytest.raises(GraphError, match="not in order of destination"):
            build(row, col, is_sorted=True)
    with pytest.raises(GraphError, match="destination nodes of edge type"):
        build(row, col + 300)
    assert build(row, col, weight=torch.ones(5000)).is_made
