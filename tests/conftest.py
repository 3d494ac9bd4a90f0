"""What all tests share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Draws from torch's default generator are the same in every run, whatever the order of the tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        yield
