"""Loaders on a GPU, for which the CPU stands in, over features in files that fit nowhere else: it keeps hot rows."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_stand_ins import CPU
from torch import Tensor
from torch_geometric.data import Data

import manyhop_pyg
from manyhop.features import file_cache
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.placement import Hardware
from manyhop.ranks import cuda
from manyhop_tools.cli import main

pytest.importorskip("triton")
from manyhop.features.gather_gpu import gather_on_gpu
from manyhop.features.gathering import gather_on_cpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has these tests on a GPU")

NUM_NODES, HUBS, KIB = 2000, 20, 1 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every second edge comes from a hub."""
    generator = torch.Generator().manual_seed(1)
    row, col = torch.randint(0, NUM_NODES, (2, 8000), generator=generator)
    row[::2] %= HUBS
    x, y = torch.randn(NUM_NODES, 32, generator=generator), torch.arange(NUM_NODES)
    manyhop_pyg.save(Data(x=x, y=y, edge_index=torch.stack([row, col])), tmp_path / "graph")
    return tmp_path / "graph"


@pytest.fixture
def small_gpu(on_gpu: Callable[..., None], out_of_reach: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Loaders take the way of GPUs once it is called; the GPU has room for the topology, and some rows."""
    from manyhop.loading.gpu import decide, runtime

    room = Hardware(gpu_memory=250 * KIB, host_memory=250 * KIB, pinnable=0)
    monkeypatch.setattr(cuda, "hardware", lambda *_, **__: room)
    monkeypatch.setattr(runtime, "decide_memory", decide.decide_memory)
    monkeypatch.setattr(
        runtime,
        "gather",
        lambda requests, *, checks, **_: gather_on_gpu(requests, CPU, on_cpu=gather_on_cpu, checks=checks),
    )
    return on_gpu


def make_loader(folder: Path, **options: Any) -> Any:
    data = manyhop_pyg.open(folder, placement="mapped", **options)
    seeds = torch.arange(0, NUM_NODES, 7)
    return manyhop_pyg.NeighborLoader(data, [4, 3], seeds, batch_size=32, shuffle=True, seed=2)


def kept_ids(loader: Any) -> Tensor:
    """The rows of ``x`` that the GPU keeps."""
    _, kept = loader._gpu.memory.cached[id(loader.data.x)]
    ids = (kept.hot.groups[:, :1] >> torch.arange(64) & 1).flatten().nonzero()[:, 0]
    assert torch.equal(kept.rows, loader.data.x[ids])
    return ids


def test_batches_and_hit_rates(folder: Path, small_gpu: Callable[..., None]) -> None:
    expected = list(make_loader(folder))
    small_gpu()
    loader = make_loader(folder)
    batches = list(loader)
    for batch, other in zip(batches, expected, strict=True):
        assert all(torch.equal(batch[key], other[key]) for key in ("x", "y", "n_id", "edge_index"))
    assert "x: host" in str(loader.placement)
    assert "they stay in their file, where only the CPU reads. 50.0 KiB of hot rows are kept on the GPU." in str(
        loader.placement
    )
    ids = kept_ids(loader)
    assert NUM_NODES // 6 < len(ids) <= NUM_NODES // 5
    hits = torch.cat([torch.isin(batch.n_id, ids) for batch in batches])
    assert 0.5 < hits.double().mean() < 1
    assert loader.stats().cache_hit_rate == pytest.approx(hits.double().mean().item())


def test_hits_of_one_epoch_do_not_count_in_the_next(folder: Path, small_gpu: Callable[..., None]) -> None:
    small_gpu()
    loader = make_loader(folder)
    assert len(list(loader)) == len(loader)
    iterator = iter(loader)
    assert loader.stats(since="epoch").cache_hit_rate == 0
    next(iterator)
    assert 0.5 < loader.stats(since="epoch").cache_hit_rate < 1


def test_what_the_gpu_lacks_is_found_in_the_cache_of_files(folder: Path, small_gpu: Callable[..., None]) -> None:
    small_gpu()
    loader = make_loader(folder, cache=0.05)
    of_file = file_cache(loader.data.x)
    assert of_file is not None
    asked = found = 0
    for _ in range(4):
        hits = torch.cat([torch.isin(batch.n_id, kept_ids(loader)) for batch in loader])
        asked, found = asked + len(hits), found + int(hits.sum())
        end = time.monotonic() + 60
        while of_file.is_renewing:
            assert time.monotonic() < end
            time.sleep(0.005)
    rate = loader.stats().cache_hit_rate
    assert found / asked + 0.02 < rate < 1
    assert rate == pytest.approx((found + (1 - of_file.miss_rate) * (asked - found)) / asked)


def test_a_topology_that_fits_nowhere_stays_in_its_file_and_the_cpu_samples(
    folder: Path, small_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = list(make_loader(folder))
    small_gpu()
    monkeypatch.setattr(cuda, "hardware", lambda *_, **__: Hardware(gpu_memory=40 * KIB, host_memory=40 * KIB))
    loader = make_loader(folder)
    for batch, other in zip(loader, expected, strict=True):
        assert all(torch.equal(batch[key], other[key]) for key in ("x", "y", "n_id", "e_id", "edge_index"))
    assert loader.placement.topology.place == "host"
    (tables,) = loader.node_sampler.topology.graph.csc.values()
    assert reside_in_files([tables.row.data_ptr(), tables.colptr.data_ptr()]) == [True, True]
    for report in (str(loader.placement), str(loader.stats())):
        assert "they stay in their file; the CPU samples them and sends the samples" in report
    assert loader._gpu.sampling is None
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["plan", str(folder), "--gpus", "1", "--gpu-memory", "40KiB", "--memory", "40KiB"]) == 0
    assert f"host       {loader.placement.topology.reason}" in capsys.readouterr().out


def test_rows_that_change_are_read_anew(folder: Path, small_gpu: Callable[..., None]) -> None:
    small_gpu()
    loader = make_loader(folder)
    x = loader.data.x
    for i, batch in enumerate(loader):
        assert torch.equal(batch.x, x[batch.n_id])
        if i == 1:
            x += 1
