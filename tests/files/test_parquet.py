"""Columns of Parquet files."""

import sys

import numpy as np
import pytest
import torch

from manyhop import files
from manyhop.errors import InputError, MissingExtraError
from manyhop.files.parquet import open_parquet


@pytest.fixture
def table(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n = 1000
    flat = np.arange(3 * n, dtype=np.float32)
    columns = {
        "fixed": arrow.FixedSizeListArray.from_arrays(arrow.array(flat), 3),
        "lists": arrow.array(list(flat.reshape(n, 3))),
        "ids": np.arange(n),
        "more": np.arange(n)[::-1].copy(),
        "small": np.arange(n, dtype=np.int16),
        "mask": np.arange(n) % 3 == 0,
        "text": ["a"] * n,
        "holes": arrow.array([None, *range(1, n)]),
        "ragged": [[1.0]] * (n - 1) + [[1.0, 2.0]],
        "gaps": arrow.array([None] + [[1.0]] * (n - 1)),
        "empty": arrow.array([None] * n, arrow.list_(arrow.float32())),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet", row_group_size=300)
    return tmp_path / "t.parquet"


def test_parquet_columns(table):
    expected = {
        "fixed": torch.arange(3000.0).view(1000, 3),
        "lists": torch.arange(3000.0).view(1000, 3),
        "ids": torch.arange(1000),
        "small": torch.arange(1000, dtype=torch.int16),
        "mask": torch.arange(1000) % 3 == 0,
        ("ids", "more"): torch.stack([torch.arange(1000), torch.arange(999, -1, -1)], 1),
    }
    for name, x in expected.items():
        rows = files.open(table, name=name)
        assert (rows.shape, rows.dtype) == (tuple(x.shape), x.dtype)
        for begin, end in [(0, 1000), (299, 301), (0, 300), (650, 651), (10, 990), (4, 4)]:
            for threads in (1, 2):
                assert rows.read(begin, end, threads=threads).equal(x[begin:end])
    twice = files.open([table, table], name="ids")
    assert twice.read(900, 1100).equal(torch.cat([torch.arange(900, 1000), torch.arange(100)]))
    with pytest.raises(InputError, match="cannot be mapped"):
        files.open(table, name="ids").mapped()


def test_parquet_columns_that_are_refused(table, tmp_path):
    for name, message in [
        ("text", "expected numbers"), ("empty", "no list to take"), (("ids", "small"), "one dtype"),
        (("fixed", "lists"), "one dtype"), (None, "expected name to be a column"), ("nope", "expected name"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            files.open(table, name=name)
    for name, message in [
        ("holes", "1 rows without"),
        ("gaps", "1 rows without"),
        ("ragged", "lists of 1 numbers, got one of 2"),
    ]:
        with pytest.raises(InputError, match=message):
            files.open(table, name=name).read()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(InputError, match="not a Parquet file"):
        files.open(tmp_path / "bad.parquet")


def test_parquet_without_pyarrow(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"\[files\]"):
        open_parquet(table)
