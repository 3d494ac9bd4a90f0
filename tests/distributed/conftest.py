"""Ranks for tests."""

from collections.abc import Iterator

import pytest
from launch import Launcher, Node, make_namespaces, remove_namespaces


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts ranks in processes of their own."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[list[Node]]:
    """Two nodes with networks of their own where these may be made, else two that differ in name only."""
    nodes = make_namespaces()
    yield nodes or [Node(), Node()]
    remove_namespaces(nodes or [])
