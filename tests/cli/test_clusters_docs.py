"""Every command for ``manyhop plan``, its answer and the table of epochs on the page about clusters."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from manyhop import files
from manyhop.cli import main
from manyhop_bench.cli import main as bench

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "clusters.md").read_text()
SH = "".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)).replace("\\\n", "")
COMMANDS = [line.partition(" #")[0] for line in SH.splitlines() if line.startswith("manyhop plan")]
LINES = re.findall(r"^\| [\w-]+ \| \d+ x .*$", PAGE, flags=re.MULTILINE)
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in LINES]
GRAPHS = {
    "papers100M": "--num-nodes 111e6 --num-edges 1.6e9 --features 128 --seeds 1207179",
    "IGBH-full": "--num-nodes 547e6 --num-edges 5.8e9 --features 1024 --seeds 94605581 --batch-size 2048",
}


def run(command, capsys):
    assert main(shlex.split(command)[1:]) == 0
    return capsys.readouterr().out


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    edges = {("_N", "_E", "_N"): tuple(torch.randint(0, 3000, (2, 9000)))}
    files.save_graph("graph", {"_N": 3000}, edges, node_tensors={"_N": {"x": torch.zeros(3000, 8)}}, homogeneous=True)
    assert bench(["machine", "--saved", str(DOCS / "benchmarks" / "gpu.json"), "--output", "machine.json"]) == 0
    assert len(COMMANDS) == 5
    for command in COMMANDS:
        options = " --gpus 1 --memory 2TiB" if "--calibration" in command else ""
        assert "Epoch: " in run(command + options, capsys)


def test_the_answer(capsys):
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    (command,) = (command for command in COMMANDS if "94605581" in command)
    out = run(command, capsys)
    assert shown.split() == out[out.index("Batches:") :].split()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]} {row[2]}")
def test_epochs(row, capsys):
    name, size, place, gpu, node, loader, step, bound, epoch, cold, captured = row
    nodes, gpus = size.split(" x ")
    mode = " --placement distributed" if place == "distributed" else ""
    out = run(
        f"manyhop plan {GRAPHS[name]} --dtype float16 --fanout 15 10 5 --machine H200 --memory 2TiB "
        f"--nodes {nodes} --gpus {gpus}{mode}",
        capsys,
    )
    assert f"\nx: {place}. " in out
    assert f"Needed per GPU: {gpu} of" in out
    assert f"Needed per node: {node} of" in out
    assert f"Loader: {loader} ms per batch" in out
    assert f"loading included: {step} ms, bound by {bound}." in out
    assert f": {epoch}.\n" in out
    assert f"captured and trimmed steps: {captured} (" in out
    assert (f"without them an epoch takes {cold}\n" in out) == bool(cold)


def test_there_are_rows():
    assert len(ROWS) == 9
