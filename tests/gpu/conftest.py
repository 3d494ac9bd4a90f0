"""Ranks with a GPU each, for tests."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))


@pytest.fixture(scope="session")
def gpu_launcher() -> Iterator[Any]:
    """What starts ranks; one for all tests."""
    from launch import Launcher

    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def run_on_gpus(gpu_launcher: Any) -> Callable[..., list[Any]]:
    """``run_on_gpus(function, *args, world_size=2)``: what the function returned on each rank."""
    return partial(gpu_launcher.run, fresh=True)


@pytest.fixture(scope="session")
def run_each_on_gpus(gpu_launcher: Any) -> Callable[..., list[list[Any]]]:
    """``run_each_on_gpus(function, cases)``: what it returned for each case on each of two ranks, started once."""
    return partial(gpu_launcher.run_each, fresh=True)


@pytest.fixture
def run_on_all_gpus(gpu_launcher: Any) -> Callable[..., list[Any]]:
    """The same with as many ranks as the machine has GPUs."""
    return partial(gpu_launcher.run, fresh=True, world_size=torch.cuda.device_count())


@pytest.fixture
def start_on_all_gpus(gpu_launcher: Any) -> Callable[..., Any]:
    """The same, without waiting: the ranks under way."""
    return partial(gpu_launcher.start, fresh=True, world_size=torch.cuda.device_count())
