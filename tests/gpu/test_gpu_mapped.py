"""A topology in mapped files: read by the GPU where it fits, sampled by the CPU where it does not; the same batches."""

import os
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

import manyhop_pyg
from manyhop.graph import HOMOGENEOUS_EDGE, PlacedGraph
from manyhop.memory.mapped_files import MappedFiles
from manyhop.ranks import cuda
from manyhop_pyg import NeighborLoader

pytestmark = pytest.mark.gpu
NUM_NODES, NUM_EDGES = 100_000, 9 << 20  # enough edges to be pinned in place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=generator)
    path = tmp_path_factory.mktemp("mapped") / "graph"
    manyhop_pyg.save(Data(x=torch.randn(NUM_NODES, 16, generator=generator), edge_index=edge_index), path)
    return path


def make_loader(folder, device, placement="mapped", **options):
    seeds = torch.arange(0, NUM_NODES, 20)
    options |= {"batch_size": 512, "shuffle": True, "seed": 2}
    return NeighborLoader(manyhop_pyg.open(folder, placement=placement), [5, 5], seeds, device=device, **options)


def is_copied(table):
    """Whether this process has pages of a mapped file for itself."""
    return MappedFiles().find(table.data_ptr(), table.nbytes) is None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("room", "place", "reason"),
    [
        ({}, "device", "fit on the GPU"),
        ({"gpu_memory": 20_000_000}, "pinned", "page-locked in the memory of the node, where the GPU reads"),
        ({"gpu_memory": 20_000_000, "host_memory": 40_000_000, "pinnable": 0}, "host", "the CPU samples them"),
    ],
)
def test_batches(folder, monkeypatch, room, place, reason, workers):
    hardware = cuda.hardware
    monkeypatch.setattr(cuda, "hardware", lambda *args, **kwargs: replace(hardware(*args, **kwargs), **room))
    loader = make_loader(folder, "cuda", num_workers=workers)
    assert loader.placement.topology.place == place
    for batch, expected in zip(loader, make_loader(folder, "cpu", "process"), strict=True):
        assert all(torch.equal(batch[key].cpu(), expected[key]) for key in ("x", "n_id", "edge_index", "e_id"))
    assert reason in str(loader.placement)
    assert reason in str(loader.stats())
    source = loader.node_sampler.topology.graph
    assert not is_copied(source.csc[HOMOGENEOUS_EDGE].row)
    if place == "pinned":
        row = PlacedGraph.find(source, loader._gpu.device, "pinned").graph.csc[HOMOGENEOUS_EDGE].row
        assert row.is_pinned()
        assert not is_copied(row)


def pin_with_another_rank(folder):
    """Where a node's memory has room for the edges once, both ranks page-lock them."""
    hardware, room = cuda.hardware, {"gpu_memory": 20_000_000, "host_memory": 50_000_000, "gpus_per_node": 2}
    cuda.hardware = lambda *args, **kwargs: replace(hardware(*args, **kwargs), **room)
    torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
    loader = make_loader(folder, "cuda")
    placed = PlacedGraph.find(loader.node_sampler.topology.graph, loader._gpu.device, "pinned")
    row = placed.graph.csc[HOMOGENEOUS_EDGE].row
    alike = [
        torch.equal(batch.edge_index.cpu(), expected.edge_index)
        for batch, expected in zip(loader, make_loader(folder, "cpu", "process"), strict=True)
    ]
    return all(alike), len(alike), loader.placement.topology.place, row.is_pinned(), is_copied(row)


def test_ranks_of_a_node_page_lock_the_same_pages(folder, run_on_gpus):
    assert run_on_gpus(pin_with_another_rank, folder) == [(True, 10, "pinned", True, False)] * 2
