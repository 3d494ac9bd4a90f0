"""The benchmark of files larger than memory."""

import re

import pytest

from manyhop_bench.cli import main
from manyhop_bench.disk import command, memory_limit


@pytest.fixture
def no_limit(monkeypatch, tmp_path):
    for name in ("_VERSION_1", "_VERSION_2"):
        monkeypatch.setattr(memory_limit, name, tmp_path / "none")


def test_one_small_round_without_rights(no_limit, capsys, tmp_path):
    arguments = ["--memory", "3MiB", "--seconds", "0.5", "--rounds", "1", "--output", str(tmp_path)]
    assert main(["disk", *arguments]) == 0
    saved = (tmp_path / "disk.md").read_text()
    assert saved == capsys.readouterr().out
    assert "none could be set" in saved
    rows = re.findall(r"\| ([^|]+) \| ([\d,]+) \(", saved)
    assert [name for name, _ in rows] == [command.NUMPY, command.RANDOM, command.MAPPED, command.CACHED]
    assert all(int(speed.replace(",", "")) > 0 for _, speed in rows)
    (hits,) = re.findall(r"manyhop, cache .* (\d+)% \|", saved)
    assert 0 < int(hits) <= 100


def test_a_file_that_is_too_small(capsys):
    assert main(["disk", "--memory", "1KiB"]) == 1
    assert "Raise --memory" in capsys.readouterr().err


def test_the_group_is_written_and_removed(monkeypatch, tmp_path):
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(memory_limit, "_VERSION_1", tmp_path)
    with memory_limit.memory_limit(123) as processes:
        limit = processes.parent / "memory.limit_in_bytes"
        assert limit.read_text() == "123"
        limit.unlink()  # folders of the kernel's go with their files
    assert not processes.parent.exists()
