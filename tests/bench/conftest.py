"""What tests of benchmarks share."""

import os
import sys
from pathlib import Path

import forks
import pytest


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Processes that a benchmark starts import its package."""
    folder = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))))


@pytest.fixture
def forked(monkeypatch):
    """Processes that a benchmark starts, and ranks that torchrun starts for it, need not import torch."""
    python = forks.python()
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PYTHON_EXEC", python)
