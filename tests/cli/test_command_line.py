"""The command ``manyhop``."""

import subprocess
import sys

import pytest

from manyhop_tools.cli import main
from manyhop_tools.doctor import report


def test_doctor_is_content_here(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for topic in ("python", "torch", "numpy", "numba", "cores", "memory", "kernels", "GPUs", "pyg-lib", "DGL"):
        assert f"  {topic}  " in out
    assert out.rstrip().endswith("manyhop can work here.")


def test_doctor_fails_where_something_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(report, "installed_version", lambda names: None)
    assert main(["doctor"]) == 1
    assert "manyhop cannot work here" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["doctor", "plan", "convert", "compile", "timeline", "bench"])
def test_help_imports_nothing_that_is_slow(verb):
    code = """
import sys
from manyhop_tools.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.exit(str({'torch', 'numpy', 'numba', 'dgl', 'torch_geometric'} & sys.modules.keys() or ''))
"""
    run = subprocess.run([sys.executable, "-c", code, verb, "--help"], capture_output=True, text=True)
    assert run.stdout.startswith(f"usage: manyhop {verb} ")
    assert run.stderr.strip() == ""


@pytest.mark.parametrize(
    "argv", [["doctor", "--frob"], ["plan", "x", "--frob"], ["convert", "x", "y", "--frob"], ["bench", "--frob"]]
)
def test_a_wrong_argument_shows_the_usage_of_its_verb(argv, capsys):
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"usage: manyhop {argv[0]} [-h]")
    assert f"manyhop {argv[0]}: error: unrecognized arguments: --frob" in shown


@pytest.mark.parametrize(
    "argv", [["plan", "no/graph"], ["plan", "no.npy"], ["convert", "no.pt", "out"], ["convert", "no.csv", "out"]]
)
def test_a_path_that_is_not_there_is_reported_as_missing(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 1
    assert f"manyhop {argv[0]}: {argv[1]}: there is no such file or folder." in capsys.readouterr().err


def test_the_command_alone_shows_its_help(capsys):
    assert main([]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: manyhop [-h]")
    assert "compare loaders with PyG's" in captured.out.replace("\n", " ")
    assert captured.err == ""


def test_output_that_nobody_reads():
    run = f"{sys.executable} -c 'from manyhop_tools.cli import main; main()' doctor"
    shell = subprocess.run(["bash", "-c", f"{run} | true"], capture_output=True, text=True)
    assert shell.stderr == ""
