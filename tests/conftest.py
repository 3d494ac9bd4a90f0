"""What all tests share."""

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels for GPUs run on the CPU; triton asks when imported


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Draws from torch's default generator are the same in every run, whatever the order of the tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        yield
