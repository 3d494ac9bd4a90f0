"""Scripts that compile kernels: each runs in a process of its own, since the other tests interpret kernels."""

import os
import subprocess
import sys
from pathlib import Path


def assert_compiles(script: Path, cache: Path) -> str:
    """Run a script, with a folder for triton's cache; return what it wrote to stderr."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stderr
