"""Ranks with a GPU each, for tests."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))


@pytest.fixture(scope="session")
def run_on_gpus() -> Iterator[Callable[..., list[Any]]]:
    """``run_on_gpus(function, *args, world_size=2)``: what the function returned on each rank."""
    from launch import Launcher

    launcher = Launcher()
    yield partial(launcher.run, fresh=True)
    launcher.close()
