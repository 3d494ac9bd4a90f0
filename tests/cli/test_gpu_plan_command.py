"""``manyhop plan --gpus``."""

import re

import pytest
import torch

from manyhop import files
from manyhop.ranks import cuda
from manyhop.system.nvml import GPU
from manyhop_tools.cli import main


@pytest.fixture
def folder(tmp_path):
    edges = {("a", "to", "b"): tuple(torch.randint(0, 100, (2, 5000)))}
    files.save_graph(
        tmp_path / "g", {"a": 100, "b": 100}, edges,
        node_tensors={"a": {"x": torch.zeros(100, 500)}, "b": {"y": torch.zeros(100, dtype=torch.int64)}},
    )  # fmt: skip
    return str(tmp_path / "g")


def plan(capsys, *argv):
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def test_machines_that_are_not_here(folder, capsys):
    out = plan(capsys, folder, "--gpus", "4", "--nodes", "2", "--gpu-memory", "200KiB", "--memory", "1MiB").splitlines()
    assert re.fullmatch(
        r"Fits: \S+ KiB of 140.0 KiB usable per GPU, \S+ \S+ of 819.2 KiB per node "
        r"\(2 nodes, 4 GPUs each, 200.0 KiB free per GPU\).",
        out[0],
    )
    text = " ".join(" ".join(out).split())
    assert "topology 20.3 KiB device" in text
    assert "a.x [100, 500] float32 195.3 KiB sharded 195.3 KiB do not fit beside the rest in the 140.0 KiB" in text
    assert "b.y [100] int64 800 B device" in text
    assert "each of 4 GPUs holds 48.8 KiB" in text


def test_what_the_options_change(folder, capsys):
    machine = [folder, "--gpus", "4", "--gpu-memory", "200KiB", "--memory", "1MiB"]
    assert "KiB  pinned  " in plan(capsys, *machine, "--no-peers")
    assert "KiB  pinned  " in plan(capsys, *machine, "--no-shards")
    assert "KiB  pinned  " in plan(capsys, *machine, "--placement", "pinned-cuda")
    assert "KiB  host    " in plan(capsys, *machine, "--placement", "cpu-cuda")
    assert "195.3 KiB  device" in plan(capsys, folder, "--gpus", "1", "--gpu-memory", "141GB", "--memory", "1MiB")
    assert main(["plan", *machine, "--placement", "cuda-cuda"]) == 1
    assert "pass placement='auto', with which all fits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "place", "reason"),
    [
        (["--gpus", "1", "--gpu-memory", "1MiB", "--memory", "100KiB"], "device", "fit on the GPU."),
        (["--gpus", "1", "--gpu-memory", "100KiB", "--memory", "1MiB"], "pinned", "where the GPU reads"),
        (["--gpus", "1", "--gpu-memory", "100KiB", "--memory", "100KiB"], "host", "the CPU samples them"),
        (
            ["--gpus", "8", "--nodes", "64", "--gpu-memory", "100KiB", "--memory", "100KiB"],
            "distributed",
            "call cuGraph",
        ),
    ],
)
def test_who_samples_a_topology_in_files(tmp_path, capsys, machine, place, reason):
    edges = {("a", "to", "a"): tuple(torch.randint(0, 1000, (2, 50_000)))}
    files.save_graph(tmp_path / "g", {"a": 1000}, edges)
    out = plan(capsys, str(tmp_path / "g"), *machine, "--no-peers")
    text = " ".join(out.split())
    assert f"topology 203.1 KiB {place} 203.1 KiB" in text
    assert reason in text


def test_gpus_that_are_here(folder, capsys, monkeypatch):
    gpus = tuple(
        GPU(index=k, uuid=f"GPU-{k}", name="a", total=300 << 10, free=free << 10, pcie=None, peers=())
        for k, free in enumerate((250, 200, 10))
    )
    monkeypatch.setattr(cuda, "gpus", lambda: gpus)
    assert "1 node, 2 GPUs each, 200.0 KiB free per GPU" in plan(capsys, folder, "--gpus", "2", "--memory", "1MiB")
    assert "For loaders on the 3 GPUs of this machine: --gpus 3" in plan(capsys, folder, "--memory", "1MiB")
    assert main(["plan", folder, "--gpus", "4"]) == 1
    assert "Expected --gpu-memory for 4 GPUs, as this machine has 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu-memory", "1GB"], "Expected --gpus with --gpu-memory"),
        (["--placement", "cuda-cuda"], "Expected --gpus with --placement"),
        (["--no-peers"], "Expected --gpus with --no-peers"),
        (["--gpus", "4", "--gpu-memory", "1GB", "--ranks", "2"], "a rank for each of 4 GPUs"),
        (["--gpus", "4", "--gpu-memory", "much"], "number of bytes"),
        (["--gpus", "4", "--gpu-memory", "1GB", "--no-shards", "--placement", "sharded"], "distributed=True"),
    ],
)
def test_wrong_arguments(folder, options, message, capsys):
    assert main(["plan", folder, *options]) == 1
    assert message in capsys.readouterr().err
