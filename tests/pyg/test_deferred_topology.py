"""Where a GPU may come to sample, edges are grouped when and where they are read."""

import pytest
import torch
from gpu_stand_ins import CPU, pyg_works_on
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from manyhop.graph import PlacedGraph
from manyhop_pyg import NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("few_are_many")


@pytest.fixture
def edges():
    return torch.randint(0, 200, (2, 3000), generator=torch.Generator().manual_seed(0))


def batches(edges):
    data = Data(edge_index=edges.clone(), x=torch.arange(200.0)[:, None])
    return [(b.n_id.tolist(), b.e_id.tolist()) for b in NeighborLoader(data, [4, 3], batch_size=30, seed=3)]


def test_a_sampler_on_the_cpu_makes_the_tables_when_it_samples(edges, request):
    expected = batches(edges)
    request.getfixturevalue("gpu_in_reach")
    assert batches(edges) == expected
    sampler = NeighborSampler(Data(edge_index=edges, num_nodes=200), [4, 3])
    graph = sampler.topology.graph
    assert not graph.is_made
    sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(10)))
    assert graph.is_made


def test_loaders_share_what_a_gpu_has(edges, gpu_in_reach):
    data = Data(edge_index=edges, num_nodes=200)
    samplers = [NeighborSampler(data, [4, fanout]) for fanout in (2, 3)]
    first, second = (sampler.topology.graph for sampler in samplers)
    placed = PlacedGraph.of(first, torch.device("cpu"), "device")
    assert PlacedGraph.of(second, torch.device("cpu"), "device") is placed
    assert not first.is_made


def test_ranks_compare_edges_that_a_gpu_has(edges, gpu_in_reach, monkeypatch):
    data = Data(edge_index=edges, num_nodes=200)
    expected = NeighborLoader(data, [4], distributed=True, device="cpu")._facts(None)
    data = Data(edge_index=edges.clone(), num_nodes=200)
    pyg_works_on(monkeypatch.setattr, CPU)
    found: list[dict[str, object]] = []
    monkeypatch.setattr(NeighborLoader, "_find_gpu", lambda loader: found.append(loader._facts(None)))
    loader = NeighborLoader(data, [4], distributed=True)
    assert not loader.node_sampler.topology.graph.is_made
    assert {name: fact for name, fact in found[0].items() if "edges" in name or name == "edge ids"} == {
        name: fact for name, fact in expected.items() if "edges" in name or name == "edge ids"
    }
