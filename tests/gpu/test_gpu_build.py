"""Edges grouped on a GPU: the same tables as on the CPU, none on the host, and the same batches."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import manyhop_dgl
from manyhop.graph import EdgeInput, PlacedGraph, build_graph, deferred
from manyhop_dgl.graph.topology import topology_of
from manyhop_pyg import NeighborLoader

pytestmark = pytest.mark.gpu

E = ("_N", "_E", "_N")


@pytest.fixture
def edges():
    """More than are sorted by torch, with a node of many in-edges."""
    g = torch.Generator().manual_seed(0)
    both = torch.randint(0, 100_000, (2, 3_000_000), generator=g)
    both[1, ::7] = 5
    return both


def build(edges, defer):
    return build_graph({"_N": 100_000}, {E: EdgeInput(row=edges[0], col=edges[1])}, defer=defer)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tables_are_those_of_the_cpu(edges, dtype):
    device = torch.device("cuda", torch.cuda.current_device())
    expected, graph = build(edges, defer=False), build(edges.to(dtype), defer=True)
    placed = PlacedGraph.of(graph, device, "device")
    assert not graph.is_made
    for name, table in expected.csc[E].tables().items():
        there = placed.graph.csc[E].tables()[name]
        assert there.device == device
        assert there.dtype == table.dtype
        assert torch.equal(there.cpu(), table)
    assert all(map(torch.equal, graph.tables(), expected.tables()))  # copied from the GPU


@pytest.mark.parametrize("in_order", [False, True])
def test_edges_on_a_gpu_do_not_come_to_the_host(edges, in_order, monkeypatch):
    device = torch.device("cuda", torch.cuda.current_device())
    if in_order:
        edges[1] = edges[1].sort().values
    expected, there = build(edges, defer=False), edges.to(device)
    copied = []
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: copied.append(tensor) or tensor.to("cpu"))
    loaders = [NeighborLoader(Data(edge_index=there, num_nodes=100_000), [5], batch_size=512, seed=1)]
    g = manyhop_dgl.Graph(tuple(there), num_nodes=100_000)
    graphs = [loaders[0].node_sampler.topology.graph, topology_of(g).graph]
    for graph in graphs:
        placed = PlacedGraph.of(graph, device, "device")
        assert not graph.is_made
        assert all(tensor.numel() < 1_000_000 for tensor in copied)
        tables, wanted = placed.graph.csc[E].tables(), expected.csc[E].tables()
        assert tables.keys() == wanted.keys()
        assert all(torch.equal(tables[name].to("cpu"), table) for name, table in wanted.items())
    first = next(iter(NeighborLoader(Data(edge_index=edges, num_nodes=100_000), [5], batch_size=512, seed=1)))
    assert torch.equal(next(iter(loaders[0])).n_id.to("cpu"), first.n_id.to("cpu"))


def test_a_full_gpu_is_helped_by_the_cpu(edges, monkeypatch):
    def fail(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(deferred, "_sent", fail)
    graph = build(edges, defer=True)
    placed = PlacedGraph.of(graph, torch.device("cuda", torch.cuda.current_device()), "device")
    assert graph.is_made
    assert torch.equal(placed.graph.csc[E].row.cpu(), graph.csc[E].row)


@pytest.mark.parametrize("distributed", [False, True])
def test_batches_are_those_of_the_cpu_without_tables_on_the_host(edges, distributed):
    data = Data(edge_index=edges, num_nodes=100_000)
    options = {"batch_size": 512, "shuffle": True, "seed": 1, "distributed": distributed}
    loader = NeighborLoader(data, [10, 5], device="cuda", **options)
    batch = next(iter(loader))
    assert not loader.node_sampler.topology.graph.is_made
    expected = next(
        iter(NeighborLoader(Data(edge_index=edges.clone(), num_nodes=100_000), [10, 5], device="cpu", **options))
    )
    assert torch.equal(batch.n_id.cpu(), expected.n_id)
    assert torch.equal(batch.e_id.cpu(), expected.e_id)


def test_a_graph_of_ours_waits_too(edges):
    g = manyhop_dgl.Graph((edges[0], edges[1]), num_nodes=100_000)
    graph = topology_of(g).graph
    placed = PlacedGraph.of(graph, torch.device("cuda", torch.cuda.current_device()), "device")
    assert not graph.is_made
    assert int(placed.graph.csc[E].colptr[-1]) == 3_000_000
