"""The benchmark of epochs under DDP."""

import re

from manyhop_bench.cli import main


def test_one_small_round(forked, capsys, tmp_path):
    sizes = ["--nodes", "2000", "--edges", "20000", "--features", "8", "--seeds", "256", "--batch-size", "64"]
    turns = ["--ranks", "2", "--rounds", "1", "--epochs", "1", "--output", str(tmp_path)]
    assert main(["ranks", *sizes, *turns]) == 0
    saved = (tmp_path / "ranks.md").read_text()
    assert saved == capsys.readouterr().out
    assert "manyhop bench ranks --nodes 2000" in saved
    loading, training, memory = map(float, re.findall(r"manyhop \| 2 \| (\S+) \| (\S+) \| (\S+)", saved)[0])
    assert loading >= 0
    assert training > 0
    assert memory > 0.1
    assert "torch-sparse" in saved


def test_what_does_not_fit_is_reported_before(capsys):
    assert main(["ranks", "--nodes", "1000000000000"]) == 1
    assert "smaller --nodes" in capsys.readouterr().err
