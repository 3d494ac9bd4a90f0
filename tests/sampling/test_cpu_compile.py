"""The cache of compiled kernels on disk, and the message before a compilation."""

import os
import subprocess
import sys

import pytest

KERNEL = """\
from manyhop.sampling import _cpu_compile
{change}

@_cpu_compile.kernel("int64(int64)")
def double(x):
    return 2 * x

print(double(21))
"""


@pytest.fixture
def run(tmp_path):
    """Define and call a kernel in a fresh process; returns what it says on stderr."""

    def run_kernel(change="", digest=""):
        text = KERNEL.format(change=change)
        if not (tmp_path / "a_kernel.py").exists():
            (tmp_path / "a_kernel.py").write_text(text)
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "DIGEST": digest}
        done = subprocess.run(
            [sys.executable, "a_kernel.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == "42\n"
        return done.stderr

    return run_kernel


def test_says_so_only_when_it_compiles(run):
    assert "compiling its CPU kernels" in run()
    assert run() == ""


def test_changed_helpers_compile_again(run):
    """A kernel is stale when any source of the kernels has changed, not only its own file."""
    change = "import os; _cpu_compile._DIGEST = os.environ['DIGEST']"
    assert "compiling" in run(change, "one")
    assert run(change, "one") == ""
    assert "compiling" in run(change, "two")


def test_without_any_place_for_a_cache(run):
    broken = """
def nowhere(function):
    raise RuntimeError("cannot cache function: no locator available")
_cpu_compile._Cache = nowhere
"""
    assert run(broken).count("compiling") == 1
