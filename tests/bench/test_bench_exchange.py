"""The benchmark of the exchange runs, and says what it measured."""

import re

from manyhop_bench.cli import main


def test_two_ranks_are_started_and_measured(forked, capfd, tmp_path):
    sizes = ["--rows", "2000", "--ids", "100", "--features", "4", "--rounds", "1", "--batches", "1"]
    assert main(["exchange", *sizes, "--output", str(tmp_path)]) == 0
    table = capfd.readouterr().out
    assert "2 nodes of one rank each, 100 random ids of other nodes" in table
    assert re.search(r"^\| 16 bytes, host \| 0\.0 \| \d+\.\d\d \| \d+\.\d\d \| \d+\.\d\d \(", table, re.MULTILINE)
    assert (tmp_path / "exchange.md").read_text() == table


def test_networks_need_the_command_that_makes_them(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert main(["exchange", "--rows", "100", "--namespaces"]) == 1
    assert "--namespaces needs the command 'ip'" in capsys.readouterr().err
