"""``manyhop plan --fanout``: expected times, and graphs that are not there."""

import re
from dataclasses import replace

import pytest
import torch

from manyhop import files
from manyhop.cli import main
from manyhop.costs import H200, CPUCosts, CuGraphCosts, Machine, write_machine

PAPERS = ["--num-nodes", "111e6", "--num-edges", "1.6e9", "--features", "128", "--dtype", "float16"]
TIMES = ["--fanout", "15", "10", "5", "--machine", "H200", "--memory", "2TiB"]
IGBH = ["--num-nodes", "547e6", "--num-edges", "5.8e9", "--features", "1024", "--dtype", "float16", *TIMES]


def plan(capsys, *argv):
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def epoch(out):
    number, unit = re.search(r"Epoch: .*?: ([\d.e+-]+) (s|min)\.", out).groups()
    return float(number) * (60 if unit == "min" else 1)


def test_a_graph_that_is_not_there(capsys):
    out = plan(capsys, *PAPERS, *TIMES, "--gpus", "8", "--seeds", "1.2e6")
    assert "x         [111000000, 128] float16  26.5 GiB  device" in out
    assert "1 node, 8 GPUs each; 131.3 GiB free per GPU" in out  # the named machine's
    assert "Engine: the GPU's kernels (triton); topology: device." in out
    assert "1,200,000 seeds in 147 steps on 8 GPUs" in out
    assert "an R-MAT graph of 111,000,000 nodes and 1,600,000,000 edges is assumed" in out
    one = plan(capsys, *PAPERS, *TIMES, "--gpus", "1", "--seeds", "1.2e6")
    assert 5 < epoch(one) / epoch(out) < 8  # ranks share a host


def test_features_that_are_spread(capsys):
    machines = ["--gpus", "8", "--nodes", "4", "--batch-size", "2048"]
    out = plan(capsys, *IGBH, *machines)
    assert "x: pinned." in out
    assert re.search(r"hot rows, [\d.]+% of all, serve \d+% of the requests", out)
    assert "With --placement distributed: " in out
    spread = plan(capsys, *IGBH, *machines, "--placement", "distributed")
    assert "the network moves 40 GB/s per rank" in spread
    slow = plan(capsys, *IGBH, *machines, "--placement", "distributed", "--network", "1GB")
    assert "bound by network" in slow
    assert epoch(slow) > epoch(spread)


def test_the_step_of_another_model(capsys):
    machines = [*PAPERS, *TIMES, "--gpus", "1", "--seeds", "1024000"]
    assert epoch(plan(capsys, *machines, "--step", "72")) == pytest.approx(72, rel=0.01)
    wide = plan(capsys, *machines, "--hidden", "4096")
    assert "GraphSAGE of 3 x 4096 channels" in wide
    assert "bound by gpu" in wide


def test_a_topology_that_fits_nowhere(capsys):
    argv = ["--num-nodes", "1e9", "--num-edges", "1e12", "--gpus", "8", "--nodes", "64", *TIMES]
    assert main(["plan", *argv]) == 1
    assert "No engine holds this topology (3.6 TiB)" in capsys.readouterr().err
    argv = ["--num-nodes", "1e9", "--num-edges", "1e9", "--features", "100000", "--gpus", "1", *TIMES]
    assert main(["plan", *argv]) == 1
    assert "No engine" not in capsys.readouterr().err


FITS_NO_NODE = ["--num-nodes", "1e9", "--num-edges", "2e11", "--gpus", "8", "--nodes", "32"]


def test_a_topology_that_no_node_holds(capsys, tmp_path):
    write_machine(replace(H200, cugraph=None), tmp_path / "plain.json")
    times = [*TIMES[: TIMES.index("--machine")], "--calibration", str(tmp_path / "plain.json")]
    out = plan(capsys, *FITS_NO_NODE, *times, "--memory", "256GB")
    assert "topology: distributed. 752.5 GiB do not fit" in out
    assert "all ranks then call cuGraph together" in out
    assert "Engine: cuGraph" in out
    assert "No times: 'H200' has no constants of cuGraph. Run `manyhop bench machine" in out
    assert "Epoch:" not in out


def test_times_of_cugraph_are_those_of_a_calibration(capsys, tmp_path):
    outs = []
    for number, batch_s in enumerate((0.01, 0.02)):
        path = tmp_path / f"{number}.json"
        write_machine(replace(H200, cugraph=CuGraphCosts(gpus=2, batch_s=batch_s, edge_s=1e-9)), path)
        times = [*TIMES[: TIMES.index("--machine")], *TIMES[TIMES.index("--machine") + 2 :], "--calibration", str(path)]
        outs.append(plan(capsys, *FITS_NO_NODE, *times, "--memory", "256GB"))
    assert "Engine: cuGraph, which all ranks call together; topology: distributed." in outs[0]
    assert "takes as long as on 2 GPUs of one node, where it was measured" in outs[0]
    assert epoch(outs[1]) > epoch(outs[0]) > 0


