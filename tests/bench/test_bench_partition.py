"""The benchmark of rows that other ranks hold."""

import re

import pytest

from manyhop_bench.cli import main

pytest.importorskip("pymetis")


def test_one_small_round(capsys, tmp_path):
    arguments = ["--nodes", "2000", "--ranks", "2", "--batches", "2", "--batch-size", "50", "--fanouts", "2"]
    assert main(["partition", *arguments, "--output", str(tmp_path)]) == 0
    saved = (tmp_path / "partition.md").read_text()
    assert saved == capsys.readouterr().out
    found = re.findall(r"\| communities \| 2 \| ([\w ]+) \| (\w+) \| [\d,]+ \| ([\d.]+)% \|", saved)
    share = {(order, seeds): float(percent) for order, seeds, percent in found}
    assert len(share) == 6
    assert share["METIS", "own"] < 0.6 * share["random", "own"]
    assert 30 < share["METIS", "any"] < 70
