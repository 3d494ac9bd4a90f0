"""Where a GPU may come to sample, the edges of a ``manyhop_dgl.Graph`` are grouped when and where they are read."""

import pytest
import torch

import manyhop_dgl
from manyhop.graph import PlacedGraph
from manyhop_dgl.graph.topology import topology_of


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edges_wait_for_their_reader(few_are_many, request, edge_dir):
    edges = tuple(torch.randint(0, 200, (2, 3000), generator=torch.Generator().manual_seed(0)))
    expected = topology_of(manyhop_dgl.Graph(edges, num_nodes=200), edge_dir=edge_dir).graph
    request.getfixturevalue("gpu_in_reach")
    g = manyhop_dgl.Graph(edges, num_nodes=200)
    graph = topology_of(g, edge_dir=edge_dir).graph
    if edge_dir == "in":
        assert not graph.is_made
        placed = PlacedGraph.of(graph, torch.device("cpu"), "device").graph
        assert not graph.is_made
        assert all(map(torch.equal, placed.tables(), expected.tables()))
    assert all(map(torch.equal, graph.tables(), expected.tables()))
    assert g.num_edges() == 3000
