"""Grouping edges by destination in threads: the same tables, bit for bit, as sorting with torch."""

import numpy as np
import pytest
import torch

from manyhop.errors import GraphError
from manyhop.graph import EdgeInput, build_graph, columns

E = ("a", "to", "b")


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    """Even few edges are grouped by kernels, in pieces, in so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(columns, "SMALL", 100)
    monkeypatch.setattr(columns, "_SHORTEST", 7)
    yield request.param
    torch.set_num_threads(before)


def build(num_src, num_dst, **edges):
    return build_graph({"a": num_src, "b": num_dst}, {E: EdgeInput(**edges)}).csc[E]


def draw(num_dst, num_edges, power, dtype=torch.int64):
    rng = np.random.default_rng(num_dst + num_edges)
    col = torch.from_numpy((rng.random(num_edges) ** power * num_dst).astype(np.int64)).to(dtype)
    return torch.from_numpy(rng.integers(0, 777, num_edges)).to(dtype), col, rng


def compare(monkeypatch, num_dst, **edges):
    got = build(777, num_dst, **edges).tables()
    monkeypatch.setattr(columns, "SMALL", 1 << 40)  # torch sorts
    expected = build(777, num_dst, **edges).tables()
    monkeypatch.setattr(columns, "SMALL", 100)
    assert got.keys() == expected.keys()
    for name, table in expected.items():
        assert got[name].dtype == table.dtype, name
        assert torch.equal(got[name], table), name


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("num_dst", [1, 3, 2048, 2049, 300_000])
@pytest.mark.parametrize("num_edges", [101, 5000, 200_000])
@pytest.mark.parametrize("power", [1, 9])
def test_tables_are_those_of_a_stable_sort(threads, monkeypatch, dtype, num_dst, num_edges, power):
    row, col, _ = draw(num_dst, num_edges, power, dtype)
    compare(monkeypatch, num_dst, row=row, col=col)


@pytest.mark.parametrize("num_dst", [1, 50, 5000])
@pytest.mark.parametrize("span", [3, 1 << 40])
@pytest.mark.parametrize("num_edges", [101, 60_000])
def test_times_sort_columns_of_any_length(threads, monkeypatch, num_dst, span, num_edges):
    row, col, rng = draw(num_dst, num_edges, 3)
    time = torch.from_numpy(rng.integers(-span, span, num_edges))
    compare(monkeypatch, num_dst, row=row, col=col, time=time)
    colptr = torch.searchsorted(col.sort().values, torch.arange(num_dst + 1))
    ids = torch.from_numpy(rng.permutation(num_edges))
    compare(monkeypatch, num_dst, row=row, colptr=colptr, time=time, edge_id=ids)
    compare(monkeypatch, num_dst, row=row, col=col, edge_id=ids, weight=torch.rand(num_edges))


def test_edges_in_order_need_no_permutation(threads, monkeypatch):
    row, col, rng = draw(5000, 3000, 2)
    for dtype in (torch.int64, torch.int32, torch.int16):
        compare(monkeypatch, 5000, row=row.to(dtype), col=col.sort().values.to(dtype))
    assert build(777, 5000, row=row, col=col.sort().values).perm is None
    time = torch.from_numpy(rng.integers(0, 9, 3000)).sort().values
    compare(monkeypatch, 5000, row=row, col=torch.zeros_like(col), time=time)


def test_strided_and_narrow_ids(threads, monkeypatch):
    row, col, _ = draw(120, 4000, 1)
    both = torch.stack([row, col], 1)
    compare(monkeypatch, 120, row=both[:, 0], col=both[:, 1])
    compare(monkeypatch, 120, row=(row % 120).to(torch.int8), col=col.to(torch.uint8))


def test_a_claim_of_order_is_checked_beyond_the_first_block(monkeypatch):
    monkeypatch.setattr("manyhop.graph.build._BLOCK", 10)
    col = torch.arange(35)
    col[30] = 0
    with pytest.raises(GraphError, match=r"edges 29 and 30 .* not in order of destination"):
        build(40, 40, row=col, col=col, is_sorted=True)
    col[30] = 30
    assert build(40, 40, row=col, col=col, is_sorted=True).perm is None


def test_tables_are_on_the_cpu_whatever_the_default_device_is():
    row, col = torch.arange(200) % 7, torch.arange(200) // 10
    with torch.device("meta"):
        csc = build(7, 20, row=row, col=col)
    assert csc.colptr.tolist() == list(range(0, 201, 10))
