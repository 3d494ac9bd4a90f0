"""The Makefile on a machine where something is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments):
    # Not as a part of the make that may run these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_help_lists_the_targets():
    out = make().stdout
    assert {line.split("\t")[0] for line in out.splitlines()} == {
        *("bench", "clean", "demo", "docs", "graphbolt", "help", "lint", "notebooks", "quick", "test", "upstream"),
    }


@pytest.mark.parametrize("target", ["demo", "test"])
def test_an_old_python_is_refused(target, tmp_path):
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    run = make(target, f"PYTHON={old}", f"VENV={tmp_path / 'env'}")
    assert run.returncode != 0
    assert f"manyhop needs Python 3.11 or later; '{old}' is: Python 3.9.2." in run.stdout
    assert f"make PYTHON=/path/to/python3.12 {target}" in run.stdout
    assert not (tmp_path / "env").exists()


def test_a_python_without_venv(tmp_path):
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nexit 1\n')
    bare.chmod(0o755)
    run = make("demo", f"PYTHON={bare}", f"VENV={tmp_path / 'env'}")
    assert run.returncode != 0
    assert "needs the package python3-venv" in run.stdout
