"""The update's kernel compiles: the interpreter accepts more than the compiler."""

from pathlib import Path

import pytest
from kernel_scripts import assert_compiles

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_update_compiles(tmp_path: Path) -> None:
    assert_compiles(Path(__file__).with_name("gpu_update_compile.py"), tmp_path)
