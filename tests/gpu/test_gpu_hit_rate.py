"""Rows that a loader's GPU keeps, of files and of memory that is read over a bus or from other GPUs: how often they are
found."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import manyhop
import manyhop_pyg
from manyhop.features import file_cache
from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop.ranks import cuda
from manyhop_pyg import NeighborLoader

pytestmark = pytest.mark.gpu
NUM_NODES, HUBS = 70_000, 1000  # of 512 bytes: enough to be pinned


def make_loader(placement, num_edges=1 << 20, device="cuda", **options):
    """Every second edge comes from a hub."""
    generator = torch.Generator().manual_seed(1)
    row, col = torch.randint(0, NUM_NODES, (2, num_edges), generator=generator)
    row[::2] %= HUBS
    data = Data(x=torch.randn(NUM_NODES, 128, generator=generator), edge_index=torch.stack([row, col]))
    seeds = torch.randint(0, NUM_NODES, (8192,), generator=generator)
    options |= {"batch_size": 512, "shuffle": True, "seed": 2}
    return data, NeighborLoader(data, [5, 5], seeds, device=device, placement=placement, **options)


def hit_rate(placement):
    manyhop.init()
    data, loader = make_loader(placement, distributed=True)
    alike = [torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()]) for batch in loader]
    return all(alike), len(alike), loader.stats().cache_hit_rate


@pytest.mark.parametrize("workers", [0, 2])
def test_of_pinned_rows(workers):
    many = 9 << 20  # so that the topology is pinned, too
    _, loader = make_loader("pinned-cuda", many, num_workers=workers)
    assert loader._gpu.sampling._placed.graph.csc[HOMOGENEOUS_EDGE].row.is_pinned()
    for batch, expected in zip(loader, make_loader(None, many, "cpu")[1], strict=True):
        assert all(torch.equal(batch[key].cpu(), expected[key]) for key in ("x", "n_id", "edge_index", "e_id"))
    assert 0.1 < loader.stats().cache_hit_rate < 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [0, 0.1])
def test_of_rows_in_files(tmp_path, monkeypatch, cache, workers):
    """The GPU has room for the topology and a fifth of the features; nothing can be page-locked."""
    data, _ = make_loader(None, device="cpu")
    manyhop_pyg.save(data, tmp_path / "graph")
    hardware, room = cuda.hardware, {"gpu_memory": 40_000_000, "pinnable": 0}
    monkeypatch.setattr(cuda, "hardware", lambda *args, **kwargs: replace(hardware(*args, **kwargs), **room))
    options = {"input_nodes": torch.arange(0, NUM_NODES, 8), "batch_size": 512, "shuffle": True, "seed": 2}
    made = manyhop_pyg.open(tmp_path / "graph", placement="mapped", cache=cache)
    loader = NeighborLoader(made, [5, 5], device="cuda", num_workers=workers, **options)
    others = NeighborLoader(manyhop_pyg.open(tmp_path / "graph"), [5, 5], device="cpu", **options)
    for batch, expected in ((b, e) for _ in range(2) for b, e in zip(loader, others, strict=True)):
        assert all(torch.equal(batch[key].cpu(), expected[key]) for key in ("x", "n_id", "edge_index", "e_id"))
    (x,) = loader.placement.features
    assert x.place == "host"
    assert x.cache_bytes > 0
    assert 0.1 < loader.stats().cache_hit_rate < 1


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def read_with_another_rank(folder):
    """Epochs over a rank's own seeds: the file's rows are kept once for both ranks, and the GPU keeps some, too."""
    hardware, room = cuda.hardware, {"gpu_memory": 40_000_000, "pinnable": 0}
    cuda.hardware = lambda *args, **kwargs: replace(hardware(*args, **kwargs), **room)
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    data, x = manyhop_pyg.open(f"{folder}/graph", placement="mapped", cache=0.1), torch.load(f"{folder}/x.pt")
    options = {"input_nodes": torch.arange(rank, NUM_NODES, 16), "batch_size": 512, "shuffle": True, "seed": 2}
    loader, cache, alike = NeighborLoader(data, [5, 5], device="cuda", **options), file_cache(data.x), []
    for _ in range(3):
        alike += [torch.equal(batch.x.cpu(), x[batch.n_id.cpu()]) for batch in loader]
        wait_for(lambda: cache.has_chosen and not cache.is_renewing)
    Path(folder, f"read {rank}").touch()
    wait_for(lambda: len(list(Path(folder).glob("read *"))) == 2)  # the memory lives as long as a rank uses it
    kept = cache._segment.id, cache.take_counts()[1], loader.placement.features[0].cache_bytes
    return all(alike), len(alike), *kept, str(loader.stats())


def test_of_rows_in_files_that_ranks_of_a_node_keep_together(run_on_gpus, tmp_path):
    data, _ = make_loader(None, device="cpu")
    manyhop_pyg.save(data, tmp_path / "graph")
    torch.save(data.x, tmp_path / "x.pt")
    seen = run_on_gpus(read_with_another_rank, str(tmp_path))
    assert len({segment for _, _, segment, *_ in seen}) == 1
    for alike, batches, _, found, on_gpu, report in seen:
        assert alike
        assert batches == 3 * 9
        assert found > 0
        assert on_gpu > 0
        assert "of rows in files are kept in memory for all ranks of the node" in report


@pytest.mark.multigpu
@pytest.mark.needs("pylibwholegraph")
@pytest.mark.parametrize("placement", ["sharded", "distributed"])
def test_of_rows_on_other_gpus(run_on_gpus, placement):
    for alike, batches, rate in run_on_gpus(hit_rate, placement):
        assert alike
        assert batches == 8
        assert 0.1 < rate < 1
