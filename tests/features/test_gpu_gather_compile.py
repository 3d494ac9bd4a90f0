"""The gather's kernel compiles, to loads and stores of 16 bytes: the interpreter accepts more than the compiler."""

from pathlib import Path

import pytest
from kernel_scripts import assert_compiles

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_gather_compiles(tmp_path: Path) -> None:
    assert_compiles(Path(__file__).with_name("gpu_gather_compile.py"), tmp_path)
