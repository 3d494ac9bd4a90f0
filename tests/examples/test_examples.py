"""The examples, in a quick setting, on the real data; and what they say to wrong input."""

import functools
import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import forks
import pytest
import torch

import manyhop_pyg
from manyhop.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"
FEWER_EDGES = str(Path(__file__).with_name("fewer_edges.py"))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example; returns what it prints."""

    def run(script, *arguments):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")  # an absolute path stays as it is
        return capsys.readouterr().out

    return run


def number(pattern, text):
    (found,) = re.findall(pattern, text, flags=re.MULTILINE)
    return float(found)


@pytest.mark.slow
def test_node_classification_learns_from_the_graph(run):
    quick = ("pyg_node_classification.py", "--epochs", "3", "--fanout", "5", "3", "--workers", "2")
    out = run(*quick)
    accuracy = number(r"test accuracy (\S+) ", out)
    majority = number(r"the largest class: (\S+)", out)
    assert 0.2 < majority < 0.3
    assert accuracy > majority + 0.08
    assert "96 batches, num_workers=2" in out
    assert "advice: " in out
    alone = run(*quick, "--no-graph")
    assert majority - 0.05 < number(r"test accuracy (\S+) ", alone) < accuracy


@pytest.mark.slow
def test_link_prediction_learns_from_the_graph(run, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    datasets = importlib.import_module("datasets")
    monkeypatch.setattr(datasets, "movies", functools.partial(datasets.movies, min_roles=20))  # a third of the edges
    quick = ("pyg_link_prediction.py", "--epochs", "2")
    with_graph = number(r"test AUC (\S+) ", run(*quick, "--fanout", "5", "3"))
    assert with_graph > 0.68
    assert 0.5 < number(r"test AUC (\S+) ", run(*quick, "--no-graph")) < with_graph - 0.03


def torchrun(*arguments):
    """Run two ranks; returns what they print."""
    command = [forks.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    ranks = subprocess.run(command, cwd=EXAMPLES, env=forks.environment(), capture_output=True, text=True)
    assert ranks.returncode == 0, ranks.stderr
    assert "Warning" not in ranks.stderr
    return ranks.stdout


def test_node_classification_on_two_ranks():
    out = torchrun("pyg_node_classification.py", "--epochs", "1", "--fanout", "5", "3")
    assert "32 batches, num_workers=0" in out
    number(r"^epoch 1: .* accuracy (\S+) on validation nodes$", out)
    assert number(r"test accuracy (\S+) ", out) > number(r"the largest class: (\S+)", out) + 0.04


def test_link_prediction_on_two_ranks():
    out = torchrun(FEWER_EDGES, "pyg_link_prediction.py", "--epochs", "1", "--fanout", "2", "2")
    assert "37 batches, num_workers=0" in out
    number(r"^epoch 1: .* AUC (\S+) on validation edges$", out)
    assert number(r"test AUC (\S+) ", out) > 0.6


def test_a_script_for_pyg_on_two_ranks():
    out = torchrun("-m", "manyhop_pyg", "pyg_ddp_unchanged.py", "--epochs", "1")
    assert number(r"^epoch 1: accuracy (\S+) on validation nodes$", out) > 0.3


def test_static_shapes(run):
    """On the CPU, where nothing is replayed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # idle ones would take the cores from others
    out = run("pyg_static_shapes.py", "--epochs", "1", "--fanout", "3", "2", "--device", "cpu")
    torch.set_num_threads(threads)
    assert number(r"^padded: (\S+)% of the batches fit", out) == 100
    assert "\n0 of 32 steps replayed, 0 CUDA graphs\n" in out
    assert number(r"^test accuracy (\S+)$", out) > 0.3


@pytest.mark.gpu
def test_static_shapes_on_a_gpu(run):
    pytest.importorskip("bokeh_sampledata", reason="the films are not installed: pip install bokeh_sampledata==2026.1")
    out = run("pyg_static_shapes.py", "--epochs", "3", "--fanout", "5", "3")
    assert number(r"^(\d+) of 96 steps replayed", out) > 80
    assert number(r"^test accuracy (\S+)$", out) > 0.35
    assert 0 < number(r"^a step takes (\S+) ms replayed$", out) < 2


@pytest.mark.parametrize("script", ["pyg_node_classification.py", "pyg_link_prediction.py", "pyg_static_shapes.py"])
def test_a_script_differs_from_pyg_by_its_import(script):
    lines = (EXAMPLES / script).read_text().splitlines()
    assert sum("manyhop" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("pyg_node_classification.py", ["--fanout", "2", "2"]), ("pyg_link_prediction.py", ["--no-graph"])],
)
@pytest.mark.slow
def test_a_script_with_the_loaders_of_pyg(run, tmp_path, script, arguments):
    names = runpy.run_path(str(EXAMPLES / "compare_loaders.py"), run_name="compare_loaders")
    source = names["changed"]((EXAMPLES / script).read_text(), names["WITHOUT"])
    for ours in ("manyhop", '"distributed"', "is_padding", "stats"):
        assert ours not in source
    path = tmp_path / script
    path.write_text(source)
    manyhop_pyg.install()  # instead of torch-sparse or pyg-lib
    try:
        out = run(path, "--epochs", "1", *arguments)
    finally:
        manyhop_pyg.uninstall()
    number(r"^test \w+ (\S+) in the best epoch", out)


@pytest.mark.slow
def test_a_script_that_accelerates_its_model(run, tmp_path):
    names = runpy.run_path(str(EXAMPLES / "compare_loaders.py"), run_name="compare_loaders")
    path = tmp_path / "script.py"
    path.write_text(names["changed"]((EXAMPLES / "pyg_node_classification.py").read_text(), names["FASTER"]))
    out = run(path, "--epochs", "1", "--fanout", "2", "2")
    number(r"^test \w+ (\S+) in the best epoch", out)


def test_a_fanout_that_makes_no_sense(run):
    with pytest.raises(InputError, match="-7"):
        run("pyg_node_classification.py", "--fanout", "10", "-7")
