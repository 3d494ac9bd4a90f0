"""The benchmark of epochs under DDP."""

import re

import pytest

from manyhop.bench import ranks_main


def test_one_small_round(capsys, tmp_path):
    sizes = ["--nodes", "2000", "--edges", "20000", "--features", "8", "--seeds", "256", "--batch-size", "64"]
    assert ranks_main([*sizes, "--ranks", "2", "--rounds", "1", "--epochs", "1", "--output", str(tmp_path)]) == 0
    saved = (tmp_path / "ranks.md").read_text()
    assert saved == capsys.readouterr().out
    assert "manyhop bench ranks --nodes 2000" in saved
    loading, training, memory = map(float, re.findall(r"manyhop \| 2 \| (\S+) \| (\S+) \| (\S+)", saved)[0])
    assert 0 <= loading < training
    assert memory > 0.1
    assert "torch-sparse" in saved


def test_what_does_not_fit_is_said_before():
    with pytest.raises(MemoryError, match="smaller --nodes"):
        ranks_main(["--nodes", "1000000000000"])
