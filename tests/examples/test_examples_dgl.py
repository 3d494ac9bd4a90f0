"""The examples for DGL and GraphBolt, with one process and with several."""

import pytest
import torch
from example_scripts import FEWER_EDGES, numbers, run

pytest.importorskip("manyhop_dgl")
pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

GRAPHBOLT = ("graphbolt_node_classification.py", "--epochs", "2", "--fanout", "5", "3")


@pytest.mark.slow
def test_node_classification_learns_from_the_graph():
    fanout = ("--fanout", "3", "5")
    out = run("dgl_node_classification.py", "--epochs", "3", *fanout, "--workers", "1")
    accuracies = numbers(r"test accuracy (\S+)$", out)
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.33  # the largest class: 0.26
    assert "96 batches, num_workers=1" in out
    two = run("dgl_node_classification.py", "--epochs", "2", *fanout, processes=2)
    assert numbers(r"test accuracy (\S+)$", two)[-1] > 0.33
    assert "64 batches, num_workers=0" in two  # of each rank, half as large


@pytest.mark.slow
def test_link_prediction_learns_from_the_graph():
    quick = "dgl_link_prediction.py", "--epochs", "1", "--fanout", "2", "3"
    assert numbers(r"^epoch 1: .* test AUC (\S+);", run(*quick))[0] > 0.75
    assert numbers(r"^epoch 1: .* test AUC (\S+);", run(FEWER_EDGES, *quick, processes=4))[0] > 0.6


@pytest.mark.slow
def test_graphbolt_learns_from_the_graph():
    with_graph, same, without = (
        numbers(r"^epoch \d+: .* test accuracy (\S+)$", run(*GRAPHBOLT, *more))
        for more in (("--workers", "2"), (), ("--no-graph",))
    )
    assert len(with_graph) == 2
    assert with_graph[-1] > 0.34
    assert same == with_graph  # threads change nothing
    assert 0.2 < without[-1] < with_graph[-1]


def test_graphbolt_on_two_ranks():
    out = run(*GRAPHBOLT, processes=2)
    assert numbers(r"^epoch \d+: .* test accuracy (\S+)$", out)[-1] > 0.34


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dgl_node_classification.py", "--fanout", "10", "-7"), "-7"),
        (("dgl_link_prediction.py", "--dataset", "karate"), "choose from"),
        (("graphbolt_node_classification.py", "--device", "cuda"), "Expected an available device"),
    ],
)
def test_wrong_input_is_named(arguments, message):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("a GPU is there")
    run(*arguments, fails=message)
