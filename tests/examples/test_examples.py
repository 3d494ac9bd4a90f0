"""The examples for PyG; and what all of them have in common."""

import runpy
import sys

import pytest
from example_scripts import EXAMPLES, FEWER_EDGES, number, numbers, run

SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*_*.py") if path.name != "compare_loaders.py")
COMPARE = runpy.run_path(str(EXAMPLES / "compare_loaders.py"), run_name="compare_loaders")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_short_and_differs_by_its_import(script):
    lines = (EXAMPLES / script).read_text().splitlines()
    assert len(lines) <= 84
    assert sum("manyhop" in line for line in lines) <= (4 if "embeddings" in script else 2 if "ddp" in script else 1)
    assert script.startswith("pyg") or not any("torch_geometric" in line for line in lines)


@pytest.mark.slow
def test_node_classification_learns_from_the_graph():
    quick = ("pyg_node_classification.py", "--epochs", "3", "--fanout", "5", "3", "--workers", "2")
    out = run(*quick)
    accuracy = number(r"test accuracy (\S+) ", out)
    majority = number(r"the largest class: (\S+)", out)
    assert 0.2 < majority < 0.3
    assert accuracy > majority + 0.08
    assert "96 batches, num_workers=2" in out
    assert "advice: " in out
    assert majority - 0.05 < number(r"test accuracy (\S+) ", run(*quick, "--no-graph")) < accuracy


@pytest.mark.slow
def test_link_prediction_learns_from_the_graph():
    quick = (FEWER_EDGES, "pyg_link_prediction.py", "--epochs", "2")
    with_graph = number(r"test AUC (\S+) ", run(*quick, "--fanout", "5", "3"))
    assert with_graph > 0.68
    assert 0.5 < number(r"test AUC (\S+) ", run(*quick, "--no-graph")) < with_graph - 0.03


def test_node_classification_on_two_ranks():
    out = run("pyg_node_classification.py", "--epochs", "1", "--fanout", "5", "3", processes=2)
    assert "32 batches, num_workers=0" in out
    number(r"^epoch 1: .* accuracy (\S+) on validation nodes$", out)
    assert number(r"test accuracy (\S+) ", out) > number(r"the largest class: (\S+)", out) + 0.04


def test_link_prediction_on_two_ranks():
    out = run(FEWER_EDGES, "pyg_link_prediction.py", "--epochs", "1", "--fanout", "2", "2", processes=2)
    assert "37 batches, num_workers=0" in out
    number(r"^epoch 1: .* AUC (\S+) on validation edges$", out)
    assert number(r"test AUC (\S+) ", out) > 0.6


def test_a_script_for_pyg_on_two_ranks():
    out = run("-m", "manyhop_pyg", "pyg_ddp_unchanged.py", "--epochs", "1", processes=2)
    assert number(r"^epoch 1: accuracy (\S+) on validation nodes$", out) > 0.3


def test_static_shapes():
    """On the CPU, where nothing is replayed."""
    out = run("pyg_static_shapes.py", "--epochs", "1", "--fanout", "3", "2", "--device", "cpu")
    assert number(r"^padded: (\S+)% of the batches fit", out) == 100
    assert "\n0 of 32 steps replayed, 0 CUDA graphs\n" in out
    assert number(r"^test accuracy (\S+)$", out) > 0.3


@pytest.mark.gpu
def test_static_shapes_on_a_gpu():
    pytest.importorskip("bokeh_sampledata", reason="the films are not installed: pip install bokeh_sampledata==2026.1")
    out = run("pyg_static_shapes.py", "--epochs", "3", "--fanout", "5", "3", python=sys.executable)
    assert number(r"^(\d+) of 96 steps replayed", out) > 80
    assert number(r"^test accuracy (\S+)$", out) > 0.35
    assert 0 < number(r"^a step takes (\S+) ms replayed$", out) < 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"),
    [("pyg_node_classification.py", ["--fanout", "2", "2"]), ("pyg_link_prediction.py", ["--no-graph"])],
)
def test_a_script_with_the_loaders_of_pyg(script, arguments):
    """Which are manyhop's here, installed instead of torch-sparse or pyg-lib."""
    source = COMPARE["changed"]((EXAMPLES / script).read_text(), COMPARE["WITHOUT"])
    for ours in ("manyhop", '"distributed"', "is_padding", "stats"):
        assert ours not in source
    out = run("-c", f"import manyhop_pyg\nmanyhop_pyg.install()\n{source}", "--epochs", "1", *arguments)
    number(r"^test \w+ (\S+) in the best epoch", out)


@pytest.mark.slow
def test_a_script_that_accelerates_its_model():
    source = COMPARE["changed"]((EXAMPLES / "pyg_node_classification.py").read_text(), COMPARE["FASTER"])
    out = run("-c", source, "--epochs", "1", "--fanout", "2", "2")
    number(r"^test \w+ (\S+) in the best epoch", out)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pyg", "dgl"])
def test_embeddings_of_people_are_learned(framework):
    if framework == "dgl":
        pytest.importorskip("manyhop_dgl")
        pytest.importorskip("dgl")

    def accuracy(*arguments, **how):
        return numbers(r"test accuracy (\S+)$", run(f"{framework}_embeddings.py", *arguments, **how))[-1]

    assert 0.25 < accuracy("--epochs", "1", "--no-embeddings") < 0.33
    assert accuracy("--epochs", "3") > 0.4
    assert accuracy("--epochs", "2", processes=4) > 0.38


def test_a_fanout_that_makes_no_sense():
    run("pyg_node_classification.py", "--fanout", "10", "-7", fails="-7")
