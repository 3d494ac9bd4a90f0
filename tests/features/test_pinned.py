"""Which memory is pinned, and until when; CUDA itself is played by a recorder."""

import gc
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_stand_ins import CPU, Driver

from manyhop import files
from manyhop.errors import CapacityError, InputError
from manyhop.features import is_pinned, pin, pinned_bytes, unpin
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, Graph, PlacedGraph, build_graph
from manyhop.loading.gpu.memory import HostMemory
from manyhop.memory import pinned
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.stores.spread import TOPOLOGY

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="plays the part of CUDA")

PAGE = pinned._PAGE


def test_a_tensor_stays_pinned_as_long_as_its_memory(driver: Driver) -> None:
    source = torch.zeros(5 * PAGE, dtype=torch.uint8)
    assert not is_pinned(source)
    for _ in range(3):
        pin(source)
    assert is_pinned(source)
    assert is_pinned(source[7:9])
    assert is_pinned(source.numpy())
    assert len(driver.pinned) == 1
    view = source.view(5, PAGE)[1:]
    del source
    gc.collect()
    assert is_pinned(view)
    del view
    gc.collect()
    assert not driver.pinned


def test_pinned_until_unpinned(driver: Driver) -> None:
    source = np.zeros(3 * PAGE, np.uint8)
    generation = pinned.registry.generation
    pin(source)
    assert pinned.registry.generation != generation
    generation = pinned.registry.generation
    unpin(source)
    unpin(source)
    assert (driver.pinned, is_pinned(source)) == ({}, False)
    assert pinned.registry.generation != generation
    pin(source)
    assert is_pinned(source)


def test_tensors_share_pages(driver: Driver) -> None:
    memory = torch.zeros(40 * PAGE, dtype=torch.uint8)
    begin = -memory.data_ptr() % PAGE
    parts = [memory[begin + int(a * PAGE) : begin + int(b * PAGE)] for a, b in ((1, 3.5), (3, 6), (8, 9), (0.5, 20))]
    for part in parts:
        pin(part)
    assert all(map(is_pinned, parts))
    assert pinned_bytes() == 20 * PAGE
    assert not is_pinned(memory)
    for k, part in enumerate(parts):
        unpin(part)
        assert all(map(is_pinned, parts[k + 1 :]))
    assert not driver.pinned


def test_views_with_gaps_and_backwards(driver: Driver) -> None:
    source = np.zeros((100, PAGE), np.uint8)
    pin(source[50:20:-2, :10])
    assert is_pinned(source[22:50])
    assert not is_pinned(source[10:51])
    pin(torch.empty(0))
    pin(np.empty((3, 0)))
    assert is_pinned(torch.empty(0))


def test_files_are_pinned_for_reading_where_writing_is_not_allowed(driver: Driver, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1000))
    pin(anonymous := np.zeros(PAGE))
    driver.writable = False
    for mode in ("r", "c", "r+"):
        source = np.load(tmp_path / "x.npy", mmap_mode=mode)
        pin(source)
        assert is_pinned(source)
    assert [flags & 8 for flags in driver.flags] == [0, 8, 8, 8]
    del source
    gc.collect()
    assert list(driver.pinned) == [anonymous.ctypes.data // PAGE * PAGE]


def test_too_much_is_refused_and_nothing_stays(driver: Driver) -> None:
    source = torch.zeros(20 * PAGE, dtype=torch.uint8)
    pin(source[9 * PAGE : 10 * PAGE])
    before, driver.limit = dict(driver.pinned), 12 * PAGE
    with pytest.raises(CapacityError, match="CUDA error 2 from cudaHostRegister"):
        pin(source)
    assert driver.pinned == before
    assert not is_pinned(source)


def test_what_cannot_be_pinned(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="got a list"):
        pin([1])
    with pytest.raises(InputError, match=r"in CPU memory to pin, got .* on meta"):
        pin(torch.empty(3, device="meta"))
    with pytest.raises(InputError, match="dense tensor"):
        pin(torch.eye(3).to_sparse())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="Expected a CUDA device"):
        pin(torch.zeros(3))


def test_a_forked_child_pins_for_itself(driver: Driver) -> None:
    source = torch.zeros(3 * PAGE, dtype=torch.uint8)
    pin(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads
        child = os.fork()
    if child == 0:
        try:
            driver.pinned.clear()  # CUDA starts anew
            fine = not is_pinned(source) and pinned_bytes() == 0
            pin(source)
            fine &= is_pinned(source) and len(driver.pinned) == 1
            unpin(source)
            os._exit(0 if fine and not driver.pinned else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_pinned(source)


@pytest.fixture
def mapped_graph(tmp_path: Path, pinned_from: Callable[[int], None]) -> Graph:
    """A topology whose edges are a mapped file, large enough to be pinned."""
    pinned_from(PAGE)
    np.save(tmp_path / "row.npy", np.arange(4 * PAGE, dtype=np.int32) % 64)
    edges = EdgeInput(row=files.open(tmp_path / "row.npy").mapped(), colptr=torch.arange(0, 4 * PAGE + 1, PAGE // 16))
    return build_graph({HOMOGENEOUS_NODE: 64}, {HOMOGENEOUS_EDGE: edges})


def test_a_topology_in_files_is_pinned_once_for_all_processes(driver: Driver, mapped_graph: Graph) -> None:
    def host_memory() -> HostMemory:
        return HostMemory([], mapped_graph, CPU, required=False)

    before = host_memory()
    assert (before.mapped, before.pinned, before.in_memory) == ({TOPOLOGY}, 0, 0)
    driver.writable = False  # nobody may write to the pages of the file
    placed = PlacedGraph.of(mapped_graph, CPU, "pinned")
    row, source = placed.graph.csc[HOMOGENEOUS_EDGE].row, mapped_graph.csc[HOMOGENEOUS_EDGE].row
    assert torch.equal(row, source)
    assert (is_pinned(row), is_pinned(source)) == (True, False)
    assert reside_in_files([row.data_ptr(), source.data_ptr()]) == [True, True]
    of_another_loader = host_memory()
    assert (of_another_loader.mapped, of_another_loader.pinned) == (set(), row.nbytes)
    del placed, row
    gc.collect()
    assert not driver.pinned


def test_edges_that_the_process_has_changed_are_pinned_where_they_are(driver: Driver, mapped_graph: Graph) -> None:
    source = mapped_graph.csc[HOMOGENEOUS_EDGE].row
    source[100] = 7
    placed = PlacedGraph.of(mapped_graph, CPU, "pinned")
    assert placed.graph.csc[HOMOGENEOUS_EDGE].row.data_ptr() == source.data_ptr()
    assert is_pinned(source)


def test_a_file_that_may_not_be_pinned_is_refused(driver: Driver, mapped_graph: Graph) -> None:
    driver.limit = 0
    with pytest.raises(CapacityError, match="CUDA error 2 from cudaHostRegister"):
        PlacedGraph.of(mapped_graph, CPU, "pinned")
    assert not driver.pinned
