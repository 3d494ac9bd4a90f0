"""Samplers over the same data share one topology, on the host and on a GPU; what is changed later."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from gpu_stand_ins import CPU, pyg_works_on
from helpers_pyg import stores_of
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

import manyhop_pyg
from manyhop.graph import PlacedGraph
from manyhop.memory.stores.copies import Copy
from manyhop_pyg import NeighborLoader, NeighborSampler
from manyhop_pyg.data.topologies import _known


def test_samplers_over_the_same_edges_share_their_tables(data: Data) -> None:
    first = NeighborSampler(data, [3, 2])
    assert NeighborSampler(data, [5], replace=True).topology is first.topology
    assert NeighborSampler(data.clone(), [3]).topology is not first.topology  # other memory
    copy = Data(edge_index=data.edge_index, num_nodes=60)
    assert NeighborSampler(copy, [3]).topology is first.topology
    assert NeighborSampler(copy, [3], sample_direction="backward").topology is not first.topology
    copy.num_nodes = 61
    assert NeighborSampler(copy, [3]).topology is not first.topology


def test_what_else_tables_are_made_of_counts(data: Data) -> None:
    plain, weighted = NeighborSampler(data, [3]), NeighborSampler(data, [3], weight_attr="edge_weight")
    timed = NeighborSampler(data, [3], time_attr="time")
    assert len({id(s.topology) for s in (plain, weighted, timed)}) == 3
    assert NeighborSampler(data, [3], weight_attr="edge_weight").topology is weighted.topology
    data.edge_weight.mul_(2)
    assert NeighborSampler(data, [3], weight_attr="edge_weight").topology is not weighted.topology
    assert NeighborSampler(data, [3], time_attr="time").topology is timed.topology


@pytest.mark.parametrize("name", ["edge_index", "edge_weight", "time"])
def test_writes_that_torch_does_not_count_are_noticed(data: Data, name: str) -> None:
    attrs = {"weight_attr": "edge_weight"} if name == "edge_weight" else {"time_attr": "time"}
    before = NeighborSampler(data, [-1], **attrs)
    assert NeighborSampler(data, [-1], **attrs).topology is before.topology
    data[name].numpy()[..., 7:9] = data[name].numpy()[..., 8:6:-1]  # as a script, a mapped file or another process may
    after = NeighborSampler(data, [-1], **attrs)
    fresh = NeighborSampler(data.clone(), [-1], **attrs)
    for table in ("row", "colptr", "weight", "time"):
        got, expected = (getattr(s.topology.graph.csc["_N", "_E", "_N"], table) for s in (after, fresh))
        assert got is expected is None or torch.equal(got, expected)
    assert after.topology is not before.topology


def test_copies_on_a_gpu_are_of_the_values_that_tensors_have_now() -> None:
    x = torch.arange(6.0)
    first = Copy.of(x, torch.device("cpu"))
    assert Copy.of(x, torch.device("cpu")) is first
    x.numpy()[2] = 7
    assert Copy.of(x, torch.device("cpu")) is not first


def test_tensors_whose_changes_nobody_counts_are_read_anew() -> None:
    with torch.inference_mode():
        data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
        first = NeighborSampler(data, [-1])
        assert NeighborSampler(data, [-1]).topology is not first.topology


def test_typed_data_and_stores(hetero: HeteroData, data: Data) -> None:
    assert NeighborSampler(hetero, [2]).topology is NeighborSampler(hetero, [2, 2]).topology
    graph = stores_of(data)[1]
    loaders = [NeighborLoader((stores_of(data)[0], graph), [n], batch_size=8, device="cpu") for n in (2, 3)]
    assert loaders[0].neighbor_sampler.topology is loaders[1].neighbor_sampler.topology


def test_nothing_is_kept_for_later(data: Data) -> None:
    sampler = NeighborSampler(data, [2])
    topology, edges = weakref.ref(sampler.topology), weakref.ref(data.edge_index)
    del sampler, data["edge_index"]
    gc.collect()
    assert topology() is None
    assert edges() is None
    other = NeighborSampler(data.__class__(edge_index=torch.tensor([[0], [1]]), num_nodes=2), [1])
    assert all(ref() is not None for ref, _ in _known.values())
    del other


def test_a_gpu_gets_tables_once(data: Data) -> None:
    device = torch.device("meta")
    graph = NeighborSampler(data, [2]).topology.graph
    assert PlacedGraph.find(graph, device, "device") is None
    placed = PlacedGraph.of(graph, device, "device")
    assert PlacedGraph.of(graph, device, "device") is placed
    assert PlacedGraph.find(graph, device, "device") is placed
    assert PlacedGraph.of(graph, device, "pinned") is not placed
    assert placed.graph.csc["_N", "_E", "_N"].row.device == device
    there = weakref.ref(placed)
    del placed
    gc.collect()
    assert there() is None
    assert PlacedGraph.find(graph, device, "device") is None


@pytest.mark.gpu
def test_further_loaders_take_no_more_memory() -> None:
    """Loaders for training, validation and test: tables and features lie on the GPU once."""
    n = 1 << 18
    data = Data(x=torch.randn(n, 64), y=torch.arange(n), edge_index=torch.randint(0, n, (2, 8 * n)), num_nodes=n)

    def make(begin: int) -> NeighborLoader:
        seeds = torch.arange(begin, begin + 64 * 20)
        loader = NeighborLoader(
            data, [4, 4], seeds, batch_size=64, device="cuda", placement="cuda-cuda", shuffle=begin == 0
        )
        for _ in loader:
            pass
        return loader

    loaders = [make(0)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    loaders += [make(10_000), make(20_000)]
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 1 << 20
    engines = {id(loader._gpu.sampling.follow(loader.node_sampler)[0]) for loader in loaders}
    assert len(engines) == 1


few_are_many = pytest.mark.usefixtures("few_are_many")


@pytest.fixture
def edges():
    return torch.randint(0, 200, (2, 3000), generator=torch.Generator().manual_seed(0))


def batches(edges):
    data = Data(edge_index=edges.clone(), x=torch.arange(200.0)[:, None])
    return [(b.n_id.tolist(), b.e_id.tolist()) for b in NeighborLoader(data, [4, 3], batch_size=30, seed=3)]


@few_are_many
def test_a_sampler_on_the_cpu_makes_the_tables_when_it_samples(edges, request):
    expected = batches(edges)
    request.getfixturevalue("gpu_in_reach")
    assert batches(edges) == expected
    sampler = NeighborSampler(Data(edge_index=edges, num_nodes=200), [4, 3])
    graph = sampler.topology.graph
    assert not graph.is_made
    sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(10)))
    assert graph.is_made


@few_are_many
def test_loaders_share_what_a_gpu_has(edges, gpu_in_reach):
    data = Data(edge_index=edges, num_nodes=200)
    samplers = [NeighborSampler(data, [4, fanout]) for fanout in (2, 3)]
    first, second = (sampler.topology.graph for sampler in samplers)
    placed = PlacedGraph.of(first, torch.device("cpu"), "device")
    assert PlacedGraph.of(second, torch.device("cpu"), "device") is placed
    assert not first.is_made


@few_are_many
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


N, M = 1000, 5000


def sorted_edges(dtype):
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, N, (2, M), generator=draw)
    return src.to(dtype), dst.sort().values.to(dtype)


def store(row, colptr):
    features, graph = manyhop_pyg.FeatureStore(), manyhop_pyg.GraphStore()
    features.put_tensor(torch.zeros(N, 2), group_name=None, attr_name="x", index=None)
    graph.put_edge_index((row, colptr), edge_type=None, layout="csc", size=(N, N))
    return features, graph


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("source", ["list", "columns", "weights", "times"])
def test_existing_loaders_keep_their_edges(source, dtype):
    src, dst = sorted_edges(dtype)
    colptr = torch.searchsorted(dst, torch.arange(N + 1, dtype=dtype))
    edge_index, options = torch.stack([src, dst]), {}
    data = Data(num_nodes=N, edge_index=edge_index)
    changed = [edge_index]
    if source == "columns":
        data, changed = store(src, colptr), [src, colptr]
    elif source == "weights":
        data.edge_w = torch.rand(M, dtype=torch.float64)
        changed, options = [edge_index, data.edge_w], {"weight_attr": "edge_w"}
    elif source == "times":
        data.edge_t = torch.zeros(M, dtype=torch.int64)
        changed = [edge_index, data.edge_t]
        options = {"time_attr": "edge_t", "input_time": torch.full((N,), 5)}
    loader = manyhop_pyg.NeighborLoader(data, [5, 5], batch_size=50, **options)
    times = {"input_time": torch.full((50,), 5)} if source == "times" else {}
    before = loader.batch(torch.arange(50), key=(1, 0, 0), **times)
    for tensor in changed:
        tensor.fill_(2**31 - 1)  # out of range
    after = loader.batch(torch.arange(50), key=(1, 0, 0), **times)
    assert torch.equal(before.n_id, after.n_id)
    assert torch.equal(before.e_id, after.e_id)
