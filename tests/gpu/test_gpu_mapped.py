"""A topology in mapped files: read by the GPU where it fits, sampled by the CPU where it does not; the same batches."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

import manyhop_pyg
from manyhop import cuda
from manyhop_pyg import NeighborLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
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


def anonymous_memory():
    """Bytes of this process that are not pages of files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


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
    before = anonymous_memory()
    loader = make_loader(folder, "cuda", num_workers=workers)
    assert loader.placement.topology.place == place
    print(
        f"{place}: {(anonymous_memory() - before) >> 20} MiB of anonymous memory for {4 * NUM_EDGES >> 20} MiB of edges"
    )
    for batch, expected in zip(loader, make_loader(folder, "cpu", "process"), strict=True):
        assert all(torch.equal(batch[key].cpu(), expected[key]) for key in ("x", "n_id", "edge_index", "e_id"))
    assert reason in str(loader.placement)
    assert reason in str(loader.stats())
