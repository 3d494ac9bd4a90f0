"""The kernels compile, to loads and stores of 16 bytes: the interpreter accepts more than the compiler does."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import manyhop

pytest.importorskip("triton")
import triton.language as tl


@pytest.mark.slow
def test_kernels_compile(tmp_path: Path) -> None:
    script = Path(__file__).with_name("gpu_compile.py")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "manyhop: compiling GPU kernels 1 (pick), once on this machine" in done.stderr


def test_kernels_read_constants_as_attributes_of_no_module_but_tables() -> None:
    """The key of triton's cache has constants that a module imports by name; of ``tables``, it has a digest."""
    read, num_modules = set(), 0
    for found in pkgutil.walk_packages(manyhop.__path__, "manyhop."):
        if ".gpu.kernels." not in found.name and "features.kernels." not in found.name:
            continue
        module, num_modules = importlib.import_module(found.name), num_modules + 1
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner = vars(module).get(node.value.id)
                of_engine = isinstance(owner, ModuleType) and owner.__name__.startswith("manyhop")
                if of_engine and isinstance(getattr(owner, node.attr), tl.constexpr):
                    read.add(owner.__name__)
    assert num_modules > 10
    assert read == {"manyhop.sampling.gpu.kernels.tables"}
