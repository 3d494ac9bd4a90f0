"""The kernels compile: the interpreter accepts more than the compiler does."""

from pathlib import Path

from kernel_scripts import assert_compiles


def test_kernels_compile(tmp_path: Path) -> None:
    assert_compiles(Path(__file__).with_name("gpu_compile.py"), tmp_path)
