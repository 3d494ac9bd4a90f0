"""The command ``manyhop``."""

import subprocess
import sys
from pathlib import Path

import pytest

import manyhop
from manyhop.system import numba_kernels
from manyhop_tools.cli import main
from manyhop_tools.doctor.report import KERNEL_MODULES


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


@pytest.mark.parametrize("argv", ["plan no/graph", "plan no.npy", "convert no.pt out", "convert no.csv out"])
def test_a_path_that_is_not_there_is_reported_as_missing(argv, run):
    verb, path, *_ = argv.split()
    run(*argv.split(), fails=f"manyhop {verb}: {path}: there is no such file or folder.")


def test_the_command_alone_shows_its_help(run):
    captured = run()
    assert captured.out.startswith("usage: manyhop [-h]")
    assert "compare loaders with PyG's" in captured.out.replace("\n", " ")
    assert captured.err == ""


def test_output_that_nobody_reads():
    run = f"{sys.executable} -c 'from manyhop_tools.cli import main; main()' doctor"
    shell = subprocess.run(["bash", "-c", f"{run} | true"], capture_output=True, text=True)
    assert shell.stderr == ""


def test_compile_prepares_the_kernels_of_all_modules(monkeypatch, run):
    prepared = []
    monkeypatch.setattr(numba_kernels, "prepare", lambda *kernels: prepared.extend(kernels))
    assert "CPU kernels are ready" in run("compile").out
    root = Path(manyhop.__file__).parents[1]
    with_kernels = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if "\n@kernel(" in path.read_text()
    }
    assert set(KERNEL_MODULES) == with_kernels
    assert with_kernels <= {kernel.py_func.__module__ for kernel in prepared}
