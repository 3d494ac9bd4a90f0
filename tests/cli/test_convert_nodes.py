"""``manyhop convert`` with tables of nodes and raw files."""

import numpy as np
import pytest
import torch

import manyhop_pyg
from manyhop import files
from manyhop_tools.cli import main

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def convert(*argv):
    return main(["convert", *map(str, argv)])


def test_tables_of_nodes(tmp_path, capsys):
    (tmp_path / "writes.csv").write_text("a,p\nzoë,7\nann,9\n", encoding="utf-8")
    (tmp_path / "authors.csv").write_text("age,name,town\n30,zoë,X\n40,bob,Y\n50,ann,Z\n", encoding="utf-8")
    vectors = arrow.FixedSizeListArray.from_arrays(np.arange(6, dtype=np.float32), 2)
    parquet.write_table(arrow.table({"name": [9, -3, 7], "x": vectors, "y": [1, 2, 3]}), tmp_path / "papers.parquet")
    tables = ["--nodes", f"author={tmp_path / 'authors.csv'}", "--nodes", f"paper={tmp_path / 'papers.parquet'}"]
    source = f"author,writes,paper={tmp_path / 'writes.csv'}"
    assert convert(source, tmp_path / "g", *tables, "--node-id", "name") == 0
    assert "columns that are left out, as they hold no numbers: town" in capsys.readouterr().err
    data = manyhop_pyg.open(tmp_path / "g")
    ids = files.open_graph(tmp_path / "g").nodes
    assert parquet.read_table(ids["author"].ids)["id"].to_pylist() == ["ann", "bob", "zoë"]
    assert data["author"].age.tolist() == [50, 40, 30]
    assert np.load(ids["paper"].ids).tolist() == [-3, 7, 9]
    assert data["paper"].x.tolist() == [[2, 3], [4, 5], [0, 1]]
    assert data["paper"].y.tolist() == [2, 3, 1]
    assert data["author", "writes", "paper"].edge_index.tolist() == [[2, 0], [1, 2]]


def test_a_table_of_nodes_that_are_numbered_already(tmp_path):
    (tmp_path / "e.csv").write_text("a,b\n1,0\n")
    (tmp_path / "n.csv").write_text("id,y\n2,5\n0,3\n1,4\n")
    assert convert(tmp_path / "e.csv", tmp_path / "g", "--nodes", tmp_path / "n.csv", "--ids", "keep") == 0
    data = manyhop_pyg.open(tmp_path / "g")
    assert data.y.tolist() == [3, 4, 5]
    assert data.num_nodes == 3
    assert files.open_graph(tmp_path / "g").nodes["_N"].ids is None


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("id,y\nann,1\nbob,2\n", [], "expected a row for each id that edges have, got none for 'cy'. Add 1 rows"),
        ("id,y\nann,1\ncy,1\nbob,2\nann,2\n", [], "expected each id once, got duplicates in rows 0 and 3"),
        ("id,y\nann,1\n", ["--node-id", "name"], "expected a column of ['id', 'y'], got 'name'. See --node-id"),
        ("id,y\nann,1\ncy,\nbob,2\n", [], "no value"),
        ("id,y\n1,1\n", [], "one kind"),
    ],
)
def test_tables_of_nodes_that_are_refused(tmp_path, capsys, table, options, message):
    (tmp_path / "e.csv").write_text("a,b\nann,cy\nbob,ann\n")
    (tmp_path / "n.csv").write_text(table)
    assert convert(tmp_path / "e.csv", tmp_path / "g", "--nodes", tmp_path / "n.csv", *options) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


def test_arguments_about_nodes_that_are_refused(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("a,b\n1,0\n")
    (tmp_path / "n.csv").write_text("id,y\n1,5\n3,3\n")
    files.write(tmp_path / "y.npy", torch.zeros(2))
    (tmp_path / "x.bin").write_bytes(bytes(24))
    table = ("--nodes", tmp_path / "n.csv")
    raw = f"{tmp_path / 'x.bin'}="
    for options, message in [
        (("--nodes", tmp_path / "y.npy"), "CSV or Parquet file as a table of nodes. See --node-tensor"),
        (("--nodes", f"a={tmp_path / 'n.csv'}"), "--nodes FILE"),
        ((*table, *table), "once per node type"),
        (("--node-id", "id"), "only with --nodes"),
        ((*table, "--ids", "keep"), "expected the ids 0 to 1 in 2 rows, got 1 to 3"),
        (("--raw", f"{raw}float32"), "another argument names"),
        (("--raw", f"{raw}float32,0"), "--raw FILE=DTYPE"),
        (("--raw", f"{raw}float99", "--node-tensor", f"x={tmp_path / 'x.bin'}"), "expected a dtype of"),
        (("--raw", f"{raw}float32,5", "--node-tensor", f"x={tmp_path / 'x.bin'}"), "rows of 20 bytes"),
        (("--node-tensor", f"x={tmp_path / 'x.bin'}"), "--raw"),
    ]:
        assert convert(tmp_path / "e.csv", tmp_path / "g", *options) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "n.csv").write_text("id,y\n1,5\n0,3\n")
    assert convert(tmp_path / "e.csv", tmp_path / "g", *table, "--node-tensor", f"y={tmp_path / 'y.npy'}") == 1
    assert "rename one of them" in capsys.readouterr().err


def test_raw_files(tmp_path):
    ends = np.array([[0, 2], [1, 2], [3, 0]], np.int32)
    x = np.arange(12, dtype=np.float16).reshape(4, 3)
    ends.tofile(tmp_path / "pairs.bin")
    np.ascontiguousarray(ends.T).tofile(tmp_path / "flat.bin")
    x.tofile(tmp_path / "x.bin")
    np.arange(4, dtype=np.int64).tofile(tmp_path / "y.bin")
    for name, width in (("pairs", ",2"), ("flat", "")):
        options = ["--raw", f"{tmp_path / name}.bin=int32{width}"]
        options += ["--raw", f"{tmp_path / 'x.bin'}=float16,3", "--node-tensor", f"x={tmp_path / 'x.bin'}"]
        options += ["--raw", f"{tmp_path / 'y.bin'}=int64", "--node-tensor", f"y={tmp_path / 'y.bin'}"]
        assert convert(tmp_path / f"{name}.bin", tmp_path / name, *options) == 0
        data = manyhop_pyg.open(tmp_path / name)
        assert data.edge_index.tolist() == [[3, 0, 1], [0, 2, 2]]
        assert data.x.equal(torch.from_numpy(x))
        assert data.y.tolist() == [0, 1, 2, 3]
