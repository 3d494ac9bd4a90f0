"""The benchmark of first batches starts processes, and says what they took."""

import re
import subprocess

import pytest

from manyhop.errors import InputError
from manyhop_bench.cli import main
from manyhop_bench.start import command


def test_steps_of_processes_become_a_table(monkeypatch, capsys, tmp_path):
    asked = []

    def process(library, kernels):
        asked.append(library)
        return command.np.array([[0.1, 0.2], [0.01, 0.02], [0.001, 0.002]]) * len(asked)

    monkeypatch.setattr(command, "_process", process)
    assert main(["start", "--rounds", "3", "--output", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert asked == ["manyhop", "manyhop", "manyhop", "PyG", "manyhop", "PyG", "manyhop", "PyG"]
    assert "| manyhop | none yet | 0.20 | 0.02 | 0.00 | 0.22 | 0.44 |" in table
    assert "| manyhop | on disk | 0.50 | 0.05 | 0.01 | 0.56 (0.33-0.78) | 1.11 (0.67-1.55) |" in table
    assert (tmp_path / "start.md").read_text() == table


def test_a_process_measures_three_steps():
    steps = command._process("manyhop", "")
    assert steps.shape == (3, 2)
    assert (steps >= 0).all()
    assert steps[:, 1].sum() > 0.01  # seconds


def test_a_process_that_fails_raises_why(monkeypatch):
    answer = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: 'NeighborSampler' requires 'pyg-lib'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(InputError, match=re.escape("ended with: ImportError: 'NeighborSampler' requires 'pyg-lib'")):
        command._process("PyG", "")


def test_pyg_that_cannot_sample_is_left_out(monkeypatch, capsys):
    def process(library, kernels):
        if library == "PyG":
            raise InputError("Its process ended with: ImportError")
        return command.np.ones((3, 2))

    monkeypatch.setattr(command, "_process", process)
    assert main(["start", "--rounds", "2"]) == 0
    table = capsys.readouterr().out
    assert "- PyG was not measured. Its process ended with: ImportError" in table
    assert "| manyhop | on disk | 1.00 | 1.00 | 1.00 | 3.00 (3.00-3.00) | 3.00 (3.00-3.00) |" in table
    assert "| PyG |" not in table
