"""The kernels compile: the interpreter accepts more than the compiler does."""

from pathlib import Path

import pytest
from kernel_scripts import assert_compiles


@pytest.mark.parametrize("script", ["gpu_compile.py", "gpu_hgt_compile.py"])
@pytest.mark.slow
def test_kernels_compile(script: str, tmp_path: Path) -> None:
    log = assert_compiles(Path(__file__).with_name(script), tmp_path)
    if script == "gpu_compile.py":
        assert "manyhop: compiling GPU kernels 1 (pick), once on this machine" in log
