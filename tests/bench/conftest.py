"""What tests of benchmarks share."""

import sys

import forks
import pytest


@pytest.fixture
def forked(monkeypatch):
    """Processes that a benchmark starts, and ranks that torchrun starts for it, need not import torch."""
    python = forks.python()
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PYTHON_EXEC", python)
