"""The examples, in a quick setting, on the real data; and what they say to wrong input."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from manyhop.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example; returns what it prints."""

    def run(script, *arguments):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def number(pattern, text):
    (found,) = re.findall(pattern, text)
    return float(found)


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


def test_link_prediction_learns_from_the_graph(run):
    quick = ("pyg_link_prediction.py", "--epochs", "1", "--fanout", "4", "2")
    with_graph = number(r"test AUC (\S+) ", run(*quick))
    assert with_graph > 0.75
    assert 0.45 < number(r"test AUC (\S+) ", run(*quick, "--no-graph")) < with_graph


@pytest.mark.parametrize("script", ["pyg_node_classification.py", "pyg_link_prediction.py"])
def test_a_script_is_short_and_differs_from_pyg_by_its_import(script):
    lines = (EXAMPLES / script).read_text().splitlines()
    assert len(lines) <= 80
    assert sum("manyhop" in line for line in lines) == 1


def test_an_unknown_dataset(run, capsys):
    with pytest.raises(SystemExit) as error:
        run("pyg_node_classification.py", "--dataset", "karate")
    assert error.value.code == 2
    assert "choose from movies, debian, ogbn-arxiv" in capsys.readouterr().err.replace("'", "")


def test_a_fanout_that_makes_no_sense(run):
    with pytest.raises(InputError, match="-7"):
        run("pyg_node_classification.py", "--fanout", "10", "-7")
