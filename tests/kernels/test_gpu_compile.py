"""The kernels compile, to loads and stores of 16 bytes: the interpreter accepts more than the compiler does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_kernels_compile(tmp_path: Path) -> None:
    script = Path(__file__).with_name("gpu_compile.py")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "manyhop: compiling GPU kernels 1 (pick), once on this machine" in done.stderr
