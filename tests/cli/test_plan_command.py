"""``manyhop plan``."""

import re
from pathlib import Path

import pytest
import torch

from manyhop import files
from manyhop.ranks import cuda
from manyhop.system.nvml import GPU
from manyhop_tools.cli import main

PAPERS = "--num-nodes 111e6 --num-edges 1.6e9 --features 128 --dtype float16"
H200S = "--memory 2TiB --gpu-memory 141GB"


@pytest.fixture
def plan(run):
    return lambda argv, **how: run("plan", *argv.split(), **how)


@pytest.fixture
def _graph():
    """The folder g."""
    edges = {("a", "to", "b"): tuple(torch.randint(0, 100, (2, 5000)))}
    files.save_graph(
        "g", {"a": 100, "b": 100}, edges,
        node_tensors={"a": {"x": torch.zeros(100, 500)}, "b": {"y": torch.zeros(100, dtype=torch.int64)}},
    )  # fmt: skip


@pytest.mark.usefixtures("_graph")
def test_a_graph(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = plan("g --ranks 4 --nodes 2 --memory 160KiB").out.splitlines()
    assert out[0] == "Fits: 118.8 KiB of 128.0 KiB usable per node (2 nodes, 2 ranks each, 160.0 KiB free)."
    table = {line.split()[0]: line.split("  ") for line in out[3:] if line[0] != " "}
    table = {name: [cell.strip() for cell in cells[1:] if cell] for name, cells in table.items()}
    assert table["topology"][:2] == ["20.3 KiB", "shared"]
    assert table["a.x"][:3] == ["[100, 500] float32", "195.3 KiB", "sharded"]
    assert table["a.x"][3].startswith("195.3 KiB do not fit")
    assert table["b.y"][:3] == ["[100] int64", "800 B", "shared"]
    assert out[3].index("20.3 KiB fit") == out[4].index("195.3 KiB do") == out[2].index("reason")
    assert out[3].index(" KiB  shared") == out[4].index(" KiB  sharded")  # numbers end in one column
    assert "195.3 KiB  mapped" in plan("g --ranks 4 --nodes 2 --memory 160KiB --no-shards").out
    assert "1 node, 1 rank each" in plan("g").out


def test_nothing_but_headers_is_read(plan):
    """A file of 8 TiB: all of it is a hole."""
    with Path("x.bin").open("wb") as file:
        try:
            file.truncate(1 << 43)
        except OSError:
            pytest.skip("the file system has no files of 8 TiB")
    Path("x.bin.json").write_text('{"shape": [17179869184, 128], "dtype": "float32"}')
    assert "8.0 TiB  mapped" in plan("x.bin --memory 12GiB").out


def test_files_with_several_tensors(plan):
    package = pytest.importorskip("safetensors.torch")
    package.save_file({"u": torch.zeros(4), "v": torch.zeros(4, 2)}, "t.safetensors")
    files.write("z.npy", torch.zeros(3))
    out = plan("t.safetensors z.npy --memory 1M").out
    for name in ("t.safetensors/u", "t.safetensors/v", "z.npy"):
        assert re.search(rf"{name} .* process ", out)


def test_what_does_not_fit(plan):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": list(range(10_000))}), "t.parquet")
    error = plan("t.parquet --memory 1000", fails="Does not fit. Topology and features need 78.1 KiB").err
    assert "convert what cannot be mapped (x)" in error


def test_a_graph_that_is_not_there(plan):
    out = plan(f"{PAPERS} {H200S} --gpus 8").out
    assert "x         [111000000, 128] float16  26.5 GiB  device" in out
    assert "1 node, 8 GPUs each, 131.3 GiB free per GPU" in out
    igbh = "--num-nodes 547e6 --num-edges 5.8e9 --features 1024 --dtype float16"
    assert "  pinned  " in plan(f"{igbh} {H200S} --gpus 8 --nodes 4").out


def test_a_topology_that_fits_nowhere(plan):
    argv = f"--num-nodes 1e9 --num-edges 1e12 --gpus 8 --nodes 64 {H200S}"
    plan(argv, fails="No engine holds this topology (3.6 TiB)")
    argv = f"--num-nodes 1e9 --num-edges 1e9 --features 100000 --gpus 1 {H200S}"
    assert "No engine" not in plan(argv, fails="Does not fit.").err


def test_a_topology_that_no_node_holds(plan):
    out = plan("--num-nodes 1e9 --num-edges 2e11 --gpus 8 --nodes 32 --gpu-memory 141GB --memory 256GB").out
    assert "752.5 GiB  distributed  752.5 GiB do not fit" in out
    assert "all ranks then call cuGraph together" in " ".join(out.split())


@pytest.mark.usefixtures("_graph")
def test_machines_that_are_not_here(plan):
    out = plan("g --gpus 4 --nodes 2 --gpu-memory 200KiB --memory 1MiB").out
    assert re.match(
        r"Fits: \S+ KiB of 140.0 KiB usable per GPU, \S+ \S+ of 819.2 KiB per node "
        r"\(2 nodes, 4 GPUs each, 200.0 KiB free per GPU\).\n",
        out,
    )
    text = " ".join(out.split())
    assert "topology 20.3 KiB device" in text
    assert "a.x [100, 500] float32 195.3 KiB sharded 195.3 KiB do not fit beside the rest in the 140.0 KiB" in text
    assert "b.y [100] int64 800 B device" in text
    assert "each of 4 GPUs holds 48.8 KiB" in text


@pytest.mark.usefixtures("_graph")
def test_what_the_options_change(plan):
    machine = "g --gpus 4 --gpu-memory 200KiB --memory 1MiB"
    for option in ("--no-peers", "--no-shards", "--placement pinned-cuda"):
        assert "KiB  pinned  " in plan(f"{machine} {option}").out
    assert "KiB  host    " in plan(f"{machine} --placement cpu-cuda").out
    assert "195.3 KiB  device" in plan("g --gpus 1 --gpu-memory 141GB --memory 1MiB").out
    plan(f"{machine} --placement cuda-cuda", fails="pass placement='auto', with which all fits")


@pytest.mark.parametrize(
    ("machine", "place", "reason"),
    [
        ("--gpus 1 --gpu-memory 1MiB --memory 100KiB", "device", "fit on the GPU."),
        ("--gpus 1 --gpu-memory 100KiB --memory 1MiB", "pinned", "where the GPU reads"),
        ("--gpus 1 --gpu-memory 100KiB --memory 100KiB", "host", "the CPU samples them"),
        ("--gpus 8 --nodes 64 --gpu-memory 100KiB --memory 100KiB", "distributed", "call cuGraph"),
    ],
)
def test_who_samples_a_topology_in_files(plan, machine, place, reason):
    files.save_graph("g", {"a": 1000}, {("a", "to", "a"): tuple(torch.randint(0, 1000, (2, 50_000)))})
    text = " ".join(plan(f"g {machine} --no-peers").out.split())
    assert f"topology 203.1 KiB {place} 203.1 KiB" in text
    assert reason in text


@pytest.mark.usefixtures("_graph")
def test_gpus_that_are_here(plan, monkeypatch):
    gpus = tuple(
        GPU(index=k, uuid=f"GPU-{k}", name="a", total=300 << 10, free=free << 10, pcie=None, peers=())
        for k, free in enumerate((250, 200, 10))
    )
    monkeypatch.setattr(cuda, "gpus", lambda: gpus)
    assert "1 node, 2 GPUs each, 200.0 KiB free per GPU" in plan("g --gpus 2 --memory 1MiB").out
    assert "For loaders on the 3 GPUs of this machine: --gpus 3" in plan("g --memory 1MiB").out
    plan("g --gpus 4", fails="Expected --gpu-memory for 4 GPUs, as this machine has 3")


@pytest.mark.usefixtures("_graph")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("g --memory lots", "number of bytes"),
        ("g --nodes 2", "at least one rank per node"),
        ("g nope.npy", "no such file"),
        ("g --gpu-memory 1GB", "Expected --gpus with --gpu-memory"),
        ("g --placement cuda-cuda", "Expected --gpus with --placement"),
        ("g --no-peers", "Expected --gpus with --no-peers"),
        ("g --gpus 4 --gpu-memory 1GB --ranks 2", "a rank for each of 4 GPUs"),
        ("g --gpus 4 --gpu-memory much", "number of bytes"),
        ("g --gpus 4 --gpu-memory 1GB --no-shards --placement sharded", "distributed=True"),
        ("", "Expected files to plan for, or --num-nodes and --num-edges"),
        ("--num-nodes 5", "Expected files to plan for"),
        ("x.npy --num-nodes 5", "Expected files, or --num-nodes, got both"),
        ("--num-nodes 5 --num-edges 5 --dtype float16", "Expected --features with --dtype"),
        (f"{PAPERS[:-2]}17 {H200S} --gpus 1", "expected a dtype of "),
    ],
)
def test_wrong_arguments(plan, argv, message):
    plan(argv, fails=message)


def test_numbers_of_nodes(capsys):
    for text in ("-5", "1.5", "many", "inf"):
        with pytest.raises(SystemExit):
            main(["plan", f"--num-nodes={text}"])
        assert f"argument --num-nodes: expected an integer of at least 0, got '{text}'" in capsys.readouterr().err
