"""The Makefile on a machine where something is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu import run as gpu

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments):
    # Not as a part of the make that may run these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_help_lists_the_targets():
    out = make().stdout
    targets = "bench clean demo docs gpu graphbolt help lint notebooks quick test upstream"
    assert {line.split("\t")[0] for line in out.splitlines()} == set(targets.split())


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_tests_of_gpus_need_them(tmp_path):
    run = make("gpu", "GPUS=2", f"RUN={sys.executable}", f"VENV={tmp_path / 'env'}")
    assert run.returncode != 0
    assert "Expected 2 CUDA device(s), got 0." in run.stdout
    assert not (tmp_path / "env").exists()


def test_tests_of_gpus_are_reported(tmp_path):
    file, part, path = (tmp_path / name for name in ("test_some.py", "part.xml", "all.xml"))
    file.write_text(
        "import pytest, time\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert False, 'too small'\n"
        "@pytest.mark.skip(reason='not installed: cugraph')\n"
        "def test_elsewhere(): pass\n"
        "def test_long(): time.sleep(600)\n"
    )
    assert gpu.run([str(file), "-k", "not long"], part, 300.0) == "pytest ended with 1."
    gpu.add(part, path, anew=True)
    gpu.add(part, path, anew=False)  # a run that was killed wrote nothing
    assert gpu.run([str(file), "-k", "right"], part, 300.0) == ""
    gpu.add(part, path, anew=False)
    assert gpu.run([str(file), "-k", "long"], part, 3.0).startswith("Interrupted after 3 s")
    failed, missing, counts = gpu.report(path).split("\n")
    assert failed.endswith("test_some.py::test_wrong: AssertionError: too small")
    assert missing == "not run: 1: not installed: cugraph"
    assert counts == "2 passed, 1 failed, 1 not run"
