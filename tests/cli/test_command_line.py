"""The command ``manyhop``."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from manyhop import __version__
from manyhop.cli import main
from manyhop.doctor import report
from manyhop.hints import pip_install
from manyhop_bench.cli import main as bench
from manyhop_bench.cpu import command

ROOT = Path(__file__).parents[2]


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


@pytest.fixture
def entry_points(monkeypatch):
    """The entry points that pyproject.toml declares, whatever the metadata of an older installation say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"].items()
    found = EntryPoints(EntryPoint(name, value, group) for group, of in declared for name, value in of.items())
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **which: found.select(**which))


@pytest.mark.usefixtures("entry_points")
def test_bench_is_found_by_its_entry_point(monkeypatch, capsys):
    seen = []

    def cpu(options, argv):
        seen.append((options.quick, options.output, argv))
        return 7

    monkeypatch.setattr(command, "main", cpu)
    assert main(["bench", "cpu", "--quick", "--output", "x"]) == 7
    assert main(["bench", "cpu"]) == 7
    assert bench(["cpu"]) == 7
    assert seen == [(True, Path("x"), ["--quick", "--output", "x"]), (False, None, []), (False, None, [])]
    assert main(["bench", "gpu", "--saved", "no.json"]) == 1
    assert "manyhop bench gpu: " in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["bench"], ["bench", "cpu", "--quick"]])
def test_without_its_entry_point_bench_names_the_command_that_installs_it(argv, monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **which: EntryPoints())
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("manyhop bench: Expected an installed entry point 'bench'")
    assert pip_install("bench") in error


TARGETS = ("cpu", "dgl", "gpu", "ranks", "exchange")
COMMANDS = [
    *(("manyhop.cli", verb) for verb in ("doctor", "plan", "convert", "compile", "timeline")),
    *(("manyhop_bench.cli", target) for target in ("", *TARGETS)),
]


@pytest.mark.parametrize(("module", "verb"), COMMANDS)
def test_help_imports_nothing_that_is_slow(module, verb):
    code = """
import importlib, sys
try:
    importlib.import_module(sys.argv[1]).main(sys.argv[2:])
except SystemExit:
    pass
sys.exit(str({'torch', 'numpy', 'numba', 'dgl', 'torch_geometric'} & sys.modules.keys() or ''))
"""
    run = subprocess.run([sys.executable, "-c", code, module, *verb.split(), "--help"], capture_output=True, text=True)
    command = f"manyhop bench {verb}" if module == "manyhop_bench.cli" else f"manyhop {verb}"
    assert run.stdout.startswith(f"usage: {command.strip()} ")
    assert run.stderr.strip() == ""


@pytest.mark.usefixtures("entry_points")
@pytest.mark.parametrize(
    "argv",
    [["doctor", "--frob"], ["plan", "x", "--frob"], ["convert", "x", "y", "--frob"], ["bench", "cpu", "--frob"]],
)
def test_a_wrong_argument_shows_the_usage_of_its_verb(argv, capsys):
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    shown = capsys.readouterr().err
    verb = " ".join(argv[:2] if argv[0] == "bench" else argv[:1])
    assert shown.startswith(f"usage: manyhop {verb} [-h]")
    assert f"manyhop {verb}: error: unrecognized arguments: --frob" in shown


@pytest.mark.parametrize(
    "argv", [["plan", "no/graph"], ["plan", "no.npy"], ["convert", "no.pt", "out"], ["convert", "no.csv", "out"]]
)
def test_a_path_that_is_not_there_is_reported_as_missing(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 1
    assert f"manyhop {argv[0]}: {argv[1]}: there is no such file or folder." in capsys.readouterr().err


@pytest.mark.usefixtures("entry_points")
@pytest.mark.parametrize("argv", [[], ["doktor"], ["bench"], ["bench", "tpu"], ["doctor", "--loud"]])
def test_wrong_arguments_exit_with_usage(argv, capsys):
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    assert "usage: manyhop" in capsys.readouterr().err


def test_the_module_runs():
    run = subprocess.run([sys.executable, "-m", "manyhop.cli", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"manyhop {__version__}"
