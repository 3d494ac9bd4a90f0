"""``manyhop plan``."""

import re

import pytest
import torch

from manyhop import files
from manyhop_tools.cli import main


@pytest.fixture
def folder(tmp_path):
    edges = {("a", "to", "b"): tuple(torch.randint(0, 100, (2, 5000)))}
    files.save_graph(
        tmp_path / "g", {"a": 100, "b": 100}, edges,
        node_tensors={"a": {"x": torch.zeros(100, 500)}, "b": {"y": torch.zeros(100, dtype=torch.int64)}},
    )  # fmt: skip
    return tmp_path / "g"


def test_a_graph(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["plan", str(folder), "--ranks", "4", "--nodes", "2", "--memory", "160KiB"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "Fits: 118.8 KiB of 128.0 KiB usable per node (2 nodes, 2 ranks each, 160.0 KiB free)."
    table = {line.split()[0]: line.split("  ") for line in out[3:] if line[0] != " "}
    table = {name: [cell.strip() for cell in cells[1:] if cell] for name, cells in table.items()}
    assert table["topology"][:2] == ["20.3 KiB", "shared"]
    assert table["a.x"][:3] == ["[100, 500] float32", "195.3 KiB", "sharded"]
    assert table["a.x"][3].startswith("195.3 KiB do not fit")
    assert table["b.y"][:3] == ["[100] int64", "800 B", "shared"]
    assert out[3].index("20.3 KiB fit") == out[4].index("195.3 KiB do") == out[2].index("reason")
    assert main(["plan", str(folder), "--ranks", "4", "--nodes", "2", "--memory", "160KiB", "--no-shards"]) == 0
    assert "195.3 KiB  mapped" in capsys.readouterr().out
    assert main(["plan", str(folder)]) == 0
    assert "1 node, 1 rank each" in capsys.readouterr().out


def test_nothing_but_headers_is_read(tmp_path, capsys):
    """A file of 64 TiB: all of it is a hole."""
    with (tmp_path / "x.bin").open("wb") as file:
        try:
            file.truncate(1 << 43)
        except OSError:
            pytest.skip("the file system has no files of 8 TiB")
    (tmp_path / "x.bin.json").write_text('{"shape": [17179869184, 128], "dtype": "float32"}')
    assert main(["plan", str(tmp_path / "x.bin"), "--memory", "12GiB"]) == 0
    assert "8.0 TiB  mapped" in capsys.readouterr().out


def test_files_with_several_tensors(tmp_path, capsys):
    package = pytest.importorskip("safetensors.torch")
    package.save_file({"u": torch.zeros(4), "v": torch.zeros(4, 2)}, tmp_path / "t.safetensors")
    files.write(tmp_path / "z.npy", torch.zeros(3))
    assert main(["plan", str(tmp_path / "t.safetensors"), str(tmp_path / "z.npy"), "--memory", "1M"]) == 0
    out = capsys.readouterr().out
    for name in ("t.safetensors/u", "t.safetensors/v", "z.npy"):
        assert re.search(rf"{name} .* process ", out)


def test_what_does_not_fit(tmp_path, capsys):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": list(range(10_000))}), tmp_path / "t.parquet")
    assert main(["plan", str(tmp_path / "t.parquet"), "--memory", "1000"]) == 1
    err = capsys.readouterr().err
    assert "Does not fit. Topology and features need 78.1 KiB" in err
    assert "convert what cannot be mapped (x)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "lots"], "number of bytes"),
        (["--nodes", "2"], "at least one rank per node"),
        (["nope.npy"], "no such file"),
    ],
)
def test_wrong_arguments(folder, options, message, capsys):
    assert main(["plan", str(folder), *options]) == 1
    assert message in capsys.readouterr().err


def test_usage(capsys):
    for argv, status in ([["plan", "--help"], 0], [["plan", "x", "--what"], 2]):
        with pytest.raises(SystemExit) as error:
            main(argv)
        assert error.value.code == status
        assert "usage: manyhop plan" in "".join(capsys.readouterr())


PAPERS = ["--num-nodes", "111e6", "--num-edges", "1.6e9", "--features", "128", "--dtype", "float16"]
H200S = ["--memory", "2TiB", "--gpu-memory", "141GB"]


def plan(capsys, *argv):
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def test_a_graph_that_is_not_there(capsys):
    out = plan(capsys, *PAPERS, *H200S, "--gpus", "8")
    assert "x         [111000000, 128] float16  26.5 GiB  device" in out
    assert "1 node, 8 GPUs each, 131.3 GiB free per GPU" in out
    igbh = ["--num-nodes", "547e6", "--num-edges", "5.8e9", "--features", "1024", "--dtype", "float16"]
    assert "  pinned  " in plan(capsys, *igbh, *H200S, "--gpus", "8", "--nodes", "4")


def test_a_topology_that_fits_nowhere(capsys):
    argv = ["--num-nodes", "1e9", "--num-edges", "1e12", "--gpus", "8", "--nodes", "64", *H200S]
    assert main(["plan", *argv]) == 1
    assert "No engine holds this topology (3.6 TiB)" in capsys.readouterr().err
    argv = ["--num-nodes", "1e9", "--num-edges", "1e9", "--features", "100000", "--gpus", "1", *H200S]
    assert main(["plan", *argv]) == 1
    assert "No engine" not in capsys.readouterr().err


def test_a_topology_that_no_node_holds(capsys):
    argv = ["--num-nodes", "1e9", "--num-edges", "2e11", "--gpus", "8", "--nodes", "32", "--gpu-memory", "141GB"]
    out = plan(capsys, *argv, "--memory", "256GB")
    assert "752.5 GiB  distributed  752.5 GiB do not fit" in out
    assert "all ranks then call cuGraph together" in " ".join(out.split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "Expected files to plan for, or --num-nodes and --num-edges"),
        (["--num-nodes", "5"], "Expected files to plan for"),
        (["x.npy", "--num-nodes", "5"], "Expected files, or --num-nodes, got both"),
        (["--num-nodes", "5", "--num-edges", "5", "--dtype", "float16"], "Expected --features with --dtype"),
        ([*PAPERS[:-1], "float17", *H200S, "--gpus", "1"], "expected a dtype of "),
    ],
)
def test_wrong_numbers_of_a_graph(argv, message, capsys):
    assert main(["plan", *argv]) == 1
    assert message in capsys.readouterr().err


def test_numbers_of_nodes(capsys):
    for text in ("-5", "1.5", "many", "inf"):
        with pytest.raises(SystemExit):
            main(["plan", f"--num-nodes={text}"])
        assert f"argument --num-nodes: expected an integer of at least 0, got '{text}'" in capsys.readouterr().err
