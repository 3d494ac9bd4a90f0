"""The benchmark of files larger than memory."""

import contextlib
import mmap
import re
import time

import numpy as np
import pytest
import torch

from manyhop_bench.cli import main
from manyhop_bench.disk import command, memory_limit
from manyhop_bench.disk.page_limit import PageLimit


@pytest.fixture
def no_limit(monkeypatch, tmp_path):
    for name in ("_VERSION_1", "_VERSION_2"):
        monkeypatch.setattr(memory_limit, name, tmp_path / "none")


def test_one_small_round_without_rights(forked, no_limit, capsys, tmp_path):
    arguments = ["--memory", "3MiB", "--seconds", "0.5", "--rounds", "1", "--output", str(tmp_path)]
    assert main(["disk", *arguments]) == 0
    saved = (tmp_path / "disk.md").read_text()
    assert saved == capsys.readouterr().out
    assert "no rights to make a control group: all pages of the file are dropped" in saved
    rows = re.findall(r"\| ([^|]+) \| ([\d,]+) \(", saved)
    assert [name for name, _ in rows] == [command.NUMPY, command.RANDOM, command.MAPPED, command.CACHED]
    assert all(int(speed.replace(",", "")) > 0 for _, speed in rows)
    (hits,) = re.findall(r"manyhop, cache .* (\d+)% \|", saved)
    assert 0 < int(hits) <= 100


def test_ranks_with_one_cache_and_with_their_own(forked, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "memory_limit", lambda nbytes: contextlib.nullcontext(tmp_path / "processes"))
    arguments = ["--ranks", "2", "--memory", "6MiB", "--seconds", "0.3", "--rounds", "1", "--output", str(tmp_path)]
    assert main(["disk", *arguments]) == 0
    saved = (tmp_path / "disk-ranks.md").read_text()
    assert saved == capsys.readouterr().out
    assert "memory limit: 6.0 MiB for 2 processes together" in saved
    assert "3.0 MiB, half of the limit: one for all ranks, or a part of it for each." in saved
    found = re.findall(r"\| ([^|]+) \| ([\d,]+) \(.* x \| (\d+%|-) \|", saved)
    assert [name for name, *_ in found] == [command.RANDOM, command.PRIVATE, command.SHARED]
    assert all(int(speed.replace(",", "")) > 0 for _, speed, _ in found)
    _, private, shared = (int(hits.rstrip("%").replace("-", "0")) for *_, hits in found)
    assert 0 < private < shared <= 100


def test_ranks_need_a_control_group(no_limit, capsys):
    assert main(["disk", "--ranks", "2", "--memory", "6MiB"]) == 1
    assert "Run this as root, or without --ranks" in capsys.readouterr().err


def test_a_process_that_ends_is_an_error(no_limit, monkeypatch, capsys):
    monkeypatch.setattr(command, "_write_ids", lambda path, num_rows: 0)
    assert main(["disk", "--memory", "6MiB"]) == 1
    found = capsys.readouterr().err
    assert "Expected numpy.memmap to read rows; its process ended with: FileNotFoundError" in found


def test_a_file_that_is_too_small(capsys):
    assert main(["disk", "--memory", "1KiB"]) == 1
    assert "Raise --memory" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures")
def test_a_gpu_is_needed_for_rows_on_it(capsys):
    assert main(["disk", "--gpu"]) == 1
    assert "Expected a CUDA device for --gpu" in capsys.readouterr().err


def test_pages_beyond_the_limit_are_dropped(tmp_path):
    pages, path = 2000, tmp_path / "x.npy"
    np.save(path, np.zeros(pages * mmap.PAGESIZE, np.uint8))
    table = np.load(path, mmap_mode="r")
    limit = PageLimit(str(path), 1 << 40)
    assert table[:: mmap.PAGESIZE].sum() == 0
    assert limit.resident() >= pages * mmap.PAGESIZE
    limit._nbytes = 0  # less than this process has for itself
    end = time.monotonic() + 60
    while limit.drops == 0 or limit.resident() > pages * mmap.PAGESIZE // 2:  # pages of a moment ago may stay
        assert time.monotonic() < end
        time.sleep(0.01)


def test_control_of_memory_is_taken_and_given_back(monkeypatch, tmp_path):
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu")
    monkeypatch.setattr(memory_limit, "_VERSION_1", tmp_path / "none")
    monkeypatch.setattr(memory_limit, "_VERSION_2", tmp_path)
    with memory_limit.memory_limit(123) as processes:
        assert control.read_text() == "+memory"
        (processes.parent / "memory.max").unlink()
    assert control.read_text() == "-memory"


def test_the_group_is_written_and_removed(monkeypatch, tmp_path):
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(memory_limit, "_VERSION_1", tmp_path)
    with memory_limit.memory_limit(123) as processes:
        limit = processes.parent / "memory.limit_in_bytes"
        assert limit.read_text() == "123"
        limit.unlink()  # folders of the kernel's go with their files
    assert not processes.parent.exists()
