"""``manyhop compile``."""

from pathlib import Path

import manyhop
from manyhop.system import numba_kernels
from manyhop_tools.cli import main
from manyhop_tools.doctor.report import KERNEL_MODULES


def test_compiles_the_kernels_of_all_modules(monkeypatch, capsys):
    prepared = []
    monkeypatch.setattr(numba_kernels, "prepare", lambda *kernels: prepared.extend(kernels))
    assert main(["compile"]) == 0
    assert "CPU kernels are ready" in capsys.readouterr().out
    root = Path(manyhop.__file__).parents[1]
    with_kernels = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if "\n@kernel(" in path.read_text()
    }
    assert set(KERNEL_MODULES) == with_kernels
    assert with_kernels <= {kernel.py_func.__module__ for kernel in prepared}
