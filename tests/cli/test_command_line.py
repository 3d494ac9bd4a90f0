"""The command ``manyhop``."""

import subprocess
import sys

import pytest

import manyhop.bench
from manyhop import __version__, _doctor
from manyhop.cli import main


def test_doctor_is_content_here(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for topic in ("python", "torch", "numpy", "numba", "cores", "memory", "kernels", "GPUs", "pyg-lib", "DGL"):
        assert f"  {topic}  " in out
    assert out.rstrip().endswith("manyhop can work here.")


def test_doctor_fails_where_something_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(_doctor, "installed_version", lambda names: None)
    assert main(["doctor"]) == 1
    assert "manyhop cannot work here" in capsys.readouterr().out


def test_bench_gets_its_own_arguments(monkeypatch):
    seen = []

    def cpu_main(argv):
        seen.append(argv)
        return 7

    monkeypatch.setattr(manyhop.bench, "cpu_main", cpu_main)
    assert main(["bench", "cpu", "--quick", "--output", "x"]) == 7
    assert main(["bench", "cpu", "--help"]) == 7
    assert main(["bench", "cpu"]) == 7
    assert seen == [["--quick", "--output", "x"], ["--help"], []]


@pytest.mark.parametrize("argv", [[], ["doktor"], ["bench"], ["bench", "gpu"], ["doctor", "--loud"]])
def test_wrong_arguments_exit_with_usage(argv, capsys):
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    assert "usage: manyhop" in capsys.readouterr().err


def test_the_module_runs():
    run = subprocess.run([sys.executable, "-m", "manyhop.cli", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"manyhop {__version__}"