def test_cugraph_beside_what_is_faster(capsys):
    """A topology that cuGraph could hold too: its time is there to compare, where the GPUs have room to build it."""
    out = plan(capsys, *PAPERS, *TIMES, "--gpus", "8", "--seeds", "1.2e6", "--step", "0.001")
    assert "topology: device." in out
    number, unit = re.search(r"With engine='cugraph': at least ([\d.]+) (s|min)\.", out).groups()
    assert unit == "s"
    assert float(number) > 5 * epoch(out)
    assert "engine='cugraph'" not in plan(capsys, *PAPERS, *TIMES, "--gpus", "1")
    large = ["--num-nodes", "1e9", "--num-edges", "5e10", *TIMES, "--gpus", "8"]
    assert "engine='cugraph'" not in plan(capsys, *large)


@pytest.fixture
def folder(tmp_path):
    edges = {("a", "to", "a"): tuple(torch.randint(0, 100, (2, 5000)))}
    tensors = {"a": {"x": torch.zeros(100, 64, dtype=torch.float16), "y": torch.zeros(100, dtype=torch.int64)}}
    files.save_graph(tmp_path / "g", {"a": 100}, edges, node_tensors=tensors)
    return str(tmp_path / "g")


def test_a_graph_on_disk_is_sampled(folder, capsys):
    out = plan(capsys, folder, "--gpus", "2", "--fanout", "3", "--machine", "H100", "--batch-size", "10")
    assert "[3] around 10 seeds give " in out
    assert " nodes, 30 edges and " in out
    assert "means of 16 sampled batches" in out
    assert "100 seeds in 5 steps on 2 GPUs" in out
    assert "bfloat16 (autocast)" in out


def test_typed_graphs_have_seeds_of_one_type(tmp_path, capsys):
    edges = {("a", "to", "b"): (torch.arange(30), torch.arange(30) % 10)}
    files.save_graph(tmp_path / "g", {"a": 30, "b": 10}, edges, node_tensors={"a": {"x": torch.zeros(30, 8)}})
    out = plan(capsys, str(tmp_path / "g"), "--gpus", "1", "--fanout", "9", "--machine", "H200", "--batch-size", "2")
    assert "give 8 nodes, 6 edges and 192 B of features" in out  # 24 bytes per node, of those of both types
    assert "10 seeds in 5 steps on 1 GPU" in out


def test_batches_of_a_cpu(folder, capsys, tmp_path):
    calibration = tmp_path / "machine.json"
    write_machine(Machine(name="mine", cpu=CPUCosts(batch_s=1e-3, edge_s=1e-3, copy=1e12)), calibration)
    argv = [folder, "--fanout", "3", "--batch-size", "10", "--calibration", str(calibration)]
    assert "Loading, one thread per rank: 31 ms per batch; 5 batches per rank" in plan(capsys, *argv, "--ranks", "2")
    assert main(["plan", *argv, "--gpus", "1", "--gpu-memory", "1GB"]) == 1
    assert "Expected constants of a GPU, got 'mine' without" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "Expected files to plan for, or --num-nodes and --num-edges"),
        (["--num-nodes", "5"], "Expected files to plan for"),
        (["x.npy", "--num-nodes", "5"], "Expected files, or --num-nodes, got both"),
        (["x.npy", "--machine", "H100"], "Expected --fanout with --machine"),
        (["x.npy", "--batch-size", "9"], "Expected --fanout with --batch-size"),
        (["x.npy", "--fanout", "5"], "Expected either --machine or --calibration"),
        (["x.npy", "--fanout", "5", "--machine", "H100", "--calibration", "c"], "either --machine or --calibration"),
        (["x.npy", "--fanout", "5", "--machine", "H100"], "Expected --gpus with --machine"),
        (["x.npy", "--fanout", "5", "--calibration", "c", "--step", "5"], "Expected --gpus with --step"),
        (["--num-nodes", "5", "--num-edges", "5", "--dtype", "float16"], "Expected --features with --dtype"),
        ([*PAPERS, *TIMES, "--gpus", "1", "--hidden", "5", "--step", "5"], "--step or --hidden, got both"),
        ([*PAPERS[:-1], "float17", *TIMES, "--gpus", "1"], "expected a dtype of "),
        ([*PAPERS, *TIMES, "--gpus", "1", "--hidden", "0"], "Expected hidden to be at least 1"),
        ([*PAPERS, *TIMES, "--gpus", "1", "--step", "0"], "more than 0 seconds"),
        ([*PAPERS, *TIMES, "--gpus", "1", "--seeds", "0"], "num_seeds to be at least 1"),
    ],
)
def test_wrong_arguments(argv, message, capsys):
    assert main(["plan", *argv]) == 1
    assert message in capsys.readouterr().err


def test_files_of_tensors_have_no_topology_to_sample(tmp_path, capsys):
    files.write(tmp_path / "x.npy", torch.zeros(4, 2))
    argv = [str(tmp_path / "x.npy"), "--gpus", "1", "--fanout", "2", "--machine", "H100"]
    assert main(["plan", *argv]) == 1
    assert "Expected one folder of a graph with --fanout" in capsys.readouterr().err


def test_numbers_of_nodes(capsys):
    for text in ("-5", "1.5", "many", "inf"):
        with pytest.raises(SystemExit):
            main(["plan", f"--num-nodes={text}"])
        assert f"argument --num-nodes: expected an integer of at least 0, got '{text}'" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    argv = ["plan", "--num-nodes", "1e6", "--num-edges", "1e6", "--fanout", "2", "--calibration", "no.json"]
    assert main(argv) == 1
    assert capsys.readouterr().err == "manyhop plan: no.json: there is no such file or folder. Check the path.\n"
