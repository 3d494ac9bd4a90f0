"""The GraphBolt example, in a quick setting, on the real data."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import forks
import pytest
import torch
import torch.distributed as dist

import manyhop_dgl  # noqa: F401  # with it, DGL works on any torch
from manyhop.errors import InputError

pytest.importorskip("dgl", "2.1", reason="the example trains with DGL's layers")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "graphbolt_node_classification.py"
QUICK = ("--epochs", "2", "--fanout", "5", "3")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the example; returns the test accuracy after each epoch."""

    def run(*arguments):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        return accuracies(capsys.readouterr().out)

    return run


def accuracies(text):
    return [float(found) for found in re.findall(r"^epoch \d+: .* test accuracy (\S+)$", text, flags=re.MULTILINE)]


@pytest.mark.slow
def test_it_learns_from_the_graph(run):
    with_graph = run(*QUICK, "--workers", "2")
    assert len(with_graph) == 2
    assert with_graph[-1] > 0.34
    assert run(*QUICK) == with_graph  # threads change nothing
    assert 0.2 < run(*QUICK, "--no-graph")[-1] < with_graph[-1]


def test_two_ranks():
    command = [forks.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    ranks = subprocess.run([*command, *QUICK], cwd=EXAMPLES, env=forks.environment(), capture_output=True, text=True)
    assert ranks.returncode == 0, ranks.stderr
    assert "Warning" not in ranks.stderr
    assert accuracies(ranks.stdout)[-1] > 0.34


def test_it_is_short_and_differs_from_graphbolt_by_its_import():
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 84
    assert sum("manyhop" in line for line in lines) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_device_that_is_not_there(run):
    with pytest.raises(InputError, match=r"Expected an available device.*got 'cuda'"):
        run("--device", "cuda")
