"""Expected sizes of batches: beside batches that are sampled, and beside those that were measured on GPUs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from manyhop.costs import SHARES, expected_sizes, sample_batches, sampled_sizes
from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph
from manyhop_bench.gpu.graphs import rmat

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"


def test_batches_of_an_rmat_graph():
    graph = rmat(1 << 14, 1 << 18, torch.device("cpu")).engine
    for fanouts in ((5, 5), (8, 4, 2)):
        expected = expected_sizes(1 << 14, 1 << 18, fanouts, 128)
        sampled = sampled_sizes(graph, fanouts, 128, num_batches=96)
        assert sampled.nodes[0] == expected.nodes[0] == 128
        assert expected.edges == pytest.approx(sampled.edges, rel=0.06)
        assert expected.nodes == pytest.approx(sampled.nodes, rel=0.06)
        assert expected.hits == pytest.approx(sampled.hits, abs=0.06)


def test_the_batches_of_the_record():
    """The benchmark's R-MAT graph of 268 million edges; rows are gathered once per node of 512 bytes."""
    (run,) = json.loads((BENCHMARKS / "gpu.json").read_text())["runs"]
    found = 0
    for row in run["rows"]:
        if (row["part"], row["name"], row["setting"]) == ("loader", "manyhop", ""):
            fanouts = [int(text) for text in re.findall(r"\d+", row["workload"])]
            sizes = expected_sizes(1 << 24, 1 << 28, fanouts, 1024)
            assert sizes.num_edges == pytest.approx(row["edges"], rel=0.01)
            assert sizes.num_nodes == pytest.approx(row["work"]["copy"] / 512, rel=0.01)
            found += 1
    assert found == 2


def test_high_degrees_fill_the_fanout():
    sizes = expected_sizes(1 << 10, 1 << 40, [3], 16)
    assert sizes.edges == pytest.approx([48])


def test_hits_rise_to_one():
    hits = expected_sizes(1 << 20, 1 << 24, [10, 10], 1024).hits
    assert len(hits) == len(SHARES)
    assert hits[0] == 0
    assert hits[-1] == pytest.approx(1)
    assert (np.diff(hits) > 0).all()
    sizes = expected_sizes(1 << 20, 1 << 24, [10, 10], 1024)
    assert sizes.hit_rate(0.015) == pytest.approx((hits[2] + hits[3]) / 2)


def test_typed_graphs_count_all_types():
    edges = {
        ("b", "to", "a"): EdgeInput(row=torch.arange(20), col=torch.arange(20) % 10),
        ("a", "to", "b"): EdgeInput(row=torch.zeros(20, dtype=torch.int64), col=torch.arange(20)),
    }
    graph = build_graph({"a": 10, "b": 20}, edges)
    sizes = sampled_sizes(graph, (5, 5), 4, num_batches=2, seed_type="a")
    assert sizes.edges == (8, 8)  # two neighbours of each seed, one of each of those
    assert sizes.nodes[:2] == (4, 8)
    (sample,) = sample_batches(graph, (5,), 4, 1)
    assert sample.num_sampled_nodes["a"][0] == 4  # the type that the first edges lead to


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, [2], 1), "num_nodes to be at least 1, got 0"),
        ((9, 0, [2], 1), "num_edges to be at least 1"),
        ((9, 5, [], 1), "fanouts of at least 1"),
        ((9, 5, [3, 0], 1), "fanouts of at least 1"),
        ((9, 5, [2], 10), "at most 9 seeds per batch, got 10"),
    ],
)
def test_wrong_numbers(arguments, message):
    with pytest.raises(InputError, match=message):
        expected_sizes(*arguments)


def test_wrong_seeds():
    graph = build_graph({"a": 3}, {("a", "to", "a"): EdgeInput(row=torch.arange(3), col=torch.arange(3))})
    with pytest.raises(InputError, match="Expected 1 to 3 seeds"):
        sampled_sizes(graph, (2,), 4)
    with pytest.raises(InputError, match="node type"):
        sampled_sizes(graph, (2,), 2, seed_type="b")
