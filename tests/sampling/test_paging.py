"""Topologies in files that do not fit in memory: the same samples, and no more pages read than needed."""

import ctypes
import mmap
import os
import time

import numpy as np
import pytest
import torch
from cpu_cases import assert_equal

from manyhop import files
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUSampler, HGTSpec, NeighborSpec, NodeRequest, ReferenceSampler
from manyhop.sampling.cpu import tables as cpu_tables
from manyhop.sampling.cpu.hgt_sampler import CPUHGTSampler
from manyhop.system.numba_kernels import kernel
from manyhop.system.paging import advise_random, prefetch_numbers

NUM_NODES = 5000
PAGE = mmap.PAGESIZE


@pytest.fixture
def paths(tmp_path):
    """Columns of random length; a few are longer than a page."""
    rng = np.random.default_rng(1)
    degrees = rng.integers(0, 30, NUM_NODES)
    degrees[::1000] = 3000
    colptr = np.concatenate([[0], np.cumsum(degrees)])
    np.save(tmp_path / "colptr.npy", colptr)
    np.save(tmp_path / "row.npy", rng.integers(0, NUM_NODES, colptr[-1]).astype(np.int32))
    return str(tmp_path / "row.npy"), str(tmp_path / "colptr.npy")


def make_graph(paths, *, mapped):
    row, colptr = (files.open(path).mapped() if mapped else files.open(path).read() for path in paths)
    return build_graph({HOMOGENEOUS_NODE: NUM_NODES}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, colptr=colptr)})


def reads_single_pages(table):
    """Whether the system was told not to read ahead."""
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if not words[0].endswith(":"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
            elif words[0] == "VmFlags:" and begin <= table.data_ptr() < end:
                return "rr" in words
    raise AssertionError("no such memory")


def samples(sampler, **options):
    seeds = torch.arange(0, NUM_NODES, 4)
    for batch in range(3):
        yield sampler.sample(NodeRequest(key=BatchKey(1, 2, batch), seeds={HOMOGENEOUS_NODE: seeds + batch}, **options))


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"disjoint": True}, {"subgraph": "induced"}])
def test_samples_are_the_same(paths, monkeypatch, options):
    monkeypatch.setattr(cpu_tables, "available_memory", lambda: 1000)
    graph = make_graph(paths, mapped=True)
    spec = NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (4, 40)}, **options)
    sampler = CPUSampler(graph, spec)
    assert sampler._edges["pages"].tolist() == [1]
    expected = samples(ReferenceSampler(make_graph(paths, mapped=False), spec))
    for one, other in zip(samples(sampler), expected, strict=True):
        assert_equal(one, other)
    tables = graph.csc[HOMOGENEOUS_EDGE]
    assert reads_single_pages(tables.row)
    assert reads_single_pages(tables.colptr)


def test_samples_of_hgt_are_the_same(paths, monkeypatch):
    spec = HGTSpec(num_samples={HOMOGENEOUS_NODE: (50, 50)})
    expected = CPUHGTSampler(make_graph(paths, mapped=False), spec)
    monkeypatch.setattr(cpu_tables, "available_memory", lambda: 1000)
    sampler = CPUHGTSampler(make_graph(paths, mapped=True), spec)
    assert (expected._edges["pages"].tolist(), sampler._edges["pages"].tolist()) == ([0], [1])
    for one, other in zip(samples(sampler), samples(expected), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize(("mapped", "free"), [(True, 1 << 30), (True, None), (False, 1000)])
def test_what_fits_in_memory_is_read_ahead(paths, monkeypatch, mapped, free):
    monkeypatch.setattr(cpu_tables, "available_memory", lambda: free)
    graph = make_graph(paths, mapped=mapped)
    sampler = CPUSampler(graph, NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (4,)}))
    assert sampler._edges["pages"].tolist() == [0]
    assert not reads_single_pages(graph.csc[HOMOGENEOUS_EDGE].row)


@kernel("void(uint64, int64, uint64[::1])")
def ask(source, num_bytes, positions):
    prefetch_numbers(source, num_bytes, positions)


def resident(table):
    """Which pages of a mapped file the system has in memory."""
    begin = table.data_ptr() // PAGE * PAGE
    flags = np.empty(-(-(table.data_ptr() + table.nbytes - begin) // PAGE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    size, into = ctypes.c_size_t(len(flags) * PAGE), ctypes.c_void_p(flags.ctypes.data)
    assert libc.mincore(ctypes.c_void_p(begin), size, into) == 0
    return np.flatnonzero(flags & 1).tolist()


def test_pages_that_are_asked_for_come_alone(tmp_path):
    path = tmp_path / "x.bin"
    np.arange(100 * PAGE // 4, dtype=np.int32).tofile(path)
    (tmp_path / "x.bin.json").write_text(f'{{"shape": [{100 * PAGE // 4}], "dtype": "int32"}}')
    table = files.open(str(path)).mapped()
    advise_random(table.data_ptr(), table.nbytes)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(table):
        pytest.skip("the file system keeps all files in memory")
    per_page = PAGE // 4
    ask(table.data_ptr(), 4, np.array([3, 3 * per_page, 4 * per_page - 1, 70 * per_page, 5], np.uint64))
    end = time.monotonic() + 60
    while resident(table) != [0, 3, 70]:
        assert time.monotonic() < end
        time.sleep(0.01)
