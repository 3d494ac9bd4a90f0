"""The benchmark of ranks that sample together."""

import re

import pytest
import torch

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.sampling import SampledSubgraph
from manyhop_bench.cli import main
from manyhop_bench.ranks import cooperative

pytest.importorskip("pymetis")


def rows(capsys, *arguments):
    small = ["--nodes", "2000", "--batches", "2", "--batch-size", "50", "--fanouts", "3", "2"]
    assert main(["cooperative", *small, *arguments]) == 0
    text = capsys.readouterr().out
    found = re.findall(r"\| communities \| ([\w-]+) \| (random|METIS) \| (any|own) \| (.*) \|", text)
    return {tuple(key): [float(n.replace(",", "")) for n in figures.split(" | ")] for *key, figures in found}, text


def test_ranks_that_sample_together_read_less(capsys, tmp_path):
    found, text = rows(capsys, "--ranks", "2", "--output", str(tmp_path))
    assert (tmp_path / "cooperative.md").read_text() == text
    assert len(found) == 6
    assert all(read[1] < read[0] for read in found.values())
    assert found["neighbour", "METIS", "any"][3] < 0.7 * found["neighbour", "random", "any"][3]
    assert len(re.findall(r"\| communities \| (\d+) \| [\d,]+ \| [\d,]+ \| \d+% \|", text)) == 3


@pytest.mark.parametrize("few", [("--batches", "1"), ("--batch-size", "1500")])
def test_one_step_has_none_before_it(capsys, few):
    assert main(["cooperative", "--nodes", "2000", "--ranks", "2", "--fanouts", "2", *few]) == 1
    assert "Expected at least two steps of 2 ranks, got" in capsys.readouterr().err


def test_a_row_is_received_once_for_each_owner_that_samples():
    edges = {HOMOGENEOUS_EDGE: torch.tensor([0, 1, 2, 2, 3, 3])}, {HOMOGENEOUS_EDGE: torch.tensor([0, 0, 0, 1, 1, 2])}
    sample = SampledSubgraph(
        node={HOMOGENEOUS_NODE: torch.tensor([10, 11, 12, 13])},
        row=edges[0],
        col=edges[1],
        edge_id={HOMOGENEOUS_EDGE: None},
        tree=None,
        num_sampled_nodes={HOMOGENEOUS_NODE: [1, 2, 1]},
        num_sampled_edges={HOMOGENEOUS_EDGE: [3, 3]},
    )
    owners = torch.tensor([0] * 12 + [1, 1]).numpy()
    # Of the first hop, rank 0 needs node 12 once; of the second, rank 0 needs 12 and 13, rank 1 none but its own.
    assert cooperative._received(sample, {HOMOGENEOUS_NODE: owners}) == [1, 2]
