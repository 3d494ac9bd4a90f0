"""The examples for DGL, in a quick setting, on the real data, with one process and with several."""

import re
import subprocess
from pathlib import Path

import forks
import pytest

pytest.importorskip("manyhop_dgl")
pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

EXAMPLES = Path(__file__).parents[2] / "examples"
FEWER_EDGES = str(Path(__file__).with_name("fewer_edges.py"))
SCRIPTS = "dgl_node_classification.py", "dgl_link_prediction.py"


def run(*arguments, processes=1):
    """What an example prints."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [forks.python(), *(ranks if processes > 1 else []), *arguments]
    return subprocess.run(command, cwd=EXAMPLES, env=forks.environment(), capture_output=True, text=True)


def numbers(pattern, text):
    return [float(found) for found in re.findall(pattern, text, flags=re.MULTILINE)]


@pytest.mark.slow
def test_node_classification_learns_from_the_graph():
    quick = "dgl_node_classification.py", "--epochs", "3", "--fanout", "3", "5"
    done = run(*quick, "--workers", "1")
    assert done.returncode == 0, done.stderr
    accuracies = numbers(r"test accuracy (\S+)$", done.stdout)
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.33  # the largest class: 0.26
    assert "96 batches, num_workers=1" in done.stdout
    two = run("dgl_node_classification.py", "--epochs", "2", *quick[3:], processes=2)
    assert two.returncode == 0, two.stderr
    assert numbers(r"test accuracy (\S+)$", two.stdout)[-1] > 0.33
    assert "64 batches, num_workers=0" in two.stdout  # of each rank, half as large


@pytest.mark.slow
def test_link_prediction_learns_from_the_graph():
    quick = "dgl_link_prediction.py", "--epochs", "1", "--fanout", "2", "3"
    done = run(*quick)
    assert done.returncode == 0, done.stderr
    assert numbers(r"^epoch 1: .* test AUC (\S+);", done.stdout)[0] > 0.75
    four = run(FEWER_EDGES, *quick, processes=4)
    assert four.returncode == 0, four.stderr
    assert numbers(r"^epoch 1: .* test AUC (\S+);", four.stdout)[0] > 0.6


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_short_and_differs_from_dgl_by_its_import(script):
    lines = (EXAMPLES / script).read_text().splitlines()
    assert len(lines) <= 84
    assert sum("manyhop" in line for line in lines) == 1
    assert not any("torch_geometric" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dgl_node_classification.py", "--fanout", "10", "-7"), "-7"),
        (("dgl_link_prediction.py", "--dataset", "karate"), "choose from"),
    ],
)
def test_wrong_input_is_named(arguments, message):
    done = run(*arguments)
    assert done.returncode != 0
    assert message in done.stderr.splitlines()[-1]
