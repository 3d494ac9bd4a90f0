"""``manyhop compile``."""

from pathlib import Path

import manyhop
from manyhop.cli import compile, main
from manyhop.doctor.report import KERNEL_FOLDERS
from manyhop.system import numba_kernels


def test_compiles_the_kernels_of_all_modules(monkeypatch, capsys):
    prepared = []
    monkeypatch.setattr(numba_kernels, "prepare", lambda *kernels: prepared.extend(kernels))
    assert main(["compile"]) == 0
    assert "CPU kernels are ready" in capsys.readouterr().out
    root = Path(manyhop.__file__).parent
    with_kernels = {
        "manyhop." + ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if "\n@kernel(" in path.read_text()
    }
    assert set(compile.MODULES) == with_kernels
    assert with_kernels <= {kernel.py_func.__module__ for kernel in prepared}
    folders = {name.removeprefix("manyhop.").rpartition(".")[0].replace(".", "/") for name in with_kernels}
    assert folders <= set(KERNEL_FOLDERS)
