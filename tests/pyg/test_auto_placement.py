"""What a loader decides is what ``manyhop plan`` says; what cannot be page-locked goes elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_stand_ins import Driver
from plan_table import placements
from torch_geometric.data import Data

import manyhop_pyg
from manyhop.errors import CapacityError
from manyhop.features import RowRequest, is_pinned
from manyhop.loading.gpu.decide import decide_memory
from manyhop.loading.gpu.memory import GPUMemory
from manyhop.loading.gpu.runtime import Sources
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.placement import Hardware
from manyhop.memory.places import Place
from manyhop.ranks import cuda
from manyhop_tools.cli import main

GPU = torch.device("meta")  # not where the data is
NUM_NODES = 1000
SIZES = {"topology": 8 * (NUM_NODES + 1) + 4 * 20_000, "x": NUM_NODES * 256, "y": NUM_NODES * 8}


def places(memory: GPUMemory) -> dict[str, str]:
    placement = memory.placement
    return {c.item.name.strip("'"): c.place for c in (placement.topology, *placement.features)}


def memory_of(data: Data, mode: Place | None = None) -> GPUMemory:
    graph = manyhop_pyg.NeighborSampler(data, [2]).topology.graph
    return decide_memory([("x", data.x), ("y", data.y)], graph, GPU, mode, together=False, timeout=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    edge_index = torch.randint(0, NUM_NODES, (2, 20_000), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.zeros(NUM_NODES, 64), y=torch.zeros(NUM_NODES, dtype=torch.int64), edge_index=edge_index)
    manyhop_pyg.save(data, tmp_path / "g")
    return tmp_path / "g"


def plan(folder: Path, gpu_memory: int, memory: int, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    argv = ["plan", str(folder), "--gpus", "1", "--gpu-memory", str(gpu_memory), "--memory", str(memory)]
    assert main(argv) == 0
    return placements(capsys.readouterr().out)


@pytest.mark.parametrize("where", ["mapped", "process"])
@pytest.mark.parametrize("memory", [370_000, 420_000, 10_000_000])
@pytest.mark.parametrize("gpu_memory", [14_000, 150_000, 300_000, 400_000, 10_000_000])
def test_a_loader_decides_as_the_plan(
    folder: Path,
    where: Any,
    memory: int,
    gpu_memory: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = manyhop_pyg.open(folder, placement=where)
    assert isinstance(data, Data)
    free = memory - (sum(SIZES.values()) if where == "process" else 0)
    facts = {
        "gpu": "a",
        "gpu_memory": gpu_memory,
        "host_memory": free,
        "peers": [],
        "cugraph": True,
        "wholegraph": True,
    }
    monkeypatch.setattr(cuda, "facts", lambda device: dict(facts))
    decided = memory_of(data)
    planned = plan(folder, gpu_memory, memory, capsys)
    assert places(decided) == planned
    assert {c.item.name: c.item.nbytes for c in decided.placement.features} == {"x": SIZES["x"], "y": SIZES["y"]}
    assert decided.placement.topology.item.nbytes == SIZES["topology"]
    assert {c.item.can_map for c in decided.placement.features} == {where == "mapped"}
    if gpu_memory == 14_000 and memory < 10_000_000:
        assert "host" in planned.values()


def test_memory_in_files(folder: Path, tmp_path: Path) -> None:
    data = manyhop_pyg.open(folder, placement="mapped")
    assert isinstance(data, Data)
    assert isinstance(data.x, torch.Tensor)
    gone = torch.from_file(str(tmp_path / "gone"), shared=True, size=4096)
    (tmp_path / "gone").unlink()
    tensors = [data.x, torch.zeros(9), data.x[500:], torch.zeros(9).share_memory_(), gone]
    assert reside_in_files([t.data_ptr() for t in tensors]) == [True, False, True, False, False]
    assert reside_in_files([0, 1 << 63]) == [False, False]


@pytest.fixture
def busy(driver: Driver, pinned_from: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver that locks no more than ``y``."""
    driver.limit = 400 << 10
    pinned_from(256 << 10)
    monkeypatch.setattr(cuda, "hardware", lambda *_, **__: Hardware(gpu_memory=300_000, host_memory=10**9))
    return driver


@pytest.fixture
def large() -> Data:
    """Two features that are large enough to be pinned in place, one of them for the driver."""
    edge_index = torch.randint(0, NUM_NODES, (2, 20_000))
    return Data(x=torch.zeros(NUM_NODES, 256), y=torch.zeros(NUM_NODES, 80), edge_index=edge_index)


@pytest.mark.parametrize(("kept", "cached"), [(None, "xy"), ({"x": 9}, "x"), ({}, "")])
def test_hot_rows_are_of_the_tensors_that_users_name(
    large: Data, kept: Any, cached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "hardware", lambda *_, **__: Hardware(gpu_memory=300_000, host_memory=10**9))
    graph = manyhop_pyg.NeighborSampler(large, [2]).topology.graph
    named = [("x", large.x), ("y", large.y)]
    memory = decide_memory(named, graph, GPU, "host", together=False, timeout=1.0, kept_rows=kept)
    assert [name for name, value in named if memory.is_slow(RowRequest(value, torch.arange(3)))] == list(cached)


@pytest.mark.skipif(torch.cuda.is_available(), reason="plays the part of CUDA")
def test_what_cannot_be_page_locked_goes_elsewhere(large: Data, busy: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "manyhop"):
        memory = memory_of(large)
    assert places(memory) == {"topology": "device", "x": "host", "y": "pinned"}
    assert len(caplog.records) == 1
    assert "x cannot be page-locked: Expected to pin 0.00 GiB" in caplog.text
    assert (is_pinned(large.x), is_pinned(large.y)) == (False, True)
    sources = Sources(memory)
    assert (sources("x", large.x), sources("y", large.y)) == (large.x, large.y)
    assert len(busy.pinned) == 1
    again = memory_of(large)  # another loader finds what is locked
    assert places(again) == places(memory)
    busy.limit = 0
    late = torch.zeros_like(large.x)
    caplog.clear()
    memory._places["late"] = "pinned"
    for _ in range(2):
        assert Sources(memory)("late", late) is late
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "late is left to the CPU, as it cannot be page-locked"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="plays the part of CUDA")
def test_pinned_memory_that_was_asked_for_is_an_error(large: Data, busy: Driver) -> None:
    memory = memory_of(large, "pinned-cuda")
    assert set(places(memory).values()) == {"pinned"}
    with pytest.raises(CapacityError, match="CUDA error 2 from cudaHostRegister"):
        Sources(memory)("x", large.x)
    assert not busy.pinned


@pytest.mark.skipif(torch.cuda.is_available(), reason="plays the part of CUDA")
def test_a_topology_that_cannot_be_page_locked(monkeypatch: pytest.MonkeyPatch, busy: Driver) -> None:
    busy.limit = 1 << 20
    monkeypatch.setattr(cuda, "hardware", lambda *_, **__: Hardware(gpu_memory=100_000, host_memory=10**9))
    edge_index = torch.randint(0, NUM_NODES, (2, 150_000))  # two tables of 600 kB, of which the driver locks one
    data = Data(x=torch.zeros(NUM_NODES, 200), y=torch.zeros(10), edge_index=edge_index)
    memory = memory_of(data)
    assert places(memory) == {"topology": "host", "x": "pinned", "y": "device"}
    assert len(busy.pinned) == 1
