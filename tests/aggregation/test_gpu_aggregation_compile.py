"""The kernels of aggregation compile, to loads of 16 bytes: the interpreter accepts more than the compiler."""

from pathlib import Path

import pytest
from kernel_scripts import assert_compiles

pytest.importorskip("triton")


def test_the_aggregation_compiles(tmp_path: Path) -> None:
    assert_compiles(Path(__file__).with_name("gpu_aggregation_compile.py"), tmp_path)
